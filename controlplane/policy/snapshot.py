"""What `decide` sees: one job and the part of the fleet that matters to it.

Built by `controlplane.recovery.load` from rows, by the simulator from its world, and by
replay from a stored decision. All times are server Unix seconds (`_s`); ages are
`now_s - x_s`. Tuples are sorted by id or index, so equal worlds give equal snapshots.
"""

import msgspec

from controlplane.protocol.membership import Flush, Install, View
from controlplane.protocol.spec import Parallelism, TrainSpec
from controlplane.protocol.states import (
    AttemptState,
    CheckpointState,
    JobState,
    NodeState,
    ReplicaState,
)


class _Fact(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of everything in a snapshot."""


class Placement(_Fact):
    """Rank `rank` of a replica on device `device_index` of `node_id`."""

    rank: int
    node_id: str
    device_index: int


class ReplicaFact(_Fact):
    """The newest incarnation of one replica slot.

    `joined_ranks` said hello and are parked or training; `exited_ranks` are proved
    gone; `in_view` member of the current view; `contributing` as of the last install
    or catch-up; `committed_step` newest reported; `state_since_s` of `state`.
    `standby`: its last catch-up ended in standing by, and no install has promoted it since.
    `waiting` True: all its ranks sit in a phase that waits for others (exchange, view
    change), so it is no culprit. `stopped` True: every process is proved gone or
    its stop command succeeded. `failed_starts` counts incarnations in a row that ended
    before they contributed (0 when the loader does not count them). `ordered_out`: who
    ordered its eviction, and why (empty: nobody), at server time `ordered_s` (None: not
    kept). `refused`: a node would not start it because of its checks; `refused_starts`
    counts those among `failed_starts`.
    """

    index: int
    incarnation: int
    state: ReplicaState
    state_since_s: float
    world_size: int
    placements: tuple[Placement, ...] = ()
    joined_ranks: int = 0
    exited_ranks: int = 0
    in_view: bool = False
    contributing: bool = False
    standby: bool = False
    committed_step: int = 0
    waiting: bool = False
    stopped: bool = False
    failed_starts: int = 0
    ordered_out: str = ""
    ordered_s: float | None = None
    refused: bool = False
    refused_starts: int = 0


class SignalFact(_Fact):
    """An open finding of a detector. kinds: rank_exit, rank_overdue, node_silent,
    outer_error, device_risk, xid, device_lost, setup_timeout, nan_loss, straggler, numerics.
    `value` and `threshold` in the kind's own unit (seconds, score, exit code)."""

    id: str
    kind: str
    seen_s: float
    replica: int | None = None
    incarnation: int | None = None
    rank: int | None = None
    node_id: str | None = None
    device_index: int | None = None
    value: float = 0.0
    threshold: float = 0.0
    evidence: dict[str, str | int | float | bool | None] = {}
    incident_id: str | None = None


class DeviceFact(_Fact):
    """`free`: not held and not reserved. `held`: a process that is not proved gone is on
    it (an older incarnation whose end nobody has confirmed holds its device too); it
    tells a reserved device that can be used from one that cannot. `risk` 0..1; None: no
    samples yet. `memory_bytes` in all; None: its driver does not say."""

    index: int
    uuid: str
    free: bool
    healthy: bool = True
    held: bool = False
    risk: float | None = None
    memory_bytes: int | None = None


class NodeFact(_Fact):
    """`silent_s` since the last frame by the sentinel's clock; None: never seen or our
    own side was blind. `warm` True: this job's rank host is already up there.
    `reserved_for` the job whose spare it is. `unhealthy`: which of its agent's checks fail,
    "" for none; nothing is started there until they pass. `segment`: nodes of the same one are
    near each other; "": the node is near none."""

    id: str
    name: str
    state: NodeState
    connected: bool
    silent_s: float | None
    devices: tuple[DeviceFact, ...]
    warm: bool = False
    reserved_for: str | None = None
    unhealthy: str = ""
    segment: str = ""


class CheckpointFact(_Fact):
    """A checkpoint on the ladder. `layout` it was saved with. `holders` of one on the nodes'
    own disks: for each shard the ids of the nodes that hold it; None: it lies where every
    node can read it."""

    id: str
    step: int
    path: str
    state: CheckpointState
    epoch: int
    committed_s: float
    layout: Parallelism
    holders: tuple[tuple[str, ...], ...] | None = None


class AttemptFact(_Fact):
    """The current attempt. `replicas` slots of `layout`. `end_code`: the reason code of the
    decision that ended it (empty: it lives, or ended before such codes were kept).
    `refused_attempts` in a row, it included, ended because nodes would start nothing of them."""

    number: int
    state: AttemptState
    layout: Parallelism
    replicas: int
    started_s: float
    resume_step: int = 0
    end_code: str = ""
    refused_attempts: int = 0


class SaveFact(_Fact):
    """What is known about saves. `interval_s` is the measured time between scheduled
    saves (step time x interval_steps). None: never happened or not measured."""

    last_started_s: float | None = None
    last_committed_s: float | None = None
    interval_s: float | None = None
    last_emergency_s: float | None = None
    in_progress: bool = False


class BudgetFact(_Fact):
    """What the restart ledger (policy.budget) has charged, over all rungs.
    `no_progress_cycles`: ended attempts in a row that brought no newer checkpoint; none as
    soon as the one that lives has brought one. What ended unpaid (plan.UNPAID) is not counted."""

    restarts_total: int = 0
    restarts_in_window: int = 0
    evictions_total: int = 0
    no_progress_cycles: int = 0


class LearnedTimes(_Fact):
    """Measured on this job, seconds. None: not enough data. `setup_limit_s`: how long a setup
    may last by what was learned, while one is under way."""

    step_s: float | None = None
    step_max_s: float | None = None
    save_s: float | None = None
    save_p95_s: float | None = None
    start_replica_s: float | None = None
    catch_up_s: float | None = None
    setup_limit_s: float | None = None


class JobFact(_Fact):
    """The job. `epoch` is its fencing token; `committed_step` the newest seen.
    `cancel_requested` by the user. `progressed_s` server time at which `committed_step`
    last rose; None: not measured. A step commits only with every member of its view, so
    progress proves that all of them live, whatever the control plane sees of them.
    `incident_opened_s` of the job's open incident; None: there is none. `training_s`:
    seconds of all its committed steps, and `faults_fired` of its own schedule so far;
    None where the job has no schedule of faults. `looks_taken` on schedule so far, the newest
    at `looked_s` (None: none yet)."""

    id: str
    name: str
    state: JobState
    spec: TrainSpec
    epoch: int
    committed_step: int
    created_s: float
    cancel_requested: bool = False
    finished: bool = False
    progressed_s: float | None = None
    incident_opened_s: float | None = None
    training_s: float | None = None
    faults_fired: int = 0
    looked_s: float | None = None
    looks_taken: int = 0


class JobSnapshot(_Fact):
    """Everything `decide` may look at.

    `blind` True: our own side was unhealthy lately, or the server has just started
    (first grace window), so silence is no evidence. `flushes` are those of `view`'s
    epoch; `install` is None until everybody has flushed; it was ordered at `installed_s`
    (server time; None: not known). `open_incidents` counts
    incidents of other jobs too (storm governor); `acts_last_window` the destructive
    acts of the fleet in the governor's window; `suspect_devices` are those whose finding
    (silent, lost, failing) opened within it, of `fleet_devices`. `reissued_views` counts views in a row
    announced with unchanged members since a step was last committed.
    """

    now_s: float
    blind: bool
    job: JobFact
    attempt: AttemptFact | None
    replicas: tuple[ReplicaFact, ...] = ()
    view: View | None = None
    view_since_s: float = 0.0
    install: Install | None = None
    installed_s: float | None = None
    flushes: tuple[Flush, ...] = ()
    signals: tuple[SignalFact, ...] = ()
    nodes: tuple[NodeFact, ...] = ()
    checkpoints: tuple[CheckpointFact, ...] = ()
    saves: SaveFact = SaveFact()
    budget: BudgetFact = BudgetFact()
    learned: LearnedTimes = LearnedTimes()
    acts_last_window: int = 0
    reissued_views: int = 0
    fleet_devices: int = 0
    suspect_devices: int = 0
