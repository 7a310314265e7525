"""What a rank is told when it is started: its identity and its whole configuration."""

import msgspec

from controlplane.protocol.spec import Checkpoint, Model, Parallelism, Training

LISTENING_PORTS = range(20_000, 30_000)
"""For who names a port before it listens there. Below the range from which Linux takes ports for
outgoing connections (ip(7), ip_local_port_range): one of those could be gone by then."""


class RankRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One process. `rank` is the index inside the replica, from 0;
    `incarnation` counts the lives of that replica slot over the whole job."""

    job_id: str
    attempt: int
    replica: int
    incarnation: int
    rank: int


class RankPlacement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rank `rank` of the replica runs on device `device_index` of this node."""

    rank: int
    device_index: int


class Resume(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Load this checkpoint before training. `path` is the directory of one checkpoint."""

    path: str
    step: int


class TrainerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything the built-in trainer needs, the same for all ranks of a replica.

    `replicas` is the number of slots of the layout (D); `store` is host:port of the
    rendezvous store; `checkpoint_dir` holds one directory per checkpoint.
    `resume` None starts from step 0. `max_contributors` replicas compute, the others that
    hold the state stand by (None: all compute). `timing_interval_s` between two timing
    reports of a rank; 0: none.
    """

    model: Model
    parallelism: Parallelism
    training: Training
    checkpoint: Checkpoint
    checkpoint_dir: str
    replicas: int
    store: str
    resume: Resume | None = None
    max_contributors: int | None = None
    outer_timeout_s: float = 60.0
    inner_timeout_s: float = 600.0
    allow_faults: bool = False
    timing_interval_s: float = 0.0


class ReplicaLaunch(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """This node's part of one replica. `world_size` is `ranks_per_replica`; `ranks` are the ones
    to start here. Older incarnations of (job, replica) and older attempts of the job
    on this node are killed first. `entrypoint` None means the rank host. `master_host`
    names the node of rank 0 where an entrypoint's replica spans several nodes (their names
    must resolve); empty where all of its ranks are here. `step_floor_s` None: the step
    timeout is given; else the agent may tighten it to what the rank's own steps teach, not
    below this. `user`: the name of the job's owner; as whom its processes run is for the
    node's own policy to say. `log_markers`: the job's own, name to pattern (`protocol.markers`)."""

    job_id: str
    job_name: str
    attempt: int
    epoch: int
    replica: int
    incarnation: int
    world_size: int
    ranks: tuple[RankPlacement, ...]
    config: TrainerConfig
    entrypoint: tuple[str, ...] | None = None
    master_host: str = ""
    user: str = ""
    env: dict[str, str] = {}
    log_markers: dict[str, str] = {}
    step_timeout_s: float = 60.0
    step_floor_s: float | None = None
    setup_timeout_s: float = 600.0
    checkpoint_timeout_s: float = 420.0
    out_of_section_timeout_s: float = 300.0
