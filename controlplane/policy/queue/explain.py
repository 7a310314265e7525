"""Why pending jobs wait, what would free what they need, and whom they outrank: `schedule`'s plan, read job by job."""

from collections.abc import Iterable, Sequence

import msgspec

from controlplane.policy.queue.ends import ending
from controlplane.policy.queue.place import Turn, Victim
from controlplane.policy.queue.room import Room, Types
from controlplane.policy.queue.rows import Demand, Entry, Holder, Pending, QueueConfig, QueueFleet, QueuePlan
from controlplane.policy.queue.schedule import schedule
from controlplane.policy.queue.shares import Shares
from controlplane.policy.queue.spared import Spared, spared, why_nobody
from controlplane.policy.queue.until import is_window, kept_from
from controlplane.policy.queue.words import needs, reason
from controlplane.policy.reserved_words import Kept, kept_words

LISTED = 10
"""So many jobs are named of each sort; the rest are counted."""


class Named(msgspec.Struct, frozen=True, kw_only=True):
    """A job in an answer. `ends_s`: server time at which it is expected to end; None: not known."""

    id: str
    name: str
    priority: int
    ends_s: float | None = None


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """`needs` in words; `nodes_free` nodes have that many devices free, `devices_free` are free in all. `ahead`: the
    first of `ahead_count` jobs before it. `preempts`: running jobs that its next pass asks to yield to it; `yields`:
    those that were asked, and whose devices are not free yet. `frees`: jobs whose end, in this sequence, makes room;
    empty where there is room, or where their ends are not known. `outranks`: running jobs of lower priority whose
    devices would be enough, lowest first; empty where all of them together would not be; of one that waits for its
    project's quota those of its project. `no_preemption`: why none of
    them is asked to yield, "" where some are or none could help; `spared`: who of lower priority is left alone.
    `reserved`: free devices that it cannot have, as they are another project's; none where there is room."""

    entry: Entry
    waiting: int
    sentence: str
    needs: str
    devices_free: int
    nodes_free: int | None
    ahead: tuple[Named, ...]
    ahead_count: int
    preempts: tuple[Victim, ...]
    yields: tuple[Named, ...]
    frees: tuple[Named, ...]
    outranks: tuple[Named, ...]
    no_preemption: str
    spared: tuple[Spared, ...]
    reserved: tuple[Kept, ...] = ()


def explain(
    queue: Iterable[Pending], fleet: QueueFleet, config: QueueConfig, now_s: float, job_id: str
) -> Explanation | None:
    """None where the job is not in the queue. `now_s`: server seconds."""
    plan = schedule(queue, fleet, config, now_s)
    entries = [each for each in plan.entries if each.job.id == job_id]
    return next(iter(explained(plan, entries, fleet, config, now_s)), None)


def explained(
    plan: QueuePlan, entries: Sequence[Entry], fleet: QueueFleet, config: QueueConfig, now_s: float
) -> tuple[Explanation, ...]:
    """One for each of these entries of the plan, which was made of this fleet at `now_s`."""
    reader = _Reader(plan, fleet, config, now_s, [entry.job.demand for entry in entries])
    return tuple(map(reader.read, entries))


