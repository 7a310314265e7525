"""The state tables. Everything that affects which move is legal lives here.

`check` is called by the one writer of each kind of row; docs/states.md is generated
from `TABLES` by `controlplane.policy.states_doc`. A move to the same state is no
transition and is never asked for.
"""

from enum import StrEnum

from controlplane.policy.errors import IllegalTransition
from controlplane.protocol.states import (
    AttemptState,
    CheckpointState,
    CommandState,
    IncidentState,
    JobState,
    NodeState,
    RankState,
    ReplicaState,
    RequestState,
)

Table = dict[StrEnum, dict[StrEnum, str]]

_J, _A, _R, _K = JobState, AttemptState, ReplicaState, RankState
_N, _C, _P, _I = NodeState, CommandState, CheckpointState, IncidentState
_Q = RequestState

_YIELDED = "saved, and its devices given to a job of higher priority, or a person parked it"
JOB: Table = {
    _J.PENDING: {
        _J.STARTING: "placed on devices",
        _J.CANCELLED: "cancelled by its user, or at its time limit",
        _J.FAILED: "can never be placed, or its restart budget is spent",
    },
    _J.STARTING: {
        _J.RUNNING: "the first view is installed",
        _J.RECOVERING: "a replica was lost before the first step",
        _J.PENDING: "its devices are gone and no others are free",
        _J.PREEMPTED: "started again while it was to yield its devices",
        _J.SUCCEEDED: "all steps were committed already",
        _J.FAILED: "its restart budget is spent",
        _J.CANCELLED: "cancelled by its user, or at its time limit",
    },
    _J.RUNNING: {
        _J.RECOVERING: "a replica was lost",
        _J.STARTING: "restarted from a checkpoint",
        _J.PENDING: "too few devices are left",
        _J.PREEMPTED: _YIELDED,
        _J.SUCCEEDED: "all steps are committed",
        _J.FAILED: "its restart budget is spent",
        _J.CANCELLED: "cancelled by its user, or at its time limit",
    },
    _J.RECOVERING: {
        _J.RUNNING: "full strength again, or stable with fewer replicas",
        _J.STARTING: "restarted from a checkpoint",
        _J.PENDING: "too few devices are left",
        _J.PREEMPTED: _YIELDED,
        _J.SUCCEEDED: "all steps are committed",
        _J.FAILED: "its restart budget is spent",
        _J.CANCELLED: "cancelled by its user, or at its time limit",
    },
    _J.PREEMPTED: {
        _J.RESUMING: "placed on devices again, from its newest checkpoint",
        _J.SUCCEEDED: "its last step was committed while its ranks left",
        _J.CANCELLED: "cancelled by its user, or at its time limit",
    },
    _J.RESUMING: {
        _J.RUNNING: "the first view is installed",
        _J.PENDING: "its devices are gone and no others are free",
        _J.SUCCEEDED: "all steps were committed already",
        _J.FAILED: "its restart budget is spent",
        _J.CANCELLED: "cancelled by its user, or at its time limit",
    },
    _J.SUCCEEDED: {},
    _J.FAILED: {},
    _J.CANCELLED: {},
}

ATTEMPT: Table = {
    _A.STARTING: {
        _A.RUNNING: "the first view is installed",
        _A.STOPPING: "ended before its first step",
        _A.ENDED: "nothing of it was left to stop",
    },
    _A.RUNNING: {
        _A.STOPPING: "done, cancelled or restarted",
        _A.ENDED: "nothing of it was left to stop",
    },
    _A.STOPPING: {_A.ENDED: "every process is proved gone"},
    _A.ENDED: {},
}

