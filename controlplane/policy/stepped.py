"""What was counted of a job's time, when the server's clock was set: as if it had always told the present time.

Called by what moves rows with the clock, with `policy.pace` and `policy.spent` of each job that is not over. All
that was counted before the step is moved by it, and the gap that holds the step loses it again. Commits of after
the step may have been counted already: by times alone that cannot be told after a step back, as the clock then
tells the same times once more. So `Spent` keeps the newest gaps that no ordinary step explains; all that came
before the one of them that holds the step is of the clock before. Never reads a clock or a row.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from controlplane.policy.pace import MARK_EVERY_S, STILL, Mark, Pace, best_step_s
from controlplane.policy.spent import DEGRADED, STALLED, Gap, Spent

AHEAD_S = 1.0
"""Server processes tell the time by clocks that agree so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockSet:
    """The clock was set by `step_s`; times that the present clock told lie from `since_s` until `now_s` (Unix
    seconds). Others are of the clock before."""

    step_s: float
    since_s: float
    now_s: float

    def moved_s(self, at_s: float) -> float:
        """The moment by the present clock, as far as it tells itself which clock told it."""
        return at_s if self._is_present(at_s) else at_s + self.step_s

    def _is_present(self, at_s: float) -> bool:
        return self.since_s <= at_s <= self.now_s + AHEAD_S

    def holding(self, spent: Spent) -> int | None:
        """Which of the kept gaps holds the step; None: none does, no commit was counted since (or a step of the
        clock is not longer than one of the job)."""
        if not self._is_present(spent.at_s):
            return None
        if self.step_s > 0.0:
            found = [place for place, gap in enumerate(spent.gaps) if self._leaps(gap)]
            return found[-1] if found else None
        back = [place for place, gap in enumerate(spent.gaps) if self.step_s <= gap.length_s <= 0.0]
        return min(back, key=lambda place: spent.gaps[place].length_s, default=None)

    def _leaps(self, gap: Gap) -> bool:
        before = gap.from_s < self.since_s and gap.until_s > self.since_s - self.step_s
        return before and gap.length_s >= self.step_s


def said_before(moments: Sequence[float]) -> int:
    """How many of these, told one after the other, are of the clock before it was set back: all before the last that
    is earlier than the one before it. 0: none is, and their times alone must tell."""
    drops = (place for place in range(len(moments) - 1, 0, -1) if moments[place] < moments[place - 1])
    return next(drops, 0)


def move(pace: Pace, spent: Spent | None, by: ClockSet) -> bool:
    """Bring both to the present clock; whether a commit of after the step was counted already."""
    place = by.holding(spent) if spent is not None else None
    if spent is not None and place is not None:
        _move_before(pace, spent, by, place)
        return True
    at_s = pace.at_s if spent is None else spent.at_s
    whole = by.moved_s(at_s) != at_s
    pace.marks = [Mark(mark.at_s + by.step_s if whole else by.moved_s(mark.at_s), mark.kept) for mark in pace.marks]
    pace.at_s = pace.at_s + by.step_s if whole else pace.at_s
    if spent is None:
        return False
    if whole:
        spent.began_s, spent.at_s, spent.gaps = spent.began_s + by.step_s, spent.at_s + by.step_s, []
    else:
        _even(spent, by.moved_s(spent.began_s))
    return False


def _even(spent: Spent, began_s: float) -> None:
    """It began at another moment of the present clock: in some ordinary gap the clock was set by as much."""
    spent.seconds = spent.seconds | {DEGRADED: spent.seconds.get(DEGRADED, 0.0) + spent.began_s - began_s}
    spent.began_s = began_s


def _move_before(pace: Pace, spent: Spent, by: ClockSet, place: int) -> None:
    """All that was counted before that gap, and the gap."""
    gap = spent.gaps[place]
    true_s, best_s, kind = gap.length_s - by.step_s, best_step_s(pace), gap.kind
    if kind in (STALLED, DEGRADED):
        kind = STALLED if best_s is not None and true_s > STILL * best_s else DEGRADED
    for of, sign, length_s in ((gap.kind, -1, gap.length_s), (kind, 1, true_s)):
        spent.seconds = spent.seconds | {of: spent.seconds.get(of, 0.0) + sign * length_s}
        spent.steps = spent.steps | {of: spent.steps.get(of, 0) + sign * gap.new_steps}
    spent.began_s += by.step_s
    # The clock may have been set once more in it.
    corrected = msgspec.structs.replace(gap, from_s=gap.from_s + by.step_s, kind=kind)
    spent.gaps = [corrected, *spent.gaps[place + 1 :]]
    ahead = by.step_s > 0.0
    before = [mark for mark in pace.marks if (mark.at_s < gap.until_s if ahead else mark.at_s != gap.until_s)]
    after = [mark for mark in pace.marks if mark not in before]
    pace.marks = [Mark(mark.at_s + by.step_s, mark.kept) for mark in before]
    if pace.marks and after and after[0].at_s - pace.marks[-1].at_s < MARK_EVERY_S:
        # Not an hour had passed.
        after = after[1:]
    pace.marks += after
    if ahead and pace.recent and max(pace.recent) >= by.step_s:
        # Not what a step took. A gap that is not above 0 was never among them.
        longest = pace.recent.index(max(pace.recent))
        pace.recent = pace.recent[:longest] + pace.recent[longest + 1 :]
