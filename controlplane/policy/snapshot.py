"""What `decide` sees: one job and the part of the fleet that matters to it.

Built by `controlplane.changes.assembly` from what loaders hand over, and by replay from a stored decision. All times
are server Unix seconds (`_s`); ages are `now_s - x_s`. Tuples are sorted, so equal worlds give equal snapshots.

Look-ups (`by_`) are worked out when first asked for, once for each snapshot; no rule walks the tuples (ADR 0030).
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from typing import TypeVar

import msgspec

from controlplane.policy.asked import Elsewhere
from controlplane.policy.charged import BudgetFact as BudgetFact
from controlplane.policy.disruption_counts import DisruptionCounts
from controlplane.policy.known_end import KnownEnd
from controlplane.policy.queue.place import QueuePlace
from controlplane.policy.recommendation import Recommendation
from controlplane.policy.request_facts import RequestFact
from controlplane.policy.reserved import Reservation
from controlplane.protocol.bounds import JobEnd
from controlplane.protocol.membership import Flush, Install, MemberRole, View
from controlplane.protocol.spec import Parallelism, TrainSpec
from controlplane.protocol.states import AttemptState, CheckpointState, JobState, NodeState, ReplicaState

K = TypeVar("K")
_NODE_ID, _DEVICE_INDEX = attrgetter("node_id"), attrgetter("device_index")
LIVE_REPLICA = frozenset(
    {ReplicaState.FORMING, ReplicaState.ACTIVE, ReplicaState.SPARE, ReplicaState.SUSPECT, ReplicaState.CATCHING_UP}
)


class _Fact(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of everything in a snapshot."""


class Placement(_Fact, gc=False):
    """Rank `rank` of a replica on device `device_index` of `node_id`."""

    rank: int
    node_id: str
    device_index: int


class ReplicaFact(_Fact, dict=True):
    """The newest incarnation of one replica slot. `joined_ranks` said hello; `exited_ranks` are proved gone; `in_view`
    member of the current view; `contributing` as of the last install or catch-up; `committed_step` newest reported;
    `state_since_s` of `state`. `standby`: its last catch-up ended in standing by, and no install has promoted it since.
    `waiting` True: all its ranks sit in a phase that waits for others (exchange, view change), so it is no culprit;
    `saving` True: one of them is in a save; `silent_s` the longest that one of them has said nothing to its agent
    (None: not known), `silent_ranks` those that have said nothing for seconds while another speaks. `working_since_s`:
    since when every rank is in the phase in which it is, all in a step and one at least at work, or mute (None: not so,
    or not known). `times_out`: how often it was left out in this life without a long time between (`policy.flaps`),
    `out_s`: server time of the last (None: never). `stopped` True: every process is proved gone or its stop command
    succeeded; `released`: those ranks that hold no device any more, where some do. `failed_starts` counts incarnations
    in a row that ended before they contributed (0 when the loader does not count them). `ordered_out`: who ordered its
    eviction, and why (empty: nobody), at server time `ordered_s` (None: not kept). `refused`: a node would not start it
    because of its checks; `refused_starts` counts those among `failed_starts`. `relieved`: why another one is to take
    its place while it trains on (empty: nobody is)."""

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
    saving: bool = False
    silent_s: float | None = None
    silent_ranks: tuple[int, ...] = ()
    working_since_s: float | None = None
    times_out: int = 0
    out_s: float | None = None
    stopped: bool = False
    released: tuple[int, ...] = ()
    failed_starts: int = 0
    ordered_out: str = ""
    ordered_s: float | None = None
    refused: bool = False
    refused_starts: int = 0
    relieved: str = ""

    @cached_property
    def node_ids(self) -> tuple[str, ...]:
        """Of the nodes it runs on, sorted."""
        return tuple(sorted(set(map(_NODE_ID, self.placements))))

    @cached_property
    def by_node(self) -> Mapping[str, Sequence[int]]:
        """Its devices on each of its nodes, by rank."""
        found: dict[str, list[int]] = {}
        for node_id, here in groupby(self.placements, key=_NODE_ID):
            found.setdefault(node_id, []).extend(map(_DEVICE_INDEX, here))
        return found


class SignalFact(_Fact):
    """An open finding of a detector, of a kind in `policy.signals`. `value` and `threshold` in the kind's own unit
    (seconds, score, exit code). `seen_s`: when it showed itself, by an age that its node counted; `came_s`: when it
    came, by the server alone (None: not known). `renewed_s`: when last found so (None: not since `seen_s`). `of_fleet`:
    on hardware under no living replica, for the fleet's own pass."""

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
    of_fleet: bool = False
    renewed_s: float | None = None
    came_s: float | None = None


class DeviceFact(_Fact, gc=False):
    """`free`: not held and not reserved. `held`: a process that is not proved gone is on it (an older incarnation whose
    end nobody has confirmed holds its device too); it tells a reserved device that can be used from one that cannot.
    `risk` 0..1; None: no samples yet. `memory_bytes` in all; None: its driver does not say. `model` as its driver names
    it, "" where it does not. `reset_wanted_s`: since when it waits for a reset; None: it does not."""

    index: int
    uuid: str
    free: bool
    healthy: bool = True
    held: bool = False
    risk: float | None = None
    memory_bytes: int | None = None
    model: str = ""
    reset_wanted_s: float | None = None


