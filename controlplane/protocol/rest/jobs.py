"""Jobs, attempts, replicas, ranks, steps and checkpoints."""

from typing import Any, Literal

from controlplane.protocol.rest import words
from controlplane.protocol.rest.base import Answer, FieldError, Json
from controlplane.protocol.rest.engines import JobEngine
from controlplane.protocol.rest.recovery import Certificate, Signal


class NotHeard(Answer, frozen=True, kw_only=True):
    """A node of a job that is not heard `since` then. `commits`: steps were committed since, with its
    ranks; `left_out`: the others go on without them."""

    job_id: str
    node_id: str
    node_name: str
    since: str
    commits: bool
    left_out: bool


class Wall(Answer, frozen=True, kw_only=True):
    """Seconds since the first attempt by what they were; `wall_s` is the sum of the others. `productive_s` over
    `wall_s` is the effective time; `degraded_s`: slower steps than undisturbed ones at full strength; `lost_s`: steps
    trained again. Below 0 is what was faster than an undisturbed step."""

    wall_s: float
    productive_s: float
    degraded_s: float
    stalled_s: float
    recovery_s: float
    lost_s: float
    checkpoint_s: float


class Job(Answer, frozen=True, kw_only=True):
    """A training job: what is wanted and where it stands. `not_heard`: its nodes that are not.
    `ettr_basis`: whether the effective time rests on full strength as it was seen, or why there is none.
    `last_checkpoint_step`: of the newest that may be resumed from, `last_checkpoint_local`: with the nodes alone, in
    their memory or on their disks; `stored_checkpoint_step`: of the newest in storage, null once the job has ended.
    `checkpoint_age_s`: since the newest good one in storage was committed; of a job without one since its first attempt
    began; null before that and once the job has ended. Prometheus has it as `holdfast_checkpoint_age_seconds`.
    `learned_step_s`: what decisions take a step to last, the mean of its newest 50 in which no membership changed.
    `work_at_risk_s`: training that is to be repeated if everything stops now, the steps since that
    checkpoint, each of `learned_step_s`; decisions price it alike. `work_at_risk_stored_s`: the same where the nodes go
    too, since that in storage. All null before 3 such steps.
    `restarts`: attempts after the first, but for those that resumed the job after one of `preemptions`.
    `wall`: where its wall time went; null without an effective time, and of a job that trained before it was kept."""

    id: str
    name: str
    project: str
    owner: str
    state: words.JobState
    state_reason: str
    state_since: str
    priority: int
    epoch: int
    committed_step: int
    total_steps: int
    progress: float
    step_time_s: float | None
    loss: float | None
    eta_s: float | None
    attempt: int | None
    restarts: int
    preemptions: int
    evictions: int
    replicas_active: int
    replicas_total: int
    last_checkpoint_step: int | None
    checkpoint_age_s: float | None
    work_at_risk_s: float | None
    ettr: float | None
    undisturbed_step_s: float | None
    productivity: float | None
    open_incident_id: str | None
    created_at: str
    finished_at: str | None
    replicas_asked: int = 0
    ettr_basis: words.EttrBasis = "observed"
    last_checkpoint_local: bool = False
    stored_checkpoint_step: int | None = None
    work_at_risk_stored_s: float | None = None
    learned_step_s: float | None = None
    wall: Wall | None = None
    not_heard: list[NotHeard] = []
    capabilities: words.Capabilities = {}


class Layout(Answer, frozen=True, kw_only=True):
    """TP x PP x CP x `replica_dp` ranks a replica, `dp` replicas."""

    tp: int
    pp: int
    vp: int
    cp: int
    ep: int
    replica_dp: int
    dp: int | str


class Attempt(Answer, frozen=True, kw_only=True):
    """One launch of a job with one layout. `certificate`: of one that continued after a preemption, that no step was
    lost by it and none trained otherwise (null: it did not follow one)."""

    number: int
    state: words.AttemptState
    layout: Layout
    replicas: int
    resume_step: int
    started_at: str
    ended_at: str | None
    end_reason: str
    certificate: Certificate | None = None


class Spare(Answer, frozen=True, kw_only=True):
    """A device kept free for a job."""

    node_id: str
    node_name: str
    device_index: int


class Unheard(NotHeard, frozen=True, kw_only=True):
    """The same with what moves: `silent_s` now, and `acts_at`: when its ranks are started elsewhere, if
    nothing is heard of them till then (None: nothing is concluded from silence now)."""

    silent_s: float
    acts_at: str | None
    sentence: str


class JobDetail(Job, frozen=True, kw_only=True):
    """A job with its spec; `why`: why it is in this state and what is expected next. `unheard`: its
    nodes that are not heard, and what is concluded from that. `engine`: where its nodes come from; None: from no
    scheduler that is asked. `etag`: for If-Match."""

    spec: Json
    layout: Layout | None
    attempts: list[Attempt]
    spares: list[Spare]
    why: str
    as_of_seq: int
    unheard: list[Unheard] = []
    etag: str = ""
    engine: JobEngine | None = None


class DryRun(Answer, frozen=True, kw_only=True):
    """What a submit would do. `defaults`: pointers that were filled in. `waits_for`: what is missing
    for a start now, as the decision to wait would say it; "" where it would start, or has faults."""

    spec: Json | None
    defaults: list[str]
    placement: list[Any] | None
    waits_for: str
    faults: list[FieldError]


