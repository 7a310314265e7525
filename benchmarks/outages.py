"""From commit times to what a failure cost. Pure; the same arithmetic for every contestant.

Theory. Progress is the sequence of first commits of each new highest step. `normal_s` is
the median gap of undisturbed progress. A killed rank is seen in the progress as
    ... before | kill | first commit of the changed membership ... | full strength
`stall_s` is the gap that ends with the first commit of the changed membership, less one
normal step; `rejoin_s` the most that a later gap until two steps after full strength is longer
than it would be undisturbed: a normal step, or `alone_s` where a replica is missing and the
others train its part of the global batch;
`lost_s` the wall time until full strength less what the global batches
trained meanwhile would have taken undisturbed (a step of two thirds of a batch counts as
two thirds); `skipped` the global batches that those steps left out.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from benchmarks.records import Record

STEPS_AFTER_FULL = 2
ALONE_STEPS = 10
SETTLE_STEPS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """One rank was killed at `at_s`. `pid` was its process."""

    at_s: float
    replica: int
    rank: int
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """What one kill cost. Seconds; `redone` and `discarded` in steps of the whole job,
    `skipped` in global batches."""

    stall_s: float
    rejoin_s: float
    full_s: float
    lost_s: float
    redone: int
    discarded: int
    skipped: float


def progress(records: Iterable[Record]) -> list[Record]:
    """First commit of each new highest step, in the order of time."""
    found: list[Record] = []
    for record in sorted((item for item in records if item.kind == "step"), key=lambda item: item.at_s):
        if not found or record.step > found[-1].step:
            found.append(record)
    return found


def normal_step_s(records: Iterable[Record], *, until_s: float) -> float:
    """Median gap of the progress before `until_s`. Needs at least three commits."""
    times = [record.at_s for record in progress(records) if record.at_s < until_s]
    assert len(times) > 2, "too few undisturbed steps to know a normal one"
    return median(b - a for a, b in pairwise(times))


def alone_step_s(records: Iterable[Record], *, replicas: int) -> float | None:
    """Median gap of the newest ALONE_STEPS steps without the first SETTLE_STEPS, in seconds; None
    while fewer of them were trained with a replica less, one after the other."""
    newest = progress(records)[-ALONE_STEPS:]
    if sum(item.contributors < replicas for item in newest) < ALONE_STEPS:
        return None
    return median(b.at_s - a.at_s for a, b in pairwise(newest[SETTLE_STEPS:]))


def is_full_again(records: Sequence[Record], kill: Kill, *, replicas: int) -> float | None:
    """When a new process of the killed slot first took part in a *new* step with everybody
    contributing. None: not yet."""
    before = [item for item in records if item.kind == "step" and item.at_s <= kill.at_s]
    highest = max((item.step for item in before), default=0)
    times = [
        item.at_s
        for item in records
        if item.kind == "step" and item.at_s > kill.at_s and item.step > highest and item.contributors == replicas
        and (item.replica, item.rank) == (kill.replica, kill.rank) and item.pid != kill.pid
    ]  # fmt: skip
    return min(times, default=None)


def outage(
    records: Sequence[Record], kill: Kill, *, replicas: int, normal_s: float, alone_s: float | None = None
) -> Outage | None:
    """The cost of `kill`; None while full strength is not reached. `alone_s`: an undisturbed step
    with one replica less (None: as long as a normal one, for its part of the batch is left out)."""
    full_at_s = is_full_again(records, kill, replicas=replicas)
    if full_at_s is None:
        return None
    line = progress(records)
    gaps = [(a, b) for a, b in pairwise(line) if b.at_s > kill.at_s]
    new_pids = _pids_started_after(records, kill)
    changed = next(
        index
        for index, (_, b) in enumerate(gaps)
        if b.contributors < replicas or b.pid in new_pids or b.at_s >= full_at_s
    )
    first = gaps[changed][1].at_s - gaps[changed][0].at_s
    last = next((index for index, (_, b) in enumerate(gaps) if b.at_s >= full_at_s), len(gaps) - 1)
    short_s = normal_s if alone_s is None else alone_s
    later = [
        b.at_s - a.at_s - (short_s if b.contributors < replicas else normal_s)
        for a, b in gaps[changed + 1 : last + 1 + STEPS_AFTER_FULL]
    ]
    shares = [b.batch for _, b in gaps if b.at_s <= full_at_s]
    full_s = full_at_s - kill.at_s
    return Outage(
        stall_s=max(0.0, first - normal_s),
        rejoin_s=max([0.0, *later]),
        full_s=full_s,
        lost_s=max(0.0, full_s - sum(shares) * normal_s),
        redone=_redone(records, kill, full_at_s),
        discarded=_discarded(records, kill, full_at_s),
        skipped=sum(1.0 - share for share in shares),
    )


def _pids_started_after(records: Sequence[Record], kill: Kill) -> set[int]:
    return {item.pid for item in records if item.kind == "start" and item.at_s > kill.at_s}


def _redone(records: Sequence[Record], kill: Kill, until_s: float) -> int:
    """Steps that the same slot committed before the kill and again after it."""
    steps = [item for item in records if item.kind == "step" and item.at_s <= until_s]
    before = {(item.replica, item.rank, item.step) for item in steps if item.at_s <= kill.at_s}
    again = {item.step for item in steps if item.at_s > kill.at_s and (item.replica, item.rank, item.step) in before}
    return len(again)


def _discarded(records: Sequence[Record], kill: Kill, until_s: float) -> int:
    """Steps that survivors computed and threw away, by the survivor with the most."""
    counts: dict[tuple[int, int], int] = {}
    for item in records:
        if item.kind == "discard" and kill.at_s < item.at_s <= until_s and item.replica != kill.replica:
            counts[item.replica, item.rank] = counts.get((item.replica, item.rank), 0) + 1
    return max(counts.values(), default=0)
