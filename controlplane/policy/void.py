"""Findings that later facts have made void: nothing may be concluded from them any more.

A rank that was late and trains again is not late. What is found is acted on at once, or later:
while the control plane is blind, in a correlated failure, or in a mode that only observes, acting waits; when
that ends, every finding is judged by the facts of that moment. Asked by the detectors, and by the
rule that settles what is void; the live loop and the simulator ask the same questions here.
"""

from controlplane.policy.facts import about, all_joined, attempt_live, is_member
from controlplane.policy.snapshot import LIVE_REPLICA, JobSnapshot, ReplicaFact, SignalFact

PHASE_SINCE = "phase_since_s"
"""In the evidence of a rank's finding, put there by whoever builds the snapshot: server time at which
the rank began the phase that it is in now."""


def is_void(snapshot: JobSnapshot, signal: SignalFact) -> bool:
    """A later fact refutes the finding."""
    if signal.kind not in ("rank_overdue", "setup_timeout") or not attempt_live(snapshot):
        return False
    replica = None if signal.replica is None else snapshot.replica_by_index.get(signal.replica)
    if replica is None or replica.state not in LIVE_REPLICA or not about(signal, replica):
        return False
    if signal.kind == "setup_timeout":
        return "reason" not in signal.evidence and all_joined(replica)
    return _moved_since(snapshot, signal, replica)


def why_void(signal: SignalFact) -> str:
    """For people: the end of "the finding is void: ..."."""
    if signal.kind == "setup_timeout":
        return f"rank {signal.rank} of replica {signal.replica} has come up since"
    return f"rank {signal.rank} of replica {signal.replica} has trained on since"


def _moved_since(snapshot: JobSnapshot, signal: SignalFact, replica: ReplicaFact) -> bool:
    """The rank has begun another phase after the finding; or a step was committed, which none is
    without every rank of every member."""
    began_s = signal.evidence.get(PHASE_SINCE)
    if isinstance(began_s, (int, float)) and began_s > signal.seen_s:
        return True
    progressed_s = snapshot.job.progressed_s
    return progressed_s is not None and progressed_s > signal.seen_s and is_member(snapshot, replica)