class RankLive(Answer, frozen=True, kw_only=True):
    """What a rank does now. Ages in seconds at `at`; `phase_since_s` the server's Unix time at which
    its phase began."""

    section: str
    phase: str
    step: int
    phase_age_s: float
    silent_s: float
    phase_since_s: float
    at: str | float


class RankSpeed(Answer, frozen=True, kw_only=True):
    """How fast a rank works. Scores 0..1, 1 as fast as the median of its stage (`relative`)
    or as its own best (`individual`), null where there is nothing to compare with.
    `straggler`: which score was below its threshold in two windows in a row, else empty;
    `cause`: compute, data, or length (its micro-batches differ by as much among themselves).
    Medians: compute and data of one micro-batch, exchange and optimizer of one step; `spread`:
    of its micro-batches, ninth decile less first over the median."""

    relative: float | None
    individual: float | None
    straggler: str
    cause: str
    compute_s: float
    data_s: float
    exchange_s: float
    optimizer_s: float
    spread: float = 0.0
    steps: int
    at: str


class RankScore(RankSpeed, frozen=True, kw_only=True):
    """A rank in the list of best and worst. `late_s`: by how much it holds a step up."""

    replica: int
    incarnation: int
    rank: int
    pp: int
    node_name: str
    device_index: int
    late_s: float | None


class StageLoad(Answer, frozen=True, kw_only=True):
    """Median work on one micro-batch of a pipeline stage; `ratio` to the other stages."""

    stage: int
    work_s: float
    ratio: float


class JobSpeed(Answer, frozen=True, kw_only=True):
    """Straggler scores of the ranks that train now, scored every `interval_s`. `advice`:
    what would help where no rank is to blame, else empty."""

    interval_s: float
    relative_threshold: float
    individual_threshold: float
    scored_at: str | None
    ranks: int
    best: list[RankScore]
    worst: list[RankScore]
    stages: list[StageLoad]
    advice: str


class SectionTimeout(Answer, frozen=True, kw_only=True):
    """How long a section may last. `source`: given, learned or default (too little seen yet);
    `samples` it was learned from, `longest_s` of them."""

    section: str
    value_s: float
    source: str
    samples: int
    longest_s: float | None
    why: str


class RankDeterminism(Answer, frozen=True, kw_only=True):
    """Steps that a rank computed twice, and how many agreed bit for bit."""

    attempt: int
    replica: int
    incarnation: int
    rank: int
    steps: int
    identical_steps: int
    largest_difference: float
    at: str


class JobNumerics(Answer, frozen=True, kw_only=True):
    """Refused results of a job, newest first, and its determinism report. `mode`: disabled,
    validate_results or report_determinism_stats."""

    mode: str
    findings: list[Signal]
    steps: int
    identical_steps: int
    ranks: list[RankDeterminism]


class Rank(Answer, frozen=True, kw_only=True):
    """One process of one incarnation of a replica."""

    id: str
    replica: int
    incarnation: int
    rank: int
    global_rank: int
    tp: int
    pp: int
    cp: int
    ep: int
    replica_dp: int
    node_id: str
    node_name: str
    device_index: int
    device_uuid: str
    state: words.RankState
    pid: int | None
    started_at: str | None
    joined_at: str | None
    exit_code: int | None
    exit_signal: int | None
    live: RankLive | None = None
    speed: RankSpeed | None = None
    job_id: str | None = None
    job_name: str | None = None
    capabilities: words.Capabilities = {}


class Replica(Answer, frozen=True, kw_only=True):
    """One incarnation of one data-parallel copy; `id` is job/attempt/index/incarnation."""

    id: str
    attempt: int
    index: int
    incarnation: int
    state: words.ReplicaState
    state_since: str
    contributing: bool
    committed_step: int
    caught_up: words.Scalars | None
    current: bool
    created_at: str = ""
    ranks: list[Rank]
    capabilities: words.Capabilities = {}


class Step(Answer, frozen=True, kw_only=True):
    """One committed step, or so many `steps` up to it that were rolled up (HOLDFAST_STEP_RETENTION_DAYS): figures are
    their means, `stall_s` their sum, `contributors` the fewest. `samples_exact`: each micro-batch was counted exactly
    once."""

    attempt: int
    step: int
    epoch: int
    at: str
    loss: float | None
    grad_norm: float | None
    step_time_s: float | None
    exchange_s: float | None
    stall_s: float
    tokens: int
    contributors: int
    samples_exact: bool
    hashes_equal: bool | None
    steps: int = 1


class Checkpoint(Answer, frozen=True, kw_only=True):
    """A checkpoint on the trust ladder."""

    id: str
    job_id: str
    attempt: int
    step: int
    epoch: int
    path: str
    kind: str
    state: words.CheckpointState
    state_reason: str
    bytes: int
    blocking_s: float | None
    total_s: float | None
    started_at: str
    committed_at: str | None


class Log(Answer, frozen=True, kw_only=True):
    """The end of a rank's output, as untrusted text, and whose: `source` is exit (kept when it
    ended), live (read at `at` while it ran) or none (nothing was kept, or not yet asked for);
    `state` of that life now."""

    text: str
    truncated: bool
    attempt: int
    incarnation: int
    replica: int
    rank: int
    state: words.RankState
    source: Literal["exit", "live", "none"]
    at: str | None = None


class SpecBody(Answer, frozen=True, kw_only=True):
    """A job spec; its own schema is `protocol.spec.JobSpec`."""

    metadata: Json
    spec: Json
    kind: str = "TrainJob"