REPLICA: Table = {
    _R.FORMING: {
        _R.ACTIVE: "in the first view of its attempt",
        _R.CATCHING_UP: "admitted to a view as a joiner",
        _R.SPARE: "in the first view of its attempt, to stand by",
        _R.EVICTED: "failed before it joined",
        _R.ENDED: "its attempt is over",
    },
    _R.SPARE: {
        _R.ACTIVE: "promoted: its gradients count",
        _R.SUSPECT: "silent, not yet confirmed",
        _R.EVICTED: "failed while it stood by",
        _R.ENDED: "its attempt is over",
    },
    _R.CATCHING_UP: {
        _R.ACTIVE: "caught up: its gradients count",
        _R.SPARE: "caught up: it stands by",
        _R.SUSPECT: "silent",
        _R.EVICTED: "failed while it caught up",
        _R.ENDED: "its attempt is over",
    },
    _R.ACTIVE: {
        _R.SUSPECT: "silent, not yet confirmed",
        _R.EVICTED: "failed, or left behind",
        _R.ENDED: "its attempt is over",
    },
    _R.SUSPECT: {
        _R.ACTIVE: "heard again",
        _R.SPARE: "heard again, stands by",
        _R.CATCHING_UP: "heard again, still catching up",
        _R.EVICTED: "confirmed failed",
        _R.ENDED: "its attempt is over",
    },
    _R.EVICTED: {_R.FORMING: "the slot's next incarnation is started"},
    _R.ENDED: {},
}

RANK: Table = {
    _K.LAUNCHING: {
        _K.INITIALIZING: "the process exists",
        _K.EXITED: "ended before it spoke",
        _K.HUNG: "did not appear in time",
    },
    _K.INITIALIZING: {
        _K.TRAINING: "said hello and is in a view",
        _K.EXITED: "the process ended",
        _K.HUNG: "overran its section's timeout",
    },
    _K.TRAINING: {
        _K.CHECKPOINTING: "saves",
        _K.EXITED: "the process ended",
        _K.HUNG: "overran its section's timeout",
    },
    _K.CHECKPOINTING: {
        _K.TRAINING: "saved",
        _K.EXITED: "the process ended",
        _K.HUNG: "overran its section's timeout",
    },
    _K.HUNG: {
        _K.TRAINING: "moved again before it was ended",
        _K.CHECKPOINTING: "moved again before it was ended",
        _K.EXITED: "the process ended",
    },
    _K.EXITED: {},
}

_KEPT_AWAY = "a confirmed hardware fault, in doubt which machine it is, or enrolled with a token that holds"
_EMPTIED = "a person asked that it be emptied: it takes no new work, and what runs there is moved away"
NODE: Table = {
    _N.READY: {
        _N.DEGRADED: "a finding that does not stop work",
        _N.DRAINING: _EMPTIED,
        _N.CORDONED: "takes no new work",
        _N.QUARANTINED: _KEPT_AWAY,
    },
    _N.DEGRADED: {
        _N.READY: "the finding is gone",
        _N.DRAINING: _EMPTIED,
        _N.CORDONED: "takes no new work",
        _N.QUARANTINED: _KEPT_AWAY,
    },
    _N.DRAINING: {
        _N.READY: "the request was withdrawn or has lapsed, or a person returned it",
        _N.DEGRADED: "the request was withdrawn or has lapsed, and the finding of before stands",
        _N.CORDONED: "nothing runs on it any more, or it takes no new work anyway",
        _N.QUARANTINED: _KEPT_AWAY,
    },
    _N.CORDONED: {
        _N.READY: "returned by a person, or what kept it away is over",
        _N.DRAINING: _EMPTIED,
        _N.QUARANTINED: _KEPT_AWAY,
    },
    _N.QUARANTINED: {
        _N.READY: "a person vouches for it or admits it, it has a new key, or its events arrive again",
        _N.DEGRADED: "its events arrive again, and the finding of before stands",
        _N.CORDONED: "its events arrive again, and it takes no work as before",
    },
}

COMMAND: Table = {
    _C.QUEUED: {
        _C.DELIVERED: "written to the agent's socket",
        _C.ACKNOWLEDGED: "journaled by the agent",
        _C.SUCCEEDED: "carried out",
        _C.FAILED: "could not be carried out",
        _C.EXPIRED: "outlived its time before it was received",
        _C.SUPERSEDED: "a newer command made it void",
    },
    _C.DELIVERED: {
        _C.QUEUED: "the socket closed before it was acknowledged: deliver again",
        _C.ACKNOWLEDGED: "journaled by the agent",
        _C.SUCCEEDED: "carried out",
        _C.FAILED: "could not be carried out",
        _C.EXPIRED: "outlived its time",
        _C.SUPERSEDED: "a newer command made it void",
    },
    _C.ACKNOWLEDGED: {
        _C.SUCCEEDED: "carried out",
        _C.FAILED: "could not be carried out",
        _C.EXPIRED: "no answer within its time",
        _C.SUPERSEDED: "a newer command made it void",
    },
    _C.SUCCEEDED: {},
    _C.FAILED: {},
    _C.EXPIRED: {},
    _C.SUPERSEDED: {},
}

