"""The job spec: what a user writes (YAML or JSON), as types with defaults.

`controlplane.protocol.spec_lint` turns an untrusted mapping into a `JobSpec` or into
all its faults at once. After submit a spec never changes.
"""

from typing import Literal

import msgspec

from controlplane.protocol.states import Mode


class _Spec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of every section of a job spec."""


class Metadata(_Spec):
    """`name` is an RFC 1035 label (<= 63), unique among a project's live jobs. Jobs are listed by
    `labels`. `annotations`: refused, nothing reads them."""

    name: str
    project: str = "default"
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class Spares(_Spec):
    """`gpus` devices kept free for this job; `warm` starts their rank hosts ahead."""

    gpus: int = 0
    warm: bool = True


class Resources(_Spec):
    """`nodes` nodes of which each has `gpus_per_node` devices free: the job starts on these, with so
    many on each, or waits; later attempts, and replicas that are started again, take what is left.
    `min_replicas` replicas must survive for training to go on. `gpu_type`: words that must be in a
    device's model ("H100"); None means any."""

    nodes: int
    gpus_per_node: int
    min_replicas: int = 1
    gpu_type: str | None = None
    spares: Spares = Spares()


class Parallelism(_Spec):
    """Layout inside one replica: tp x pp x cp x `replica_dp` ranks, where `replica_dp` is
    Megatron's own data parallelism inside the replica (docs/parallelism.md says what runs
    and what is refused). `vp` model chunks a pipeline
    stage (interleaved schedule); `ep` spreads a MoE's experts over the data-parallel
    ranks; `distributed_optimizer` shares the optimizer's state out among them. `dp` is the
    number of replicas; "auto" derives it from the devices."""

    tp: int = 1
    pp: int = 1
    vp: int = 1
    cp: int = 1
    ep: int = 1
    replica_dp: int = 1
    sequence_parallel: bool = False
    distributed_optimizer: bool = False
    dp: int | Literal["auto"] = "auto"


class Model(_Spec):
    """A Megatron-core model of `layers` layers with `heads` attention heads. `sequence_length` and
    `vocab_size` in tokens. `preset` names a published size; fields that are given as well win over
    it. `ffn_hidden` None means 4 x hidden. "bert" masks with the last id of the vocabulary and pads
    with the one before. `experts` and `experts_per_token` count for the family "moe" only."""

    family: Literal["gpt", "bert", "moe"] = "gpt"
    preset: str | None = None
    layers: int = 4
    hidden: int = 64
    heads: int = 4
    kv_heads: int | None = None
    ffn_hidden: int | None = None
    experts: int = 8
    experts_per_token: int = 2
    sequence_length: int = 64
    vocab_size: int = 256


class Numerics(_Spec):
    """Megatron-core's re-run state machine and what it looks for. `spike_factor`: a loss
    so many times the largest seen is a spike. `rerun` "validate_results" computes a
    suspect step again; "report_determinism_stats" computes every step twice."""

    rerun: Literal["disabled", "validate_results", "report_determinism_stats"] = "disabled"
    check_nan: bool = True
    check_spike: bool = False
    spike_factor: float = 10.0


class Training(_Spec):
    """`global_batch` and `micro_batch` in samples; `steps` optimizer steps. The learning rate rises
    to `learning_rate` in `warmup_steps` steps, then falls as a cosine to `min_learning_rate` at the
    last one; `weight_decay` is AdamW's, `clip_grad` the largest norm of the gradient (0: any), and
    `dtype` that of the parameters and activations.
    `data` is a file of text (bytes are tokens) or the prefix of an indexed dataset; None
    means the shipped text. `batch_mode` says who computes; the global batch is the same in
    both. "redistribute": every replica contributes, and while one is away the others share
    its micro-batches out, so a step takes longer. "spares": `min_replicas` contribute; the
    others stand by with weight zero, taking every optimizer step and computing nothing, and
    the view that leaves a contributor out promotes one of them, so a step takes as long as
    before for as long as one stands by.
    `step_delay_s` slows each micro-batch down, for demos of tiny models."""

    steps: int = 200
    global_batch: int = 12
    micro_batch: int = 1
    learning_rate: float = 3e-3
    min_learning_rate: float = 3e-4
    warmup_steps: int = 5
    weight_decay: float = 0.01
    clip_grad: float = 1.0
    seed: int = 1234
    dtype: Literal["fp32", "bf16"] = "fp32"
    data: str | None = None
    batch_mode: Literal["redistribute", "spares"] = "redistribute"
    hash_every_steps: int = 1
    step_delay_s: float = 0.0
    numerics: Numerics = Numerics()


