"""What the finding of a slow rank says now: whether its device is to blame, and whether it was measured lately enough
to act on.

All wait for the slowest: whom all waited for in an earlier view may have left meanwhile, or be as fast as the
others. Asked by the rules `straggler`, before one is moved or left out, and `swap`, before another one takes its
place. Pure look-ups; it decides nothing.
"""

from controlplane.policy.facts import signals_about
from controlplane.policy.signals.ranks import SlowRank
from controlplane.policy.snapshot import JobSnapshot, ReplicaFact, SignalFact
from controlplane.policy.stragglers import fresh_s


def innocent(signal: SignalFact) -> str:
    """Why its device is not to blame; empty: it is."""
    if signal.evidence.get("score") != "relative":
        if signal.evidence.get("relative") is None:
            return "there is nothing to compare it with, so it is not known whether its device is to blame"
        return "its peers are as slow as it is, no device is to blame"
    if signal.evidence.get("cause") == "data":
        return "it waits for its input, and a move would take the input along: look at where its data comes from"
    if signal.evidence.get("cause") == "length":
        return "its micro-batches differ in length, and a move would take them along: balance the sequence lengths"
    return ""


def old(snapshot: JobSnapshot, signal: SignalFact) -> str:
    """Why what was measured says nothing about now; empty: it does."""
    if number(signal, "epoch") < snapshot.job.epoch:
        return "it was measured before the present view, and is measured again in this one"
    if not is_fresh(snapshot, signal):
        return "it was not measured lately, and is measured again first"
    return ""


def is_fresh(snapshot: JobSnapshot, signal: SignalFact) -> bool:
    """The newest windows that could be there have found it so."""
    said_s = signal.seen_s if signal.renewed_s is None else signal.renewed_s
    return snapshot.now_s - said_s <= fresh_s(snapshot.job.spec.resiliency.stragglers, snapshot.learned.step_s)


def blaming(snapshot: JobSnapshot, replica: ReplicaFact) -> tuple[SignalFact, ...]:
    """Open findings that a device under this very incarnation is slow."""
    return tuple(signal for signal in signals_about(snapshot, SlowRank.KIND, replica) if not innocent(signal))


def number(signal: SignalFact, name: str) -> float:
    """Of its evidence; 0 where there is none."""
    value = signal.evidence.get(name)
    return float(value) if isinstance(value, (int, float)) else 0.0