class _Reader:
    """What makes room is worked out once for all jobs that need the same."""

    def __init__(
        self, plan: QueuePlan, fleet: QueueFleet, config: QueueConfig, now_s: float, demands: Sequence[Demand]
    ) -> None:
        self._plan, self._fleet, self._config, self._now_s = plan, fleet, config, now_s
        self._room = Room(fleet.nodes, Types(model for node in fleet.nodes for model in node.usable), demands)
        self._soon = [(_named(end.holder, end.ends_s), end.devices) for end in ending(fleet.holders, now_s)]
        self._shares = Shares(fleet.projects, fleet.holders)
        self._frees: dict[Demand, tuple[Named, ...]] = {}
        self._lower: dict[int, list[Holder]] = {}
        self._outranks: dict[tuple[Demand, int], tuple[Named, ...]] = {}

    def read(self, entry: Entry) -> Explanation:
        """Of one job of the plan."""
        plan, config, now_s, demand = self._plan, self._config, self._now_s, entry.job.demand
        fits = self._room.fits(demand)
        ahead = plan.entries[: entry.place - 1]
        quota = entry.turn is Turn.QUOTA
        lower = [] if fits and not quota else self._lower_than(entry.job.priority)
        if quota:
            lower = [each for each in lower if each.project == entry.job.project and not entry.behind]
        outranked = tuple(_named(each, each.ends_s) for each in lower) if quota else self._outranked(entry.job, fits)
        yields = [holder for holder in self._fleet.holders if holder.yields_to == entry.job.id]
        # Where all of them together would not be enough, or some save already, nobody asks why no other does.
        alone = spared(entry.job, lower, self._shares, config, now_s) if outranked and not yields else ()
        able, asks = len(alone) < len(lower), bool(outranked and not yields)
        kept = () if fits else kept_from(entry.job, self._fleet.nodes, now_s)
        why = why_nobody(entry, plan, self._fleet.preempted, config, now_s, able=able) if asks else ""
        return Explanation(
            entry=entry,
            waiting=len(plan.entries),
            sentence=_words(entry, plan, fits=fits) + kept_words(kept, now_s),
            needs=needs(demand),
            devices_free=self._room.devices_for(demand),
            nodes_free=self._room.nodes_with(demand) if demand.nodes else None,
            ahead=tuple(Named(id=e.job.id, name=e.job.name, priority=e.job.priority) for e in ahead[:LISTED]),
            ahead_count=len(ahead),
            preempts=plan.victims if plan.head == entry.job.id else (),
            yields=tuple(_named(holder, None) for holder in yields),
            frees=() if fits else self._makes_room(demand)[:LISTED],
            outranks=outranked[:LISTED],
            no_preemption=why,
            spared=alone[:LISTED],
            reserved=kept[:LISTED],
        )

    def _lower_than(self, priority: int) -> list[Holder]:
        """Who runs with a lower priority, the lowest first, of those the one with fewest devices."""
        if priority not in self._lower:
            lower = [each for each in self._fleet.holders if each.priority < priority and not each.leaves]
            lower.sort(key=lambda each: (each.priority, sum(number for _, number in each.devices), each.id))
            self._lower[priority] = lower
        return self._lower[priority]

    def _makes_room(self, demand: Demand) -> tuple[Named, ...]:
        if demand not in self._frees:
            ends = _enough(self._room, demand, self._soon)
            self._frees[demand] = tuple(each for each in ends if not is_window(each.id))
        return self._frees[demand]

    def _outranked(self, job: Pending, fits: bool) -> tuple[Named, ...]:
        if fits:
            return ()
        key = (job.demand, job.priority)
        if key not in self._outranks:
            lower = [(_named(each, each.ends_s), each.devices) for each in self._lower_than(job.priority)]
            self._outranks[key] = _enough(self._room, job.demand, lower)
        return self._outranks[key]


def _words(entry: Entry, plan: QueuePlan, *, fits: bool) -> str:
    where = f"Place {entry.place} of {len(plan.entries)} in the queue"
    if not entry.may_start:
        return f"{where}: {reason(entry, plan)}."
    if fits:
        return f"{where}: there is room, and it starts with its next pass."
    if entry.turn is Turn.TOO_LARGE:
        return f"{where}: the nodes that take work could not hold it if every job ended."
    if entry.place == 1:
        return f"{where}: it is the first to start when there is room."
    return f"{where}: too few devices are free. What it needs is kept for none of those ahead of it."


def _named(holder: Holder, ends_s: float | None) -> Named:
    return Named(id=holder.id, name=holder.name, priority=holder.priority, ends_s=ends_s)


def _enough(room: Room, demand: Demand, ends: Iterable[tuple[Named, Iterable[tuple[str, int]]]]) -> tuple[Named, ...]:
    """The first of these jobs that, with so many of their devices by node free one after the other, make room for the
    demand, less those that give nothing to it; (): all of them do not."""
    future, found = room.copy(), dict[str, Named]()
    for job, devices in ends:
        before = future.devices_for(demand)
        future.give_back(devices)
        if future.devices_for(demand) > before:
            found.setdefault(job.id, job)
        if future.fits(demand):
            return tuple(found.values())
    return ()