class NodeFact(_Fact):
    """`silent_s` since the last frame by the sentinel's clock; None: never seen or our own side was blind. `warm` True:
    this job's rank host is already up there. `warmed_s`, `warm_asked_s`: server times at which that was last done and
    last asked for as a spare (None: never). `reserved_for` the job whose spare it is. `unhealthy`: which of its agent's
    checks fail, "" for none; nothing is started there until they pass. `segment`: nodes of the same one are near each
    other. `end`: when it is known to leave, or to be back (`policy.leaving`; None: nobody knows); `reservations`."""

    id: str
    name: str
    state: NodeState
    connected: bool
    silent_s: float | None
    devices: tuple[DeviceFact, ...]
    warm: bool = False
    warmed_s: float | None = None
    warm_asked_s: float | None = None
    reserved_for: str | None = None
    unhealthy: str = ""
    segment: str = ""
    end: KnownEnd | None = None
    reservations: tuple[Reservation, ...] = ()


class BarFact(_Fact):
    """Device (None: whole node) on which a rank of this job ended in a way that accuses the place (policy.bars), with
    exit code or negative signal `code`, at `since_s`."""

    node_id: str
    code: int
    since_s: float
    device_index: int | None = None


class CheckpointFact(_Fact):
    """A checkpoint on the ladder. `layout` it was saved with. `holders` of one on the nodes' own disks: for each shard
    the ids of the nodes that hold it; None: it lies where every node can read it. `doubted`: its ranks could not load
    it, and it is being read back. `begun_at`: the step with which the attempt that saved it began. `suspect_step`: that
    of a save trained from it that went bad (0: none)."""

    id: str
    step: int
    path: str
    state: CheckpointState
    epoch: int
    committed_s: float
    layout: Parallelism
    holders: tuple[tuple[str, ...], ...] | None = None
    doubted: bool = False
    begun_at: int = 0
    suspect_step: int = 0


class AttemptFact(_Fact):
    """The current attempt. `replicas` slots of `layout`, of which `yielded` do not run for now, as others have their
    devices. `end_code`: the reason code of the decision that ended it (empty: it lives, or none was kept).
    `refused_attempts` in a row, it included, ended as nodes would start nothing of them. At most `max_contributors`
    compute, by what its ranks were told; None: begun by a release that told them only of a limit in the spec."""

    number: int
    state: AttemptState
    layout: Parallelism
    replicas: int
    started_s: float
    resume_step: int = 0
    end_code: str = ""
    refused_attempts: int = 0
    max_contributors: int | None = None
    yielded: int = 0


class SaveFact(_Fact):
    """Of saves; `interval_s`: between scheduled ones. None: never happened or not measured."""

    last_started_s: float | None = None
    last_committed_s: float | None = None
    interval_s: float | None = None
    last_emergency_s: float | None = None
    in_progress: bool = False


class LearnedTimes(_Fact):
    """Measured on this job; None: not enough data. `setup_limit_s` by what was learned, during a setup."""

    step_s: float | None = None
    step_max_s: float | None = None
    save_s: float | None = None
    save_p95_s: float | None = None
    start_replica_s: float | None = None
    catch_up_s: float | None = None
    setup_limit_s: float | None = None


class AheadFact(_Fact):
    """What agents were told of a job by a server whose database was newer. `attempt`: the newest they have
    started, `epoch` of it; `incarnations`: the newest by replica, of the current attempt; `end`: "" if none."""

    attempt: int = 0
    epoch: int = 0
    incarnations: dict[int, int] = {}
    end: JobEnd = ""
    node: str = ""


class JobFact(_Fact):
    """The job. `epoch` is its fencing token; `committed_step` the newest seen. `cancel_requested` by the user.
    `begun_s`: when its first attempt began (None: none has, or it has no time limit). `progressed_s`: when
    `committed_step` last rose (None: not measured). A step commits only with every member of its view, so progress
    proves that all of them live. `incident_opened_s` of the job's open incident; None: there is none. `training_s`:
    seconds of all its committed steps, and `faults_fired` of its own schedule so far; None where the job has no
    schedule of faults. `looks_taken` on schedule so far, the newest at `looked_s` (None: none yet). `ahead`: see
    `AheadFact`. `end_held_until_s`: of a job that is `finished`, until when a replica that computes steps again is
    waited for; None: nobody is. `past_lives`: the newest incarnation of each slot that earlier attempts had, and this
    one has not. `env_opens`: the values of its `env`, which rest sealed, open with a key of this server. `parked_by`:
    who preempted it, and why, until somebody resumes it; ""."""

    id: str
    name: str
    state: JobState
    spec: TrainSpec
    epoch: int
    committed_step: int
    created_s: float
    cancel_requested: bool = False
    finished: bool = False
    begun_s: float | None = None
    progressed_s: float | None = None
    incident_opened_s: float | None = None
    training_s: float | None = None
    faults_fired: int = 0
    looked_s: float | None = None
    looks_taken: int = 0
    ahead: AheadFact = AheadFact()
    end_held_until_s: float | None = None
    past_lives: dict[int, int] = {}
    env_opens: bool = True
    parked_by: str = ""
    project: str = ""


