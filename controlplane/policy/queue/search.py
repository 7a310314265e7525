"""The set of offers with the least loss that makes the head of the queue fit: single replicas, or whole jobs.

A greedy set first, then every set that could be cheaper, as long as sets may be weighed. Of one job at most
`Holder.spares` replicas, or the whole of it. Called by `policy.queue.preempt` alone. Pure.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from controlplane.policy.queue.room import Room
from controlplane.policy.queue.rows import Demand, Holder, Part

Devices = tuple[tuple[str, int], ...]
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Offer:
    """What a job may yield for `price` GPU-seconds: the replica `part`, or (None) all; others get these `devices`, and
    its project may use `counted` more."""

    job: Holder
    price: float
    devices: Devices
    part: Part | None = None
    counted: int = 0

    @property
    def key(self) -> tuple[float, str, int]:
        """The cheaper first, then by job and replica."""
        return self.price, self.job.id, self.part.index if self.part is not None else -1


class Allowed(NamedTuple):
    """So many jobs more of the fleet may be asked; and so many of one project, with those that were
    (`Holder.suffered`)."""

    of_fleet: int
    of_project: int


class Search:
    """Over offers of no more jobs than `most`; `weighed`: so many sets at most. `room`: what is free without them; it
    is as before when the search is over. `owed`: of jobs that yield because their project has borrowed, how many
    devices it has; from a project no more is taken once so many are. `lacks`: so many devices of a quota must become
    free, by offers that all count for it."""

    def __init__(
        self,
        demand: Demand,
        room: Room,
        offers: Sequence[Offer],
        *,
        weighed: int,
        most: Allowed,
        owed: Mapping[str, int] | None = None,
        lacks: int = 0,
    ) -> None:
        self._demand, self._room, self._left, self._most = demand, room, weighed, most
        self._owed, self._lacks = owed or {}, lacks
        self._offers = sorted(offers, key=lambda offer: offer.key)
        self._of_job: dict[str, list[int]] = defaultdict(list)
        for number, offer in enumerate(self._offers):
            self._of_job[offer.job.id].append(number)
        self._best: tuple[int, ...] = ()
        self._bound: tuple[float, int] = (float("inf"), len(offers) + 1)

    def best(self) -> list[Offer]:
        """By job and replica; []: all of them together are not enough, or too many are needed."""
        gains = [
            max(1, self._room.gains(self._demand, offer.devices), offer.counted * (self._lacks > 0))
            for offer in self._offers
        ]
        numbers = range(len(self._offers))
        cheap = sorted(numbers, key=lambda n: (self._offers[n].price / gains[n], n))
        # Where only so many replicas of a job may leave, its cheapest ones may be the wrong ones.
        large = sorted(numbers, key=lambda n: (-gains[n], n))
        if self._enough(cheap) or self._enough(large) or self._fits(numbers):
            self._walk(0, (), 0.0)
        chosen = (self._offers[number] for number in self._best)
        return sorted(chosen, key=lambda offer: (offer.job.id, offer.part.index if offer.part is not None else -1))

    def _enough(self, numbers: Sequence[int]) -> bool:
        """A first set: in this order, then without those that are not needed, the dearest first."""
        kept, before = list[int](), []
        for number in numbers:
            offer = self._offers[number]
            if offer.part is None:
                given = [each for each in kept if self._offers[each].job.id == offer.job.id]
                left = [each for each in kept if each not in given]
                if not self._may(number, left):
                    continue
                kept = left
                before.append(self._room.give_back(_less(offer.devices, [self._offers[n].devices for n in given])))
            elif not self._suits(number, kept):
                continue
            else:
                before.append(self._room.give_back(offer.devices))
            kept.append(number)
            if self._suffices(kept):
                break
        fits = self._suffices(kept)
        for undo in reversed(before):
            self._room.restore(undo)
        if not fits:
            return False
        kept = sorted(self._needed(sorted(kept, key=lambda n: (-self._offers[n].price, n)), []))
        self._take(tuple(kept), sum(self._offers[number].price for number in kept))
        return True

    def _needed(self, numbers: Sequence[int], beside: list[int]) -> list[int]:
        """Of these, asked one by one, those without which the others are not enough: the ones that were needed and the
        ones that come later. The room has what is `beside`. Each is given back once for each halving."""
        if len(numbers) <= 1:
            return [] if self._suffices(beside) else list(numbers)
        half = len(numbers) // 2
        first, last = numbers[:half], numbers[half:]
        kept = self._beside(last, lambda: self._needed(first, [*beside, *last]))
        return kept + self._beside(kept, lambda: self._needed(last, [*beside, *kept]))

    def _fits(self, numbers: Sequence[int]) -> bool:
        return self._beside(numbers, lambda: self._suffices(numbers))

    def _beside(self, numbers: Sequence[int], ask: Callable[[], Answer]) -> Answer:
        """The answer while the room has the devices of these, too."""
        undo = [self._room.give_back(self._offers[number].devices) for number in numbers]
        answer = ask()
        for each in reversed(undo):
            self._room.restore(each)
        return answer

    def _suffices(self, numbers: Iterable[int]) -> bool:
        """When the room has the devices of these."""
        freed = sum(self._offers[number].counted for number in numbers) if self._lacks else 0
        return freed >= self._lacks and self._room.fits(self._demand)

    def _walk(self, first: int, chosen: tuple[int, ...], cost: float) -> None:
        """Every set that could be cheaper than the best one so far, as long as sets may be weighed."""
        for number in self._open(first, chosen):
            offer = self._offers[number]
            dearer = cost + offer.price
            if (dearer, len(chosen) + 1) >= self._bound or self._left <= 0:
                return
            if not self._suits(number, chosen):
                continue
            self._left -= 1
            undo = self._room.give_back(offer.devices)
            if self._suffices((*chosen, number)):
                self._take((*chosen, number), dearer)
            else:
                self._walk(number + 1, (*chosen, number), dearer)
            self._room.restore(undo)

    def _open(self, first: int, chosen: Sequence[int]) -> Sequence[int]:
        """Numbers from `first` on that may come to these: once as many jobs yield as may, those of these jobs."""
        jobs = {self._offers[number].job.id for number in chosen}
        if len(jobs) < self._most.of_fleet:
            return range(first, len(self._offers))
        return sorted(number for job_id in jobs for number in self._of_job[job_id] if number >= first)

    def _suits(self, number: int, chosen: Sequence[int]) -> bool:
        """Not the whole of a job beside one of its replicas, nor more replicas than may leave."""
        offer = self._offers[number]
        of_it = [n for n in chosen if self._offers[n].job.id == offer.job.id]
        if not self._may(number, chosen):
            return False
        if not of_it:
            return offer.part is None or offer.job.spares > 0
        alike = all(self._offers[n].part is not None for n in of_it)
        return offer.part is not None and alike and len(of_it) < offer.job.spares

    def _may(self, number: int, chosen: Sequence[int]) -> bool:
        """Its job is outranked, or its project owes devices still when the chosen ones have yielded theirs; and with
        them no more jobs of the project yield than may."""
        job = self._offers[number].job
        owed = self._owed.get(job.id)
        its = [self._offers[n] for n in chosen if self._offers[n].job.project == job.project]
        if job.suffered + len({job.id, *(offer.job.id for offer in its)}) > self._most.of_project:
            return False
        return owed is None or owed > sum(size for offer in its for _, size in offer.devices)

    def _jobs(self, numbers: Sequence[int]) -> int:
        return len({self._offers[number].job.id for number in numbers})

    def _take(self, numbers: tuple[int, ...], cost: float) -> None:
        if self._jobs(numbers) <= self._most.of_fleet:
            self._best, self._bound = numbers, (cost, len(numbers))


def _less(devices: Devices, given: Sequence[Devices]) -> Devices:
    """Without those that its replicas have given."""
    left = Counter(dict(devices))
    for part in given:
        left.subtract(dict(part))
    return tuple(sorted((+left).items()))