class EmergencyCheckpoint(_Spec):
    """An emergency save happens only if at least `min_gap_ratio` of the interval has
    passed since the last one, and never twice within `cooldown_s`. An order to save that has not
    reached a node's agent within `deadline_s` lapses."""

    min_gap_ratio: float = 0.25
    cooldown_s: float = 60.0
    deadline_s: float = 60.0


class LocalTier(_Spec):
    """Frequent saves on the nodes' own disks, or in their memory (`medium`). Every
    `interval_steps` each node keeps its ranks' state and `copies` other nodes keep a copy
    (a node that is lost takes nothing with it). On disks a `dir` is needed, None: no such
    tier. In memory `dir` must be on a tmpfs; None: a folder of /dev/shm."""

    medium: Literal["disk", "memory"] = "disk"
    dir: str | None = None
    interval_steps: int = 10
    copies: int = 1
    keep: int = 2

    @property
    def wanted(self) -> bool:
        """The job has this tier."""
        return self.dir is not None or self.medium == "memory"


class Checkpoint(_Spec):
    """`dir` is a path that is the same on every node, or an s3:// or gs:// address;
    None means a directory the control plane chooses. `restore_test` loads a verified
    checkpoint in a process of its own before it counts as restore-tested."""

    dir: str | None = None
    interval_steps: int = 50
    keep: int = 3
    format: Literal["torch_dist"] = "torch_dist"
    asynchronous: bool = msgspec.field(default=True, name="async")
    emergency: EmergencyCheckpoint = EmergencyCheckpoint()
    local: LocalTier = LocalTier()
    restore_test: bool = False


class RiskTrigger(_Spec):
    """`threshold` in score units (0..1); one that cannot be reached is refused. A device is at risk
    no more when its score was below for `hysteresis_s`. `window_samples`: samples of which a score
    is made; refused but for the default."""

    threshold: float = 0.30
    hysteresis_s: float = 30.0
    window_samples: int = 60


class Timeouts(_Spec):
    """Section timeouts. "auto" is learned: the longest seen x 5, not below a floor, and the
    default below until something was seen. Setups teach that load a checkpoint, saves that
    hold training up, and the time out of sections of a rank that ended well.
    `watchdog` "heartbeat" is for programs that only beat (`trainer.hooks`): the first beat
    within `first_heartbeat_s`, then one each `heartbeat_s`; null: for ever.
    `silence_s` without a word make a node silent: with a witness its replicas are left out and
    may come back. After `lease_s` they are ended and started elsewhere; "auto" follows the
    measured step: twice its longest, not below 10 s, and 60 s until there was one."""

    watchdog: Literal["sections", "heartbeat"] = "sections"
    first_heartbeat_s: float | None = 1800.0
    heartbeat_s: float | None = 300.0
    setup_s: float | Literal["auto"] = 600.0
    step_s: float | Literal["auto"] = "auto"
    step_floor_s: float = 5.0
    checkpoint_s: float | Literal["auto"] = 420.0
    out_of_section_s: float | Literal["auto"] = 300.0
    silence_s: float = 2.0
    lease_s: float | Literal["auto"] = "auto"


class Budget(_Spec):
    """Restarts of every rung of the ladder (a view change without its lost member, a replica
    started again, an attempt) over the job and per window, and attempts in a row that may
    bring no newer checkpoint. Of them `max_attempt_restarts` are the whole job's over the job, `restarts_per_attempt` a
    replica's within one attempt, and `program_restarts_per_window` those after which the program itself ended (an
    exception, an abort, a fault in native code): no other node cures these. "unlimited": by the limits on all alone."""

    max_restarts: int = 1000
    restarts_per_window: int = 30
    window_s: float = 3600.0
    max_no_progress: int = 3
    max_attempt_restarts: int | Literal["unlimited"] = "unlimited"
    restarts_per_attempt: int | Literal["unlimited"] = "unlimited"
    program_restarts_per_window: int | Literal["unlimited"] = "unlimited"


class Stragglers(_Spec):
    """Scores every `interval_s`: `relative` to the median of its stage, `individual` to the rank's
    own best; 1 is as fast as ever, below the threshold is a straggler."""

    interval_s: float = 300.0
    relative: bool = True
    individual: bool = True
    relative_threshold: float = 0.7
    individual_threshold: float = 0.7


class FaultSchedule(_Spec):
    """Faults a job injects into itself, for rehearsals; needs `allow_faults`. One fault of
    `kind` after `delay_s` + U(0, 0.2) x `delay_s` of training, `times` times in all.
    `rank` -1: any rank of any replica, chosen by the job's seed."""

    kind: Literal[
        "none",
        "random",
        "rank_killed",
        "rank_hung",
        "slow",
        "nan",
        "exception",
        "abort",
        "segfault",
        "gil_lock",
        "communication",
    ] = "none"
    delay_s: float = 60.0
    rank: int = -1
    times: int = 1


