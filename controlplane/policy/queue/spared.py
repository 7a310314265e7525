"""Why nobody is asked to yield to a job that waits, and who is left alone until when. Pure, for answers to people."""

from collections.abc import Iterable

import msgspec

from controlplane.policy.queue.place import Turn
from controlplane.policy.queue.preempt import left_alone, starts_soon
from controlplane.policy.queue.rows import Entry, Holder, Pending, QueueConfig, QueuePlan
from controlplane.policy.queue.shares import Shares

OWN = "runs within the quota of its project, which no other project's job takes by priority"


class Spared(msgspec.Struct, frozen=True, kw_only=True):
    """A job of lower priority that is not asked to yield. `until_s`: server time from which that holds no more; None:
    that is not known."""

    id: str
    name: str
    priority: int
    why: str
    until_s: float | None = None


def spared(
    job: Pending, lower: Iterable[Holder], shares: Shares, config: QueueConfig, now_s: float
) -> tuple[Spared, ...]:
    """Those of `lower` that are left alone by the job that waits, as they come."""
    found = []
    for holder in lower:
        guarded = (OWN, None) if shares.guards(job, holder) else None
        alone = guarded or left_alone(holder, config, now_s)
        if alone is not None:
            why, until_s = alone
            found.append(Spared(id=holder.id, name=holder.name, priority=holder.priority, why=why, until_s=until_s))
    return tuple(found)


def why_nobody(entry: Entry, plan: QueuePlan, preempted: int, config: QueueConfig, now_s: float, *, able: bool) -> str:
    """Why no preemption is planned for it; "" where one is, or where none could help. `preempted`: jobs
    of the fleet within an hour. `able`: somebody of lower priority may be asked."""
    if entry.turn not in (Turn.NO_ROOM, Turn.QUOTA) or (plan.head == entry.job.id and plan.victims):
        return ""
    if entry.turn is Turn.QUOTA and plan.head not in ("", entry.job.id):
        return "others yield to the first of the queue alone"
    if entry.turn is Turn.NO_ROOM and plan.head != entry.job.id:
        return "others yield to the first of the queue alone"
    if entry.turn is Turn.NO_ROOM and not entry.may_start:
        return "jobs ahead of it start first"
    if starts_soon(entry.expected_s, config, now_s):
        return f"it is expected to start within {config.preempt_patience_s:.0f} s without one"
    if preempted >= config.max_preemptions:
        return f"as many jobs were preempted within an hour as may be ({config.max_preemptions})"
    return "those that may be asked do not make room for it" if able else "all of lower priority are left alone"
