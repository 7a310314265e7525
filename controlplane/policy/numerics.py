"""What a refused result proves, and against whom.

A rank that finds a result refused computes the step again in place and says what came out
(`protocol.rank.NumericsReport`, a signal of kind "numerics"). A persistent one cannot be
judged on the device that produced it: it takes other hardware. Here that comes by itself:
the replica leaves, its micro-batches are dealt out to the others, and either they commit
the step (the device was wrong) or another device refuses the same step (the result is what
the model computes from this data, and no device is to blame).
"""

from controlplane.policy.snapshot import JobSnapshot, SignalFact

KIND = "numerics"
TRANSIENT = "transient"
REPRODUCED = "reproduced"
PERSISTENT = "persistent"
FAILED_VALIDATION = "failed_validation"
ACCUSING = frozenset({PERSISTENT, FAILED_VALIDATION})


def findings(snapshot: JobSnapshot, *diagnoses: str) -> tuple[SignalFact, ...]:
    """Open findings with one of these diagnoses, by id."""
    return tuple(s for s in snapshot.signals if s.kind == KIND and s.evidence.get("diagnosis") in diagnoses)


def accuses(signal: SignalFact) -> bool:
    """Nothing is started on its device while it is open."""
    return signal.kind == KIND and signal.evidence.get("diagnosis") in ACCUSING


def step_of(signal: SignalFact) -> int:
    """The step that was refused, from 0."""
    return int(signal.value)


def reproduced(snapshot: JobSnapshot) -> tuple[SignalFact, ...]:
    """Persistent findings of one step, of two lives of replicas that share no device; empty if
    there are none. (Within one replica a bad value travels from stage to stage.)"""
    suspects = findings(snapshot, PERSISTENT)
    for signal in suspects:
        same = tuple(other for other in suspects if step_of(other) == step_of(signal))
        lives: dict[tuple[int | None, int | None], set[tuple[str | None, int | None]]] = {}
        for other in same:
            lives.setdefault((other.replica, other.incarnation), set()).add((other.node_id, other.device_index))
        mine = lives[(signal.replica, signal.incarnation)]
        if any(mine.isdisjoint(devices) for devices in lives.values()):
            return same
    return ()


def refuted(snapshot: JobSnapshot, signal: SignalFact) -> bool:
    """The step was committed without this device: what it computed was wrong."""
    return snapshot.job.committed_step > step_of(signal)
