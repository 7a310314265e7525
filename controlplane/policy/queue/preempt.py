"""Which running jobs yield their devices to the head of the queue: those that lose the fewest GPU-seconds.

Only jobs of lower priority that allow it, whole, and only as many as make the head fit wherever it is placed. A job
that began, came back or was asked a short time ago is left alone, and so is everybody when an hour's preemptions are
spent. Up to `QueueConfig.weighed` sets are compared, which is every set in a small fleet; beyond that the best one
found counts. Called by `schedule` for the head alone. Pure.
"""

from collections.abc import Mapping, Sequence

from controlplane.policy.queue.place import Victim
from controlplane.policy.queue.room import Room
from controlplane.policy.queue.rows import Holder, Pending, QueueConfig, QueueFleet, Stake


def victims(head: Pending, room: Room, fleet: QueueFleet, config: QueueConfig, now_s: float) -> tuple[Victim, ...]:
    """Who is asked, by id; () where nobody can or need be. `room`: what is free, less what jobs ahead start on."""
    free = room.only(head.demand)
    for holder in fleet.holders:
        if holder.leaves:
            free.give_back(holder.devices)
    allowed = config.max_preemptions - fleet.preempted
    if allowed <= 0 or free.fits(head.demand):
        return ()
    reserved = fleet.reserved
    able = [holder for holder in fleet.holders if may_yield(holder, head, config, now_s)]
    offers = [Offer(holder, reserved) for holder in able]
    offers = [offer for offer in offers if free.gains(head.demand, offer.devices)]
    chosen = _Search(head, free, offers, config.weighed, allowed).best()
    return tuple(_victim(holder, holder.stake) for holder in chosen if holder.stake is not None)


class Offer:
    """A job that may yield: at what price, and which devices others get. Those on nodes that are another job's spares
    stay that one's."""

    def __init__(self, job: Holder, reserved: Mapping[str, str]) -> None:
        self.job, self.price = job, lost_gpu_s(job)
        self.devices = tuple(each for each in job.devices if reserved.get(each[0], job.id) == job.id)


def may_yield(holder: Holder, head: Pending, config: QueueConfig, now_s: float) -> bool:
    """It is of lower priority, allows it, and was left alone for long enough."""
    return not holder.leaves and holder.priority < head.priority and left_alone(holder, config, now_s) is None


def left_alone(holder: Holder, config: QueueConfig, now_s: float) -> tuple[str, float | None] | None:
    """Why it is not asked to yield, whoever waits, and until when (server seconds, where it is known); None: it may."""
    stake = holder.stake
    if stake is None:
        return "does not allow it, or does not train now", None
    least_s = config.preempt_again_s if stake.came_back else config.preempt_min_runtime_s
    if now_s - stake.begun_s < least_s:
        began = "trains again since a preemption" if stake.came_back else "began"
        return f"{began} less than {least_s:.0f} s ago", stake.begun_s + least_s
    if stake.times >= config.max_preemptions_of_job:
        return f"yielded as often within an hour as it may be asked ({config.max_preemptions_of_job})", None
    if stake.kept_s is not None and now_s - stake.kept_s < config.preempt_retry_s:
        return "was asked a moment ago, for nothing", stake.kept_s + config.preempt_retry_s
    return None


def starts_soon(expected_s: float | None, config: QueueConfig, now_s: float) -> bool:
    """Nobody yields for what others' ends bring about."""
    return expected_s is not None and expected_s - now_s <= config.preempt_patience_s


def lost_gpu_s(holder: Holder) -> float:
    """GPU-seconds that it costs to preempt the job now: a save and the step in hand, or the work since its newest
    checkpoint where that is less or no save was ever measured; then a start."""
    stake = holder.stake
    assert stake is not None, "asked of jobs that may yield"
    yielding_s = stake.at_risk_s if stake.save_s is None else min(stake.at_risk_s, stake.save_s + stake.step_s)
    return _devices(holder) * (yielding_s + stake.again_s)


def _devices(holder: Holder) -> int:
    return sum(number for _, number in holder.devices)


def _victim(holder: Holder, stake: Stake) -> Victim:
    return Victim(
        id=holder.id,
        name=holder.name,
        priority=holder.priority,
        attempt=stake.attempt,
        asked=stake.asked,
        devices=_devices(holder),
        at_risk_s=stake.at_risk_s,
        save_s=stake.save_s,
        lost_gpu_s=lost_gpu_s(holder),
    )


class _Search:
    """The set of jobs with the least loss that makes the head fit, of at most `most` jobs."""

    def __init__(self, head: Pending, room: Room, offers: Sequence[Offer], weighed: int, most: int) -> None:
        self._demand, self._room, self._left, self._most = head.demand, room, weighed, most
        self._offers = sorted(offers, key=lambda offer: (offer.price, offer.job.id))
        self._prices = [offer.price for offer in self._offers]
        self._best: tuple[int, ...] = ()
        self._bound: tuple[float, int] = (float("inf"), most + 1)

    def best(self) -> list[Holder]:
        """By id; []: all of them together are not enough, or too many are needed."""
        if self._enough():
            self._walk(0, (), 0.0)
        return sorted((self._offers[number].job for number in self._best), key=lambda holder: holder.id)

    def _enough(self) -> bool:
        """A first set: the least loss for a device first, then without those that are not needed, the dearest first."""
        gains = [self._room.gains(self._demand, job.devices) for job in self._offers]
        cheap = sorted(range(len(self._offers)), key=lambda n: (self._prices[n] / gains[n], n))
        kept = list[int]()
        before = []
        for number in cheap:
            before.append(self._room.give_back(self._offers[number].devices))
            kept.append(number)
            if self._room.fits(self._demand):
                break
        fits = self._room.fits(self._demand)
        for undo in reversed(before):
            self._room.restore(undo)
        if not fits:
            return False
        for number in sorted(kept, key=lambda n: (-self._prices[n], n)):
            less = [each for each in kept if each != number]
            if self._fits(less):
                kept = less
        self._take(tuple(sorted(kept)), sum(self._prices[number] for number in kept))
        return True

    def _fits(self, numbers: Sequence[int]) -> bool:
        undo = [self._room.give_back(self._offers[number].devices) for number in numbers]
        fits = self._room.fits(self._demand)
        for each in reversed(undo):
            self._room.restore(each)
        return fits

    def _walk(self, first: int, chosen: tuple[int, ...], cost: float) -> None:
        """Every set that could be cheaper than the best one so far, as long as sets may be weighed."""
        for number in range(first, len(self._offers)):
            dearer = cost + self._prices[number]
            if (dearer, len(chosen) + 1) >= self._bound or len(chosen) >= self._most or self._left <= 0:
                return
            self._left -= 1
            undo = self._room.give_back(self._offers[number].devices)
            if self._room.fits(self._demand):
                self._take((*chosen, number), dearer)
            else:
                self._walk(number + 1, (*chosen, number), dearer)
            self._room.restore(undo)

    def _take(self, numbers: tuple[int, ...], cost: float) -> None:
        if len(numbers) <= self._most:
            self._best, self._bound = numbers, (cost, len(numbers))
