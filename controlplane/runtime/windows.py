"""What happened within the last so many seconds, and how old a time is, whatever the clock was set to.

Rows keep the time that the clock told when they were written, for people. A step of the clock is a
row too (`ClockStep`), so a window that reaches over one is two pieces of the calendar: from the step
until now, and what is left of it before the step, by the clock of then.
"""

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import reduce
from operator import or_
from pathlib import Path
from time import CLOCK_BOOTTIME, clock_gettime
from typing import Any, Generic, TypeVar

from django.db.models import Field, Model, Q, QuerySet

from controlplane.runtime.clock import AHEAD_S, now
from controlplane.runtime.models import ClockStep
from controlplane.runtime.prepared import MOMENT, Prepared, Several

RANKS, COMMANDS = "ranks", "commands"
"""What was under way when the clock was set is listed by these names."""
MAX_STEPS = 20
"""Steps further back than this many are not looked for."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
Row = TypeVar("Row", bound=Model)
Found = TypeVar("Found")
_STEPS = Prepared(lambda: ClockStep.objects.order_by("-id")[:MAX_STEPS])


def uptime() -> tuple[str, float]:
    """Which boot of this machine it is, and seconds since: what no step of the clock moves, and what
    outlives a process. "": not known."""
    try:
        return BOOT_ID.read_text().strip(), clock_gettime(CLOCK_BOOTTIME)
    except OSError:
        return "", 0.0


def known() -> list[ClockStep]:
    """Steps of the clock, the newest first."""
    return _STEPS()


def newest_before(at: datetime) -> int:
    """Which step of the clock was the newest when it told `at`, lately: its row's number; 0: none."""
    latest = now() + timedelta(seconds=AHEAD_S)
    return next((step.pk for step in known() if step.set_at <= at <= latest), 0)


def within(rows: QuerySet[Row], column: str, seconds: float, steps: list[ClockStep] | None = None) -> QuerySet[Row]:
    """Those of `rows` of the last so many seconds. `steps`: of `known`, which who asks often reads once."""
    steps = known() if steps is None else steps
    found = []
    for number, (first, last) in enumerate(pieces(steps, seconds, until=now())):
        piece = Q(**{f"{column}__gte": first})
        if steps:
            # A time far ahead was written before the clock was set back.
            piece &= Q(**{f"{column}__{'lt' if number else 'lte'}": last})
        # What is told by a clock of before one of these steps, the first of which begins this piece.
        older = [pk for step in steps[number:] for pk in step.older.get(rows.model._meta.label, ())]
        found.append(piece & ~Q(pk__in=older) if older else piece)
    return rows.filter(reduce(or_, found))


class Within(Generic[Found]):
    """What `shown` makes of those of `rows` of the last so many seconds: a `Prepared` while the clock was never set,
    which is all that most servers know."""

    def __init__(
        self,
        rows: Callable[..., QuerySet[Any]],
        column: str,
        shown: Callable[[QuerySet[Any]], QuerySet[Any, Found]],
        **fields: "Field[Any, Any] | Several",
    ) -> None:
        self._rows, self._column, self._shown = rows, column, shown
        self._prepared = Prepared(
            lambda since, **marks: shown(rows(**marks).filter(**{f"{column}__gte": since})), since=MOMENT, **fields
        )

    def __call__(self, seconds: float, steps: list[ClockStep], **given: Any) -> list[Found]:
        """`steps`: of `known`; a value for each of the fields. Raises what `Prepared` does."""
        if steps:
            return list(self._shown(within(self._rows(**given), self._column, seconds, steps)))
        return self._prepared(since=now() - timedelta(seconds=seconds), **given)


def age_s(at: datetime, steps: list[ClockStep] | None = None) -> float:
    """Seconds since `at`, which was written before or after the clock was set (`steps`: of `known`, which who asks
    often reads once)."""
    return _age_s(at, now(), known() if steps is None else steps)


def present(at: datetime, steps: list[ClockStep], *, until: datetime | None = None) -> datetime:
    """The moment of `at` as the clock would tell it that was set by these steps (of `known`) and tells `until` (None:
    it is now) at the latest. Where it was set back since, and that is not known, what it tells is left as it is."""
    end = until or now()
    if not steps or end < steps[0].set_at or steps[0].set_at <= at <= end + timedelta(seconds=AHEAD_S):
        return at
    return end - timedelta(seconds=_age_s(at, end, steps))


def of_clock_before(rows: QuerySet[Row], since: datetime) -> list[str]:
    """Keys of those that a clock told of before it was set back, where the present one tells their times again
    after `since`: of `recovery.counts.counted` alone."""
    again = [step for step in known() if step.set_at - timedelta(seconds=step.step_s - 2.0 * AHEAD_S) >= since]
    return [pk for step in again for pk in step.older.get(rows.model._meta.label, ())]


def whole(rows: QuerySet[Row], kind: str, first: str, last: str, steps: list[ClockStep] | None = None) -> QuerySet[Row]:
    """Those of `rows` between whose two times the clock was not set: they tell how long something took. `kind`:
    as what was under way is listed when the clock is set; `steps`: of `known`."""
    steps = known() if steps is None else steps
    if not steps:
        return rows
    across = {
        pk for pks in ClockStep.objects.order_by("-id").values_list(f"older__{kind}", flat=True) for pk in pks or ()
    }
    for step in steps:
        if step.step_s > 0.0:
            # By a clock that was set ahead nothing else lies around that.
            rows = rows.exclude(**{f"{first}__lt": step.set_at, f"{last}__gte": step.set_at})
    return rows.exclude(pk__in=across) if across else rows


def between_s(first: datetime, last: datetime) -> float:
    """Seconds from one to the other, whatever the clock was set to before, between and after them."""
    end, steps = now(), known()
    return _age_s(first, end, steps) - _age_s(last, end, steps)


def _age_s(at: datetime, end: datetime, steps: list[ClockStep]) -> float:
    last, since_s, late_s = end + timedelta(seconds=AHEAD_S), 0.0, None
    for step in steps:
        if step.set_at <= at <= end + timedelta(seconds=AHEAD_S):
            break
        if late_s is None and step.set_at <= at <= last:
            # By the clock before it was set ahead, a little late; unless an older clock told that time.
            late_s = since_s
        since_s += (end - step.set_at).total_seconds()
        end = step.set_at - timedelta(seconds=step.step_s)
        last = max(end, step.set_at)
    else:
        if late_s is not None and at > end:
            return late_s
    return max(0.0, since_s + (end - at).total_seconds())


def pieces(steps: list[ClockStep], seconds: float, *, until: datetime) -> Iterator[tuple[datetime, datetime]]:
    """Of the calendar, of so many seconds until that moment, which the clock told after these steps: from (inclusive)
    and until (exclusive, but for the first), the newest first."""
    left_s, end = seconds, until
    last = end + timedelta(seconds=AHEAD_S)
    for step in steps:
        if end - timedelta(seconds=left_s) >= step.set_at:
            break
        yield step.set_at, last
        left_s -= (end - step.set_at).total_seconds()
        end = step.set_at - timedelta(seconds=step.step_s)
        # Where it was set ahead, the times between are told by no clock but the one before, a little late.
        last = max(end, step.set_at)
    yield end - timedelta(seconds=left_s), last
