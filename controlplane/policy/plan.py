"""What `decide` answers: decisions, each with its reason, evidence, alternatives and
typed actions. `controlplane.changes` says what each one changes; `controlplane.recovery.apply` has it
carried out in one transaction."""

import hashlib

import msgspec

from controlplane.policy.disruption_counts import Act
from controlplane.policy.snapshot import Placement
from controlplane.protocol.diagnostics import HANG
from controlplane.protocol.membership import Install, View
from controlplane.protocol.spec import Parallelism
from controlplane.protocol.states import (
    UNFIT,
    IncidentOutcome,
    JobState,
    Mode,
    NodeState,
    ReplicaState,
    RequestState,
)

Scalar = str | int | float | bool | None
ORDERED = "ordered"
"""The reason code of what follows a person's order to evict: no failure, and not charged."""
PREEMPTED = "preempted"
"""The reason code of an end for a job of higher priority, or because a person parked the job."""
GROWS = "room_to_grow"
"""The reason code of a replica that starts because devices are free again: nothing failed, and nothing is charged."""
CAUTION = (Mode.OBSERVE, Mode.RECOMMEND, Mode.ENFORCE)
"""The most careful first."""
KEY_MAX = 200
"""Characters of a key that is stored."""
UNPAID = (ORDERED, UNFIT, PREEMPTED)
"""Reason codes of an end that is charged to no budget, nor is the attempt that follows it: a
person's order, nodes that would start nothing, so that nothing ran, and a preemption."""


class _Action(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="action"):
    """Base of everything a plan can order."""


class PlaceAttempt(_Action, tag="place_attempt"):
    """Begin attempt `number` at fencing epoch `epoch` (above job.epoch and what agents know): one incarnation
    of each replica slot at its placements. `yielded` more slots wait for devices. `spare_nodes` are reserved and
    warmed."""

    number: int
    epoch: int
    layout: Parallelism
    placements: tuple[tuple[Placement, ...], ...]
    resume_path: str | None = None
    resume_step: int = 0
    spare_nodes: tuple[str, ...] = ()
    yielded: int = 0


class AnnounceView(_Action, tag="announce_view"):
    """Persist the view (its epoch = job.epoch + 1), then send it to all its members and
    to the ranks it leaves out."""

    view: View


class SendInstall(_Action, tag="send_install"):
    """Everybody has flushed: let the members go on."""

    install: Install


class StartReplica(_Action, tag="start_replica"):
    """Start the next incarnation of a slot; it joins a view once all its ranks joined."""

    replica: int
    incarnation: int
    placements: tuple[Placement, ...]


class StopReplica(_Action, tag="stop_replica"):
    """End the processes of one incarnation. `grace_s` 0 is SIGKILL of the group."""

    replica: int
    incarnation: int
    grace_s: float


class SetReplicaState(_Action, tag="set_replica_state"):
    """Move a replica in its state table."""

    replica: int
    incarnation: int
    to: ReplicaState


class Relieve(_Action, tag="relieve"):
    """Another replica is to take this one's place while it trains on, for this reason; "": it stays."""

    replica: int
    incarnation: int
    reason: str


class RequestCheckpoint(_Action, tag="request_checkpoint"):
    """Ask for a save at the next step boundary. `kind`: emergency or manual."""

    kind: str


class DemoteCheckpoint(_Action, tag="demote_checkpoint"):
    """Take a checkpoint off the trust ladder: nothing resumes from it any more. `reason` completes
    a sentence."""

    checkpoint_id: str
    reason: str


class SuspectCheckpoint(_Action, tag="suspect_checkpoint"):
    """A save of `step`, trained from this checkpoint, went bad: the next one takes this one along."""

    checkpoint_id: str
    step: int


class GatherStacks(_Action, tag="gather_stacks"):
    """Collect stacks of a replica while the job stands; with `look` "hang" its Flight Recorders too,
    before it is stopped. `replica` -1 (and `incarnation` -1): of every rank of the attempt, but those
    that are being looked at."""

    replica: int
    incarnation: int
    look: str = HANG


class LookAtRanks(_Action, tag="look_at_ranks"):
    """Collect stacks and Flight Recorder of some ranks of a replica, and end nothing."""

    replica: int
    incarnation: int
    ranks: tuple[int, ...]


class KeepSpares(_Action, tag="keep_spares"):
    """Reserve these nodes for the job, let those go, and start the job's rank host on these."""

    reserve: tuple[str, ...] = ()
    release: tuple[str, ...] = ()
    warm: tuple[str, ...] = ()


class InjectFault(_Action, tag="inject_fault"):
    """Give one rank a fault of its job's own schedule, or what person's `request` asked for; as
    `commands.InjectRankFault`."""

    replica: int
    incarnation: int
    rank: int
    fault: str
    value: float = 0.0
    request: str = ""


class OrderOut(_Action, tag="order_out"):
    """A replica is to leave as a person asked: `by` whom and why ("": the order is taken back), at `asked_s`
    (server Unix seconds). `at_once`: it waits for no other that takes its place."""

    replica: int
    incarnation: int
    by: str
    asked_s: float = 0.0
    at_once: bool = False


class AskEviction(_Action, tag="ask_eviction"):
    """Ask for the eviction of a replica in the name of whoever asked for `request`, a drain of its node."""

    request: str
    replica: int
    incarnation: int


