"""What a rank is told when it is started: its identity and its whole configuration."""

from typing import Annotated

import msgspec
from msgspec import Meta

from controlplane.protocol.bounds import (
    MAX_ARGUMENTS,
    MAX_RANKS_PER_NODE,
    CommandText,
    DeviceIndex,
    Environment,
    Epoch,
    HostOrNone,
    Id,
    IdOrNone,
    Index,
    Label,
    Seconds,
    Step,
)
from controlplane.protocol.spec import Checkpoint, Model, Parallelism, Training

LISTENING_PORTS = range(20_000, 30_000)
"""For who names a port before it listens there. Below the range from which Linux takes ports for
outgoing connections (ip(7), ip_local_port_range): one of those could be gone by then."""


class RankRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One process. `rank` is the index inside the replica, from 0;
    `incarnation` counts the lives of that replica slot over the whole job."""

    job_id: Id
    attempt: Index
    replica: Index
    incarnation: Index
    rank: Index


class RankPlacement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rank `rank` of the replica runs on device `device_index` of this node."""

    rank: Index
    device_index: DeviceIndex


class Resume(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Load this checkpoint before training. `path` is the directory of one checkpoint."""

    path: CommandText
    step: Step


class TrainerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything the built-in trainer needs, the same for all ranks of a replica.

    `replicas` is the number of slots of the layout (D); `store` is host:port of the
    rendezvous store and `store_token` the job's secret there (`protocol.store_keys`; never in
    the database: it comes with the delivery of a start); `checkpoint_dir` holds one directory per checkpoint.
    `resume` None starts from step 0. `max_contributors` replicas compute, the others that
    hold the state stand by (None: all compute). `timing_interval_s` between two timing
    reports of a rank; 0: none.
    """

    model: Model
    parallelism: Parallelism
    training: Training
    checkpoint: Checkpoint
    checkpoint_dir: CommandText
    replicas: Index
    store: CommandText
    store_token: IdOrNone = ""
    resume: Resume | None = None
    max_contributors: Index | None = None
    outer_timeout_s: Seconds = 60.0
    inner_timeout_s: Seconds = 600.0
    allow_faults: bool = False
    timing_interval_s: Seconds = 0.0


class ReplicaLaunch(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """This node's part of one replica. `world_size` is `ranks_per_replica`; `ranks` are the ones
    to start here. Older incarnations of (job, replica) and older attempts of the job
    on this node are killed first. `entrypoint` None means the rank host. `master_host`
    names the node of rank 0 where an entrypoint's replica spans several nodes (their names
    must resolve); empty where all of its ranks are here. `step_floor_s` None: the step
    timeout is given; else the agent may tighten it to what the rank's own steps teach, not
    below this. `user`: the name of the job's owner; as whom its processes run is for the
    node's own policy to say. `log_markers`: the job's own, name to pattern (`protocol.markers`).
    `step_reports_within_s`: what its ranks report of steps may wait here so long and go together (0: it goes at
    once)."""

    job_id: Id
    job_name: Label
    attempt: Index
    epoch: Epoch
    replica: Index
    incarnation: Index
    world_size: Index
    ranks: Annotated[tuple[RankPlacement, ...], Meta(max_length=MAX_RANKS_PER_NODE)]
    config: TrainerConfig
    entrypoint: Annotated[tuple[CommandText, ...], Meta(max_length=MAX_ARGUMENTS)] | None = None
    master_host: HostOrNone = ""
    user: Label = ""
    env: Environment = {}
    log_markers: Environment = {}
    step_timeout_s: Seconds = 60.0
    step_floor_s: Seconds | None = None
    setup_timeout_s: Seconds = 600.0
    checkpoint_timeout_s: Seconds = 420.0
    out_of_section_timeout_s: Seconds = 300.0
    step_reports_within_s: Seconds = 0.0
