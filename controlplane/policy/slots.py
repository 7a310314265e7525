"""How many replicas an attempt is to have, and which of its empty slots are to be filled.

As many as were placed, less those whose devices others have, and one besides for each that is being relieved
(`policy.relief`). Used by
the rules that start slots and by those that judge whether one is missing. Pure look-ups.
"""

import math

from controlplane.policy.facts import live_replicas
from controlplane.policy.snapshot import AttemptFact, JobSnapshot, ReplicaFact
from controlplane.protocol.states import ReplicaState, RequestState

NOBODY: frozenset[int] = frozenset()


def relieved(snapshot: JobSnapshot, *, lost: frozenset[int] = NOBODY) -> tuple[ReplicaFact, ...]:
    """Those that live and whose place another one is to take; `lost` indices are as good as gone."""
    return tuple(replica for replica in live_replicas(snapshot) if replica.relieved and replica.index not in lost)


def going(snapshot: JobSnapshot) -> tuple[ReplicaFact, ...]:
    """Those that live, were ordered out by a person, and leave without a successor."""
    return tuple(replica for replica in live_replicas(snapshot) if replica.ordered_out and not replica.relieved)


def wanted(attempt: AttemptFact) -> int:
    """How many of its replicas are to run now."""
    return attempt.replicas - attempt.yielded


def gives(snapshot: JobSnapshot, replica: ReplicaFact) -> bool:
    """It leaves because an urgent job needs its devices, and no person asks for that."""
    named = (replica.index, replica.incarnation)
    return any(named in request.gives for request in snapshot.requests if request.state is RequestState.TAKEN)


def room(snapshot: JobSnapshot, *, lost: frozenset[int] = NOBODY) -> int:
    """How many replicas are missing once those of the indices in `lost` are gone."""
    placed = wanted(snapshot.attempt) if snapshot.attempt is not None else len(snapshot.replicas)
    left = sum(replica.index not in lost for replica in live_replicas(snapshot))
    return max(0, placed + len(relieved(snapshot, lost=lost)) - left)


def emptied_with(snapshot: JobSnapshot, slots: tuple[ReplicaFact, ...]) -> tuple[ReplicaFact, ...]:
    """These slots, and those that were emptied when the first of them was, or since: any of them may be the one that
    starts again."""
    since_s = min((slot.state_since_s for slot in slots), default=math.inf)
    evicted = (replica for replica in snapshot.replicas if replica.state is ReplicaState.EVICTED)
    return tuple(replica for replica in evicted if replica.state_since_s >= since_s)


def empty_slots(snapshot: JobSnapshot, *, lost: frozenset[int] = NOBODY, taken: int = 0) -> tuple[ReplicaFact, ...]:
    """The evicted slots that are to be filled, by index, when `taken` others are: those emptied last, as
    one whose place was taken was emptied before."""
    evicted = [replica for replica in snapshot.replicas if replica.state is ReplicaState.EVICTED]
    evicted.sort(key=lambda replica: (-replica.state_since_s, replica.index))
    wanted = max(0, room(snapshot, lost=lost) - taken)
    return tuple(sorted(evicted[:wanted], key=lambda replica: replica.index))
