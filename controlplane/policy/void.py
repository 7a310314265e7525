"""Findings that later facts have made void: nothing may be concluded from them any more.

A rank that was late and trains again is not late. What is found is acted on at once, or later:
while the control plane is blind, in a correlated failure, or in a mode that only observes, acting waits; when
that ends, every finding is judged by the facts of that moment. Asked by the detectors, and by the
rule that settles what is void; the live loop and the simulator ask the same questions here. So is a loss that
was no number, or far too high, and is well again: an attempt ends for what it is, not for what it was.
"""

import math

from controlplane.policy import numerics
from controlplane.policy.facts import about, all_joined, attempt_live, is_member
from controlplane.policy.silence import heard_s
from controlplane.policy.snapshot import LIVE_REPLICA, JobSnapshot, ReplicaFact, SignalFact
from controlplane.protocol.states import WAITING_PHASES

PHASE_SINCE = "phase_since_s"
"""In the evidence of a rank's finding, put there by whoever builds the snapshot: server time at which
the rank began the phase that it is in now."""
READ = "read_s"
"""Beside it: server time at which the word of its agent came that says so."""
POSTPONED_S = 3.0
"""An agent tells once a second where its ranks are: a finding that came so long after its newest word came over a link
that was lost meanwhile."""
WORD_S = 1.0
"""A rank tells so often where it is: what it was at last may have been so many steps later."""
HEARD_S = 3.0
"""So long after a step its agent's word of it is from after that step."""


def is_void(snapshot: JobSnapshot, signal: SignalFact) -> bool:
    """A later fact refutes the finding."""
    if signal.kind in numerics.OF_LOSS:
        return attempt_live(snapshot) and numerics.is_well_again(signal)
    if signal.kind not in ("rank_overdue", "setup_timeout") or not attempt_live(snapshot):
        return False
    replica = None if signal.replica is None else snapshot.replica_by_index.get(signal.replica)
    if replica is None or replica.state not in LIVE_REPLICA or not about(signal, replica):
        return False
    if _is_of_coming_up(signal):
        return not signal.evidence.get("reason") and all_joined(replica)
    return _moved_since(snapshot, signal, replica)


def is_postponed(signal: SignalFact) -> bool:
    """Its agent has not said since it came where the rank is by now: the rank may long train again. When it showed
    itself is an age by the node's clock, which leaps where the machine stood still; so it says nothing here."""
    read_s, came_s = signal.evidence.get(READ), signal.seen_s if signal.came_s is None else signal.came_s
    return isinstance(read_s, (int, float)) and read_s < came_s - POSTPONED_S


def was_up(signal: SignalFact) -> bool:
    """A rank that is late in its setup had come up when it was found: it waits for its first view, or does not even
    do that."""
    return signal.kind == "setup_timeout" and signal.evidence.get("phase") in WAITING_PHASES


def _is_of_coming_up(signal: SignalFact) -> bool:
    return signal.kind == "setup_timeout" and not was_up(signal)


def why_void(signal: SignalFact) -> str:
    """For people: the end of "the finding is void: ..."."""
    if signal.kind in numerics.OF_LOSS:
        return f"the loss is {numerics.words_of_loss(signal)} by now"
    if _is_of_coming_up(signal):
        whole = f"replica {signal.replica}"
        return f"{whole if signal.rank is None else f'rank {signal.rank} of {whole}'} has come up since"
    return f"rank {signal.rank} of replica {signal.replica} has trained on since"


def is_settled(snapshot: JobSnapshot, signal: SignalFact) -> bool:
    """Void for good. Where a step alone says so, and its rank's agent has not spoken since, its word is awaited."""
    if not is_void(snapshot, signal):
        return False
    if signal.kind in numerics.OF_LOSS:
        return True
    return _is_of_coming_up(signal) or _is_elsewhere(signal) or not _may_be_of_before(snapshot, signal)


def _moved_since(snapshot: JobSnapshot, signal: SignalFact, replica: ReplicaFact) -> bool:
    """The rank has begun another phase after the finding; or a step was committed, which none is
    without every rank of every member."""
    if _is_elsewhere(signal):
        return True
    progressed_s = snapshot.job.progressed_s
    if progressed_s is None or progressed_s <= signal.seen_s or not is_member(snapshot, replica):
        return False
    return not _may_be_of_before(snapshot, signal) or heard_s(snapshot, replica) < progressed_s + HEARD_S


def _is_elsewhere(signal: SignalFact) -> bool:
    """In another phase than when it was found. The phase that was found had begun `signal.value` before; a newer one
    began after. Both are dated by when a frame came, and a frame may be seconds late: what lies between is parted in
    the middle. A word from before the finding came is of before it."""
    began_s = signal.evidence.get(PHASE_SINCE)
    if is_postponed(signal):
        return False
    return isinstance(began_s, (int, float)) and began_s > signal.seen_s - signal.value / 2.0


def _may_be_of_before(snapshot: JobSnapshot, signal: SignalFact) -> bool:
    """No step is committed but what the rank may have committed before it was found: others may have told of it late,
    having had no agent until then. By the word of its own agent the rank is where it was."""
    began_s, step = signal.evidence.get(PHASE_SINCE), signal.evidence.get("step")
    if not isinstance(began_s, (int, float)) or not isinstance(step, int):
        return False
    step_s = snapshot.learned.step_s
    unsaid = math.ceil(WORD_S / step_s) if step_s else 0
    return snapshot.job.committed_step <= step + 1 + unsaid