class JobSnapshot(_Fact, dict=True):
    """Everything `decide` may look at. `blind` True: our own side was unhealthy lately, or the server has just started
    (first grace window), so silence is no evidence. `flushes` are those of `view`'s epoch; `install` is None until
    everybody has flushed; it was ordered at `installed_s` (server time; None: not known). `acts_last_window` counts the
    destructive acts of the fleet in the budget's window, `disruption` those of an hour; `suspect_devices` are those
    whose finding (silent, lost, failing) opened within it, of `fleet_devices`, and `suspect_nodes` their nodes (None:
    not counted by node). The server's clock was last set by `clock_step_s` seconds, to `clock_set_s` (None: it was not,
    as far as is known). `reissued_views` counts views in a row announced with unchanged members since a step was last
    committed. `nodes` are those that matter to the job; of the others `elsewhere` tells what was asked (None: `nodes`
    are all). `queue`: where a pending job stands (None: it is the only one that waits, or does not). `recommended`:
    what waits for people."""

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
    bars: tuple[BarFact, ...] = ()
    checkpoints: tuple[CheckpointFact, ...] = ()
    saves: SaveFact = SaveFact()
    budget: BudgetFact = BudgetFact()
    learned: LearnedTimes = LearnedTimes()
    acts_last_window: int = 0
    reissued_views: int = 0
    fleet_devices: int = 0
    suspect_devices: int = 0
    suspect_nodes: tuple[str, ...] | None = None
    clock_set_s: float | None = None
    clock_step_s: float = 0.0
    elsewhere: Elsewhere | None = None
    requests: tuple[RequestFact, ...] = ()
    queue: QueuePlace | None = None
    recommended: tuple[Recommendation, ...] = ()
    disruption: DisruptionCounts = DisruptionCounts()

    @cached_property
    def segments(self) -> Mapping[str, str]:
        """Of each node of `nodes` and each suspect one, by id; "" for none."""
        more = self.elsewhere.segments if self.elsewhere is not None else {}
        return more | {node.id: node.segment for node in self.nodes}

    @cached_property
    def divided(self) -> bool:
        """The nodes of the fleet are not all in one segment."""
        return self.elsewhere.divided if self.elsewhere is not None else len(set(self.segments.values())) > 1

    @cached_property
    def node_by_id(self) -> Mapping[str, NodeFact]:
        """Every node of `nodes`."""
        return {node.id: node for node in self.nodes}

    @cached_property
    def replica_by_index(self) -> Mapping[int, ReplicaFact]:
        """Every replica of `replicas`."""
        return {replica.index: replica for replica in self.replicas}

    @cached_property
    def signals_by_kind(self) -> Mapping[str, tuple[SignalFact, ...]]:
        """In the order of `signals`; kinds without one are not in it."""
        return _grouped(self.signals, lambda signal: signal.kind)

    @cached_property
    def signals_by_replica(self) -> Mapping[tuple[str, int | None], tuple[SignalFact, ...]]:
        """By kind and replica index, in the order of `signals`."""
        return _grouped(self.signals, lambda signal: (signal.kind, signal.replica))

    @cached_property
    def signals_by_node(self) -> Mapping[str | None, tuple[SignalFact, ...]]:
        """By node id, in the order of `signals`."""
        return _grouped(self.signals, lambda signal: signal.node_id)

    @cached_property
    def role_by_member(self) -> Mapping[tuple[int, int], MemberRole]:
        """Of the current attempt's view, by replica index and incarnation; empty without one."""
        if self.view is None or self.attempt is None or self.view.attempt != self.attempt.number:
            return {}
        return {(member.replica, member.incarnation): member.role for member in self.view.members}

    @cached_property
    def installed_role(self) -> Mapping[int, MemberRole]:
        """What the install of the current view made of each replica, by index; empty before it has come."""
        told, view = self.install, self.view
        if told is None or view is None or not self.role_by_member or told.epoch != view.epoch:
            return {}
        waiting = dict.fromkeys(told.standbys, MemberRole.STANDBY)
        return dict.fromkeys(told.contributors, MemberRole.CONTRIBUTOR) | waiting

    @cached_property
    def live(self) -> tuple[ReplicaFact, ...]:
        """Replicas whose newest incarnation is not evicted, by index."""
        return tuple(replica for replica in self.replicas if replica.state in LIVE_REPLICA)


def _grouped(signals: tuple[SignalFact, ...], key: Callable[[SignalFact], K]) -> Mapping[K, tuple[SignalFact, ...]]:
    found: dict[K, list[SignalFact]] = defaultdict(list)
    for signal in signals:
        found[key(signal)].append(signal)
    return {name: tuple(own) for name, own in found.items()}
