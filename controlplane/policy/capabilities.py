"""What may be done to an object in its state, and why not: the one table of it.

Every GET of such an object serves its row as `capabilities`; the POST refuses with the sentence that stands
there; page and command line show it. Acts have the verb of their order, as in `/nodes/{id}:cordon`. A state
is a key of each of its tables, so that a new one has to be thought of here. Who may do it is no question of
state: scopes and roles are the API's. An act that is no error when it was done before is allowed again; where it
would have nothing to do the sentence stands for the page's button, and the POST changes nothing (`STANDS`).

Pure: facts in, sentences out. Callers gather facts in `capable` of their apps, or beside the rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from controlplane.protocol.states import (
    IncidentOutcome,
    IncidentState,
    JobState,
    NodeState,
    RankState,
    ReplicaState,
    RequestState,
)

Acts = dict[str, str]
"""By act: "" where it may be done, else why not, in one sentence."""
ByState = Mapping[str, Mapping[str, str]]
"""By act, then by state: "" or a sentence with the fields of the facts in braces."""
YES = ""

_J, _R, _K, _N, _I, _Q = JobState, ReplicaState, RankState, NodeState, IncidentState, RequestState
_NO_SAVE = "job {name!r} is {state}: only a running job can save"
_NO_DEVICES = "job {name!r} is {state}: it has no devices to yield"
_NO_STEP = "job {name!r} is {state}: it can be preempted when it trains; `holdfast job cancel {name}` ends it"
_NOT_PARKED = "job {name!r} is {state}: only a preempted job can be resumed"
_OVER = "job {name!r} has ended: {state}"
_IDLE = "replica {index} of job {job!r} does not run: the job is {job_state}"
_GONE = "rank {rank} of replica {index} does not run"

JOB: ByState = {
    "cancel": {
        _J.PENDING: YES,
        _J.STARTING: YES,
        _J.RUNNING: YES,
        _J.RECOVERING: YES,
        _J.PREEMPTED: YES,
        _J.RESUMING: YES,
        _J.SUCCEEDED: _OVER,
        _J.FAILED: _OVER,
        _J.CANCELLED: _OVER,
    },
    "checkpoint": {
        _J.PENDING: _NO_SAVE,
        _J.STARTING: _NO_SAVE,
        _J.RUNNING: YES,
        _J.RECOVERING: YES,
        _J.PREEMPTED: _NO_SAVE,
        _J.RESUMING: _NO_SAVE,
        _J.SUCCEEDED: _NO_SAVE,
        _J.FAILED: _NO_SAVE,
        _J.CANCELLED: _NO_SAVE,
    },
    "preempt": {
        _J.PENDING: _NO_DEVICES,
        _J.STARTING: _NO_STEP,
        _J.RUNNING: YES,
        _J.RECOVERING: YES,
        _J.PREEMPTED: "job {name!r} is preempted already",
        _J.RESUMING: _NO_STEP,
        _J.SUCCEEDED: _OVER,
        _J.FAILED: _OVER,
        _J.CANCELLED: _OVER,
    },
    "resume": {
        _J.PENDING: _NOT_PARKED,
        _J.STARTING: _NOT_PARKED,
        _J.RUNNING: _NOT_PARKED,
        _J.RECOVERING: _NOT_PARKED,
        _J.PREEMPTED: YES,
        _J.RESUMING: _NOT_PARKED,
        _J.SUCCEEDED: _OVER,
        _J.FAILED: _OVER,
        _J.CANCELLED: _OVER,
    },
}
EVICT_BY_JOB: Mapping[str, str] = {
    _J.PENDING: _IDLE,
    _J.STARTING: _IDLE,
    _J.RUNNING: YES,
    _J.RECOVERING: YES,
    _J.PREEMPTED: _IDLE,
    _J.RESUMING: _IDLE,
    _J.SUCCEEDED: _IDLE,
    _J.FAILED: _IDLE,
    _J.CANCELLED: _IDLE,
}
REPLICA: ByState = {
    "evict-replica": {
        _R.FORMING: YES,
        _R.SPARE: YES,
        _R.CATCHING_UP: YES,
        _R.ACTIVE: YES,
        _R.SUSPECT: YES,
        _R.EVICTED: "replica {index} of job {job!r} has left its view already",
        _R.ENDED: "replica {index} of job {job!r} ended with its attempt",
    }
}
RANK: ByState = {
    act: {
        _K.LAUNCHING: YES,
        _K.INITIALIZING: YES,
        _K.TRAINING: YES,
        _K.CHECKPOINTING: YES,
        _K.HUNG: YES,
        _K.EXITED: _GONE,
    }
    for act in ("fault", "debug", "command-rank")
}
_ALWAYS: Mapping[str, str] = {
    _N.READY: YES,
    _N.DEGRADED: YES,
    _N.DRAINING: YES,
    _N.CORDONED: YES,
    _N.QUARANTINED: YES,
}
_VOUCHED = "node {name!r} is {state}: there is nothing to confirm"
NODE: ByState = {
    "cordon": {
        _N.READY: YES,
        _N.DEGRADED: YES,
        _N.DRAINING: YES,
        _N.CORDONED: "node {name!r} is cordoned: it takes no new work already",
        _N.QUARANTINED: YES,
    },
    "uncordon": {
        _N.READY: "node {name!r} is ready: it takes work already, and so do its devices",
        _N.DEGRADED: YES,
        _N.DRAINING: YES,
        _N.CORDONED: YES,
        _N.QUARANTINED: YES,
    },
    "drain": {
        _N.READY: YES,
        _N.DEGRADED: YES,
        _N.DRAINING: "node {name!r} is drained already; `holdfast node drain {name} --withdraw` takes that back",
        _N.CORDONED: YES,
        _N.QUARANTINED: "node {name!r} is quarantined: `holdfast node confirm` or `uncordon` it first",
    },
    "maintain": _ALWAYS,
    "confirm": {
        _N.READY: _VOUCHED,
        _N.DEGRADED: _VOUCHED,
        _N.DRAINING: _VOUCHED,
        _N.CORDONED: _VOUCHED,
        _N.QUARANTINED: YES,
    },
    "revoke": _ALWAYS,
    "restore": _ALWAYS,
    "rotate-key": _ALWAYS,
    "re-enrol": _ALWAYS,
    "remove": _ALWAYS,
}
STANDS: Mapping[str, str] = {"cordon": _N.CORDONED, "uncordon": _N.READY, "drain": _N.DRAINING}
"""Acts on a node that may be repeated: in that state it is as they leave it."""
INCIDENT: ByState = {
    "acknowledge": {
        _I.OPEN: YES,
        _I.RECOVERING: YES,
        _I.MITIGATED: YES,
        _I.RESOLVED: "the incident is over, and nothing of it waits for a person",
    }
}
_ENDED = "request {id} has ended: {state}"
REQUEST: ByState = {
    "withdraw": {
        _Q.OPEN: YES,
        _Q.TAKEN: YES,
        _Q.DONE: _ENDED,
        _Q.REFUSED: _ENDED,
        _Q.LAPSED: _ENDED,
        _Q.WITHDRAWN: _ENDED,
    }
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """`placed`: a rank of it holds a device; `parked`: a person preempted it, and nobody has resumed it."""

    name: str
    state: str
    placed: bool
    parked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaFacts:
    """`placed`: a rank of it holds a device; `newest`: no later incarnation has its slot."""

    index: int
    state: str
    job: str
    job_state: str
    placed: bool
    newest: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFacts:
    """`released`: it holds its device no more; `newest`: its replica is the newest incarnation of the slot;
    `looked_at`: a look at it is under way."""

    rank: int
    index: int
    state: str
    job: str
    released: bool
    newest: bool
    allow_faults: bool
    looked_at: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """`ranks`: placed there; `barred`: a present device of it is kept from work."""

    name: str
    state: str
    doubt: str
    held: bool
    revoked: bool
    ranks: int
    barred: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """`job`, `replica`, `rank`: which rank is on it; `job` "" where it is free."""

    index: int
    node: str
    revoked: bool
    present: bool
    job: str = ""
    replica: int = 0
    rank: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentFacts:
    """`by` and `note`: of who has acknowledged it; `by` "" where nobody has."""

    state: str
    outcome: str
    by: str
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFacts:
    """What a person asked for."""

    id: str
    state: str


def job(facts: JobFacts) -> Acts:
    """Cancel it, have it save, yield its devices, continue."""
    acts = _by_state(JOB, facts)
    if not acts["resume"] and not facts.parked:
        acts["resume"] = f"job {facts.name!r} is in the queue: it continues by itself as soon as there is room"
    if not acts["preempt"] and not facts.placed:
        acts["preempt"] = f"job {facts.name!r} has no rank now that holds a device"
    if not acts["checkpoint"] and not facts.placed:
        acts["checkpoint"] = f"job {facts.name!r} has no rank now that could save"
    return acts


def replica(facts: ReplicaFacts) -> Acts:
    """Have it leave its job. One that has a later incarnation cannot be named by an order any more."""
    acts = _by_state(REPLICA, facts)
    act = "evict-replica"
    if not facts.newest:
        acts[act] = f"replica {facts.index} of job {facts.job!r} was started again since"
    elif why := EVICT_BY_JOB[facts.job_state]:
        acts[act] = _filled(why, facts)
    elif not acts[act] and not facts.placed:
        acts[act] = f"replica {facts.index} of job {facts.job!r} does not run: no rank of it holds a device"
    return acts


def rank(facts: RankFacts) -> Acts:
    """Break it on purpose, look at it, have it do something."""
    acts = _by_state(RANK, facts)
    if facts.released or not facts.newest:
        return dict.fromkeys(acts, _filled(_GONE, facts))
    if not acts["fault"] and not facts.allow_faults:
        acts["fault"] = (
            f"job {facts.job!r} does not allow faults: submit it with resiliency.allow_faults set to true to rehearse"
        )
    if not acts["debug"] and facts.looked_at:
        acts["debug"] = (
            f"a diagnostic of rank {facts.rank} of replica {facts.index} is already running: wait for its answer"
        )
    return acts


def node(facts: NodeFacts) -> Acts:
    """Keep it from work and give it back, say who it is, change its key, forget it."""
    acts, name = _by_state(NODE, facts), facts.name
    if facts.state == NodeState.READY and facts.barred:
        acts["uncordon"] = YES
    if facts.held:
        acts["uncordon"] = (
            f"node {name!r} enrolled with a token that holds, and an administrator admits it:"
            f" `holdfast node confirm {name}`"
        )
    if facts.doubt:
        acts["uncordon"] = (
            f"it is in doubt which machine node {name!r} is ({facts.doubt}): `holdfast node confirm {name}`"
        )
    if facts.revoked:
        acts["rotate-key"] = f"node {name!r} is revoked: `holdfast node re-enrol {name}` gives it a new key"
        acts["drain"] = f"node {name!r} is revoked and obeys no command; `holdfast node restore {name}` first"
    if facts.ranks:
        acts["remove"] = (
            f"{facts.ranks} ranks are placed on node {name!r}: cordon it, cancel its jobs or evict their replicas,"
            " and remove it when it is empty"
        )
    return acts


def node_stands(facts: NodeFacts, act: str) -> bool:
    """Nothing is against the act but that the node is so already: to repeat it is no error, and changes nothing."""
    so_already = _filled(NODE[act][facts.state], facts)
    return STANDS.get(act) == facts.state and node(facts)[act] == so_already


def device(facts: DeviceFacts) -> Acts:
    """Reset it, which ends whatever runs on it: that is moved first, by an order of its own."""
    where, node_name = f"device {facts.index} of {facts.node}", facts.node
    why = YES
    if facts.revoked:
        why = f"{where}: its node is revoked and accepts no commands; `holdfast node restore {node_name}` first"
    elif not facts.present:
        why = f"{where} fell off the bus, which a reset does not fix: reboot the node, or replace the card"
    elif facts.job:
        why = (
            f"{where} is in use: rank {facts.rank} of replica {facts.replica} of job {facts.job!r} is on it;"
            f" `holdfast node cordon {node_name}`, then `holdfast job evict-replica {facts.job} {facts.replica}` starts"
            " it elsewhere; request the reset when it has ended"
        )
    return {"reset": why}


def incident(facts: IncidentFacts) -> Acts:
    """Take it on. A lost job waits for somebody who has seen that, also when it is over."""
    acts = _by_state(INCIDENT, facts)
    if facts.outcome == IncidentOutcome.LOST:
        acts["acknowledge"] = YES
    if facts.by:
        acts["acknowledge"] = f"{facts.by} has acknowledged it already: {facts.note}"
    return acts


def request(facts: RequestFacts) -> Acts:
    """Take it back. Twice is no error, until it has ended."""
    return _by_state(REQUEST, facts)


def breaker(closed_by: str) -> Acts:
    """Close it, once. `closed_by` "": it is open."""
    return {"close": f"{closed_by} closed it already" if closed_by else YES}


def known_end(over_by: str) -> Acts:
    """Cancel a window, or call a notice wrong, once. `over_by` "": it holds."""
    return {"cancel": f"it does not hold any more: {over_by}" if over_by else YES}


def dead_letter(letter_id: str, state: str) -> Acts:
    """Apply it after all, or drop it. `state`: waiting, replayed or discarded."""
    why = YES if state == "waiting" else f"dead letter {letter_id} was {state} already"
    return {"replay": why, "discard": why}


_Facts = JobFacts | ReplicaFacts | RankFacts | NodeFacts | IncidentFacts | RequestFacts


def _by_state(table: ByState, facts: _Facts) -> Acts:
    """Raises KeyError for a state that has no row."""
    return {act: _filled(by_state[facts.state], facts) for act, by_state in table.items()}


def _filled(why: str, facts: object) -> str:
    if not why:
        return YES
    fields = {name: getattr(facts, name) for name in facts.__dataclass_fields__}  # type: ignore[attr-defined]
    return why.format(**fields)