class AnswerRequest(_Action, tag="answer_request"):
    """What becomes of a person's request; the decision's sentence is its answer."""

    request: str
    to: RequestState


class AskPreemption(_Action, tag="ask_preemption"):
    """Ask `attempt` of the job `victim` to save and yield its devices to this decision's job, or (`gives`: index and
    incarnation of each) those of some replicas alone; `lost_gpu_s`: what that is expected to cost, in GPU-seconds.
    `why` completes a sentence."""

    victim: str
    attempt: int
    lost_gpu_s: float
    why: str
    gives: tuple[tuple[int, int], ...] = ()


class SetYielded(_Action, tag="set_yielded"):
    """So many `replicas` of attempt `number` are not to run for now, as others have their devices. `grows`: it takes
    some back."""

    number: int
    replicas: int
    grows: bool = False


class ParkJob(_Action, tag="park_job"):
    """A preempted job waits until somebody resumes it: `by` whom it was parked, and why ("": it waits no more)."""

    by: str


class EndAttempt(_Action, tag="end_attempt"):
    """Stop everything of the attempt (`grace_s` as StopReplica) and end it."""

    number: int
    grace_s: float


class SetJobState(_Action, tag="set_job_state"):
    """Move the job in its state table."""

    to: JobState


class SetNodeState(_Action, tag="set_node_state"):
    """Cordon, degrade or otherwise move a node in its state table."""

    node_id: str
    to: NodeState


class BarDevice(_Action, tag="bar_device"):
    """Start nothing on this device until it was reset (`reset`) or a person lets it return.
    `ask`: what a person must do, "" for nothing."""

    node_id: str
    device_index: int
    reset: bool = False
    ask: str = ""


class ResetDevice(_Action, tag="reset_device"):
    """Order the reset of a device that no rank holds; it returns to service when that succeeds."""

    node_id: str
    device_index: int


class SettleSignals(_Action, tag="settle_signals"):
    """These findings are dealt with (or refuted) by this decision."""

    signal_ids: tuple[str, ...]


class OpenBreaker(_Action, tag="open_breaker"):
    """Hold what automation does without positive proof, in the fleet or in one failure domain (`segment`), until a
    person closes it. `code`: what tripped it; `sentence`: why."""

    code: str
    segment: str
    sentence: str


class CloseBreaker(_Action, tag="close_breaker"):
    """What opened this breaker is over."""

    breaker: str


class ResolveIncident(_Action, tag="resolve_incident"):
    """Close what is open for this job, or `incident_id` alone (one of the fleet's, which has no
    job), with how it ended."""

    note: str
    outcome: IncidentOutcome = IncidentOutcome.RECOVERED
    incident_id: str = ""


Action = (
    PlaceAttempt
    | AnnounceView
    | SendInstall
    | StartReplica
    | StopReplica
    | SetReplicaState
    | Relieve
    | RequestCheckpoint
    | DemoteCheckpoint
    | SuspectCheckpoint
    | GatherStacks
    | LookAtRanks
    | KeepSpares
    | InjectFault
    | OrderOut
    | AskEviction
    | AskPreemption
    | SetYielded
    | ParkJob
    | AnswerRequest
    | EndAttempt
    | SetJobState
    | SetNodeState
    | BarDevice
    | ResetDevice
    | SettleSignals
    | ResolveIncident
    | OpenBreaker
    | CloseBreaker
)


class Alternative(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Something else that could have been done. `cost_gpu_s` expected, in GPU-seconds
    lost; None where it was impossible (`why_not` says why)."""

    action: str
    cost_gpu_s: float | None
    why_not: str = ""


class Decision(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One thing decided. `rule` is the file in policy/rules, `reason_code` stable,
    `sentence` for people. `routine` True: part of an orderly protocol (install a view,
    admit a joiner), shown folded in the UI. `key` deduplicates: the same key is applied
    once per job, see `taken_in`. `mode` OBSERVE or RECOMMEND: recorded, not applied. `title`: the fault in at
    most `titles.TITLE_MAX` characters, for lists; empty where the rule names none. `acts`: what the disruption budget
    counts of it, which `decide` adds."""

    rule: str
    choice: str
    reason_code: str
    sentence: str
    key: str
    actions: tuple[Action, ...]
    evidence: dict[str, Scalar] = {}
    alternatives: tuple[Alternative, ...] = ()
    signal_ids: tuple[str, ...] = ()
    cost_gpu_s: float | None = None
    routine: bool = False
    mode: Mode = Mode.ENFORCE
    title: str = ""
    acts: tuple[Act, ...] = ()


def taken_in(mode: Mode) -> tuple[Mode, ...]:
    """In which a decision with the same key leaves nothing to do for one in this mode: where it went as far, or
    further. What was only recorded is still to be carried out once its rule may act."""
    return CAUTION[CAUTION.index(mode) :]


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All decisions of one pass, in order. `next_pass_s`: server time at which the job
    must be looked at again even if nothing rings; None: only when something rings."""

    decisions: tuple[Decision, ...] = ()
    next_pass_s: float | None = None


def stored_key(key: str) -> str:
    """The key by which a decision is known: a long one, which names many replicas, with a digest for its end."""
    if len(key) <= KEY_MAX:
        return key
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    return f"{key[: KEY_MAX - len(digest) - 1]}:{digest}"


def is_key(stored: str, key: str) -> bool:
    """It is stored by this one, also by a release that cut long ones."""
    return stored in (stored_key(key), key[:KEY_MAX])
