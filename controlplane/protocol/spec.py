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
    """`name` is an RFC 1035 label (<= 63), unique among a project's live jobs."""

    name: str
    project: str = "default"
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class Spares(_Spec):
    """`gpus` devices kept free for this job; `warm` starts their rank hosts ahead."""

    gpus: int = 0
    warm: bool = True


class Resources(_Spec):
    """nodes x gpus_per_node devices, of which `min_replicas` replicas must survive
    for training to go on. `gpu_type` None means any."""

    nodes: int
    gpus_per_node: int
    min_replicas: int = 1
    gpu_type: str | None = None
    spares: Spares = Spares()


class Parallelism(_Spec):
    """Layout inside one replica. `dp` is the number of replicas; "auto" derives it
    as nodes * gpus_per_node / (tp * pp * cp)."""

    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    dp: int | Literal["auto"] = "auto"


class Model(_Spec):
    """A Megatron-core GPT. `sequence_length` and `vocab_size` in tokens."""

    layers: int = 4
    hidden: int = 64
    heads: int = 4
    kv_heads: int | None = None
    sequence_length: int = 64
    vocab_size: int = 256


class Training(_Spec):
    """`global_batch` and `micro_batch` in samples; `steps` optimizer steps.
    `data` is a file of text (bytes are tokens); None means the shipped text.
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
    hash_every_steps: int = 1
    step_delay_s: float = 0.0


class EmergencyCheckpoint(_Spec):
    """An emergency save happens only if at least `min_gap_ratio` of the interval has
    passed since the last one, and never twice within `cooldown_s`."""

    min_gap_ratio: float = 0.25
    cooldown_s: float = 60.0
    deadline_s: float = 60.0


class Checkpoint(_Spec):
    """`dir` None means a directory the control plane chooses."""

    dir: str | None = None
    interval_steps: int = 50
    keep: int = 3
    format: Literal["torch_dist"] = "torch_dist"
    asynchronous: bool = msgspec.field(default=True, name="async")
    emergency: EmergencyCheckpoint = EmergencyCheckpoint()


class RiskTrigger(_Spec):
    """`threshold` in score units (0..1); one that cannot be reached is refused."""

    threshold: float = 0.30
    hysteresis_s: float = 30.0
    window_samples: int = 60


class Timeouts(_Spec):
    """Section timeouts. "auto" learns observed max x 5 with a floor."""

    setup_s: float = 600.0
    step_s: float | Literal["auto"] = "auto"
    step_floor_s: float = 5.0
    checkpoint_s: float = 420.0
    out_of_section_s: float = 300.0
    silence_s: float = 2.0


class Budget(_Spec):
    """Restarts of any kind over the job, per window, and without progress."""

    max_restarts: int = 50
    restarts_per_window: int = 10
    window_s: float = 3600.0
    max_no_progress: int = 3


class Resiliency(_Spec):
    """How far automation may go for this job, and when it acts."""

    mode: Mode = Mode.ENFORCE
    risk: RiskTrigger = RiskTrigger()
    timeouts: Timeouts = Timeouts()
    budget: Budget = Budget()
    allow_relayout: bool = True
    allow_faults: bool = False


class Scheduling(_Spec):
    """Higher `priority` runs first; `preempt_grace_s` between SIGTERM and SIGKILL."""

    priority: int = 500
    preemptible: bool = True
    preempt_grace_s: float = 60.0


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


def ranks_per_replica(parallelism: Parallelism) -> int:
    """TP x PP x CP."""
    return parallelism.tp * parallelism.pp * parallelism.cp


def replica_count(spec: TrainSpec) -> int:
    """Number of data-parallel replicas asked for (dp, or derived from the devices)."""
    if spec.parallelism.dp != "auto":
        return spec.parallelism.dp
    devices = spec.resources.nodes * spec.resources.gpus_per_node
    return devices // ranks_per_replica(spec.parallelism)


def micro_batch_count(spec: TrainSpec) -> int:
    """Micro-batches of one global batch, shared out among the contributors."""
    return spec.training.global_batch // spec.training.micro_batch
