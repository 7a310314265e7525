"""Findings that later facts refute are settled, so that nobody acts on them and no page shows them."""

from controlplane.policy.config import PolicyConfig
from controlplane.policy.facts import MAX_NAMED
from controlplane.policy.failures import common_stalls
from controlplane.policy.plan import Decision, SettleSignals
from controlplane.policy.snapshot import JobSnapshot
from controlplane.policy.void import is_settled, why_void

RULE = "void"


def rule(snapshot: JobSnapshot, config: PolicyConfig) -> tuple[Decision, ...]:
    """One decision over all of them, or none. While a stall that many shared is ending, what is over of it
    still says whose fault it was not."""
    void = tuple(signal for signal in snapshot.signals if is_settled(snapshot, signal))
    if not void:
        return ()
    moved = {signal for stall in common_stalls(snapshot, config) for signal in stall.moved}
    void = tuple(signal for signal in void if signal.id not in moved)
    if not void:
        return ()
    ids = tuple(signal.id for signal in void)
    return (
        Decision(
            rule=RULE,
            choice="settle",
            reason_code="refuted",
            sentence="; ".join(f"The finding {s.kind} is void: {why_void(s)}" for s in void[:MAX_NAMED]) + ".",
            key=f"void:{','.join(ids)}",
            actions=(SettleSignals(signal_ids=ids),),
            evidence={"findings": len(void)},
            routine=True,
        ),
    )
