"""A person ordered a replica out: the others go on without it, and its slot starts again.

Its processes have ended as ordered, for nothing could be started beside it (`swap`) or it was ordered
twice; this is what the membership makes of it. An order is no fault:
it is carried out in every mode, is charged to no budget, and weighs nothing, as the person has.
"""

import msgspec

from controlplane.policy.config import PolicyConfig
from controlplane.policy.ends import restart_reason
from controlplane.policy.facts import attempt_live, live_replicas
from controlplane.policy.failures import actionable
from controlplane.policy.plan import ORDERED, Alternative, Decision
from controlplane.policy.proved import Failure
from controlplane.policy.rules.replica_failure import eviction, places
from controlplane.policy.snapshot import JobSnapshot
from controlplane.policy.titles import number_of

RULE = "ordered_eviction"
_NO_WAIT = "a person ordered it out; its processes have ended"


def rule(snapshot: JobSnapshot, config: PolicyConfig) -> tuple[Decision, ...]:
    """At most one, over all that were ordered out; where something failed as well,
    `replica_failure` answers for all of them in one view."""
    if not attempt_live(snapshot) or snapshot.job.finished or snapshot.job.cancel_requested:
        return ()
    failures = actionable(snapshot, config)
    ordered = bool(failures) and all(failure.kind == ORDERED for failure in failures)
    if not ordered or restart_reason(snapshot, config, failures) is not None:
        return ()
    base = eviction(snapshot, config, failures)
    others = tuple(_reason(other) for other in base.alternatives)
    sentence = _sentence(snapshot, failures, base)
    return (msgspec.structs.replace(base, rule=RULE, sentence=sentence, alternatives=others),)


def _reason(other: Alternative) -> Alternative:
    """Nothing failed, so that waiting was ruled out by the order alone."""
    return msgspec.structs.replace(other, why_not=_NO_WAIT) if other.action == "wait" else other


def _sentence(snapshot: JobSnapshot, failures: tuple[Failure, ...], base: Decision) -> str:
    gone = {failure.replica.index for failure in failures}
    left = sum(replica.index not in gone for replica in live_replicas(snapshot))
    orders = "; ".join(
        f"Replica {failure.replica.index} leaves as ordered ({failure.evidence['ordered_by']})" for failure in failures
    )
    after = places(snapshot, base.actions) or "no free device fits a replacement now"
    return f"{orders}. {number_of(left, 'replica')} {'goes' if left == 1 else 'go'} on; {after}."