CHECKPOINT: Table = {
    _P.WRITING: {
        _P.COMPLETE: "its marker is committed",
        _P.CORRUPT: "broken off, or its epoch was fenced",
    },
    _P.COMPLETE: {
        _P.VERIFIED: "digests read back equal",
        _P.CORRUPT: "a digest differs, or a load failed",
        _P.PRUNED: "retention removed it",
    },
    _P.VERIFIED: {
        _P.RESTORE_TESTED: "loaded into a model",
        _P.REPLICATED: "a second copy exists",
        _P.CORRUPT: "a digest differs, or a load failed",
        _P.PRUNED: "retention removed it",
    },
    _P.RESTORE_TESTED: {
        _P.REPLICATED: "a second copy exists",
        _P.CORRUPT: "a digest differs, or a load failed",
        _P.PRUNED: "retention removed it",
    },
    _P.REPLICATED: {_P.CORRUPT: "every copy is damaged", _P.PRUNED: "retention removed it"},
    _P.CORRUPT: {_P.PRUNED: "retention removed it"},
    _P.PRUNED: {},
}

INCIDENT: Table = {
    _I.OPEN: {
        _I.RECOVERING: "a decision acts on it",
        _I.MITIGATED: "its node takes no new work; the hardware is out still",
        _I.RESOLVED: "it went away by itself, was refuted, or all its parts are over",
    },
    _I.RECOVERING: {
        _I.MITIGATED: "the job is done with it; the hardware is out still",
        _I.RESOLVED: "full strength, stable with fewer replicas, or the job ended",
        _I.OPEN: "the act failed",
    },
    _I.MITIGATED: {_I.RESOLVED: "the hardware is back, or a person has it now"},
    _I.RESOLVED: {},
}

REQUEST: Table = {
    _Q.OPEN: {
        _Q.TAKEN: "the policy carries it out",
        _Q.DONE: "what was asked for is so already",
        _Q.REFUSED: "it cannot be carried out",
        _Q.LAPSED: "it was valid no longer",
        _Q.WITHDRAWN: "taken back by a person",
    },
    _Q.TAKEN: {
        _Q.DONE: "carried out",
        _Q.REFUSED: "it could not be carried out after all",
        _Q.LAPSED: "it was not carried out in its time",
        _Q.WITHDRAWN: "taken back by a person before it could not be undone",
    },
    _Q.DONE: {},
    _Q.REFUSED: {},
    _Q.LAPSED: {},
    _Q.WITHDRAWN: {},
}

TABLES: dict[str, Table] = {
    "job": JOB,
    "attempt": ATTEMPT,
    "replica": REPLICA,
    "rank": RANK,
    "node": NODE,
    "command": COMMAND,
    "checkpoint": CHECKPOINT,
    "incident": INCIDENT,
    "request": REQUEST,
}


def check(machine: str, before: str, after: str) -> str:
    """The table's reason for the move. `machine` is a key of `TABLES`; states are their
    values or members. Raises IllegalTransition, with the moves that are legal."""
    table = TABLES[machine]
    moves = {str(state): reasons for state, reasons in table.items()}.get(str(before))
    if moves is None:
        raise IllegalTransition(f"{machine}: {before!r} is no state of it")
    reason = {str(state): text for state, text in moves.items()}.get(str(after))
    if reason is not None:
        return reason
    legal = ", ".join(sorted(str(state) for state in moves)) or "nothing: it is final"
    raise IllegalTransition(f"{machine}: {before} -> {after} is not allowed (from {before}: {legal})")


def is_final(machine: str, state: str) -> bool:
    """True when nothing follows this state."""
    return not {str(key): moves for key, moves in TABLES[machine].items()}[str(state)]
