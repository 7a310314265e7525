"""Other ways to choose who yields than the product's, to compare it with: of those that may yield the largest first, or
the newest first, until the head fits, less those that are not needed; each job whole."""

from collections.abc import Callable, Mapping, Sequence

from controlplane.policy.queue.preempt import may_yield
from controlplane.policy.queue.room import Room, Types
from controlplane.policy.queue.rows import Demand, Holder, QueuePlan
from controlplane.simulator.intervals import MODEL, Queue


def largest(queue: Queue, plan: QueuePlan) -> Mapping[str, Sequence[int]]:
    """Who frees most with one preemption."""
    return _until_it_fits(queue, plan, lambda holder: -sum(number for _, number in holder.devices))


def newest(queue: Queue, plan: QueuePlan) -> Mapping[str, Sequence[int]]:
    """Who began last, and so has least behind it."""
    return _until_it_fits(queue, plan, lambda holder: -(holder.stake.begun_s if holder.stake is not None else 0.0))


def _until_it_fits(queue: Queue, plan: QueuePlan, by: Callable[[Holder], float]) -> Mapping[str, Sequence[int]]:
    """In this order, by the same rules as the product's: lower priority, willing, left alone for long enough."""
    head = next(entry.job for entry in plan.entries if entry.job.id == plan.head)
    fleet = queue.fleet()
    able = [each for each in fleet.holders if may_yield(each, head, queue.config, queue.now_s)]
    room = Room(fleet.nodes, Types((MODEL,)), (head.demand,))
    for holder in fleet.holders:
        if holder.leaves:
            room.give_back(holder.devices)
    chosen: list[Holder] = []
    for holder in sorted(able, key=lambda each: (by(each), each.id)):
        if _fits(room, head.demand, chosen):
            break
        if room.gains(head.demand, holder.devices):
            chosen.append(holder)
    for holder in tuple(chosen):
        others = [each for each in chosen if each is not holder]
        if _fits(room, head.demand, others):
            chosen = others
    return {holder.id: () for holder in chosen[: queue.config.max_preemptions - fleet.preempted]}


def _fits(room: Room, demand: Demand, chosen: Sequence[Holder]) -> bool:
    before = [room.give_back(holder.devices) for holder in chosen]
    fits = room.fits(demand)
    for undo in reversed(before):
        room.restore(undo)
    return fits