class Resiliency(_Spec):
    """How far automation may go for this job, and when it acts. `look_every_s`: stacks and
    Flight Recorder of one replica after the other that often, at most `look_ranks` ranks a
    time (0: only when something hangs). `log_markers`: name to text that makes a line of a
    rank's log an event on the timeline, beside the known markers; `*` in it stands for
    anything. `act_after_s`: with `mode` recommend, what nobody rejected or held so long after it was
    recommended is carried out (0: it waits for a person)."""

    mode: Mode = Mode.ENFORCE
    act_after_s: float = 0.0
    risk: RiskTrigger = RiskTrigger()
    timeouts: Timeouts = Timeouts()
    budget: Budget = Budget()
    allow_relayout: bool = True
    allow_faults: bool = False
    stragglers: Stragglers = Stragglers()
    faults: FaultSchedule = FaultSchedule()
    look_every_s: float = 0.0
    look_ranks: int = 8
    log_markers: dict[str, str] = {}


class Scheduling(_Spec):
    """`priority`: of the jobs that wait for devices the one with the higher priority starts first, and jobs that run
    with a lower one may have to yield their devices to it, unless they are not `preemptible`. `preempt_grace_s`: to
    save in before a preemption, and between SIGTERM and SIGKILL. `elastic`: where not all replicas fit, it starts with
    `min_replicas` or more, wherever devices are, and takes the others one by one when there is room.
    `time_limit_s`: so long after its first attempt began the job has ended at the latest, and has saved before (0: no
    limit)."""

    priority: int = 500
    preemptible: bool = True
    preempt_grace_s: float = 60.0
    elastic: bool = False
    time_limit_s: float = 0.0


class TrainSpec(_Spec):
    """`entrypoint` None runs the built-in Megatron trainer through the rank host;
    an argv list starts that program once per rank (no shell)."""

    resources: Resources
    entrypoint: list[str] | None = None
    env: dict[str, str] = {}
    parallelism: Parallelism = Parallelism()
    model: Model = Model()
    training: Training = Training()
    checkpoint: Checkpoint = Checkpoint()
    resiliency: Resiliency = Resiliency()
    scheduling: Scheduling = Scheduling()


class JobSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The whole document."""

    api_version: Literal["holdfast/v1"] = msgspec.field(default="holdfast/v1", name="apiVersion")
    kind: Literal["TrainJob"] = "TrainJob"
    metadata: Metadata
    spec: TrainSpec


class RankCoordinates(msgspec.Struct, frozen=True):
    """Where a rank stands in its replica, from 0. `ep` is its place among the ranks that
    share a mixture's experts out."""

    tp: int
    cp: int
    ep: int
    replica_dp: int
    pp: int


def rank_coordinates(parallelism: Parallelism, rank: int) -> RankCoordinates:
    """Megatron's order: tensor parallel fastest, then context, data, pipeline."""
    inner, tp = divmod(rank, parallelism.tp)
    return RankCoordinates(
        tp=tp,
        cp=inner % parallelism.cp,
        ep=inner % parallelism.ep,
        replica_dp=inner // parallelism.cp % parallelism.replica_dp,
        pp=inner // (parallelism.cp * parallelism.replica_dp),
    )


def ranks_per_replica(parallelism: Parallelism) -> int:
    """TP x PP x CP x the data parallelism inside the replica."""
    return parallelism.tp * parallelism.pp * parallelism.cp * parallelism.replica_dp


def replica_count(spec: TrainSpec) -> int:
    """Number of data-parallel replicas asked for (dp, or derived from the devices)."""
    if spec.parallelism.dp != "auto":
        return spec.parallelism.dp
    devices = spec.resources.nodes * spec.resources.gpus_per_node
    return devices // ranks_per_replica(spec.parallelism)


def max_contributors(spec: TrainSpec) -> int | None:
    """How many replicas compute at most; None: all that hold the state."""
    return spec.resources.min_replicas if spec.training.batch_mode == "spares" else None


def contributing_devices(spec: TrainSpec) -> int:
    """Devices that compute at full strength: of the replicas asked for all, or those that do not
    stand by, in the layout asked for. Devices of the nodes that make up no replica count for nothing."""
    replicas = replica_count(spec)
    return min(replicas, max_contributors(spec) or replicas) * ranks_per_replica(spec.parallelism)


def micro_batch_count(spec: TrainSpec) -> int:
    """Micro-batches of one global batch, shared out among the contributors."""
    return spec.training.global_batch // spec.training.micro_batch
