"""How fast a job commits steps, learned one commit at a time: the undisturbed step, the job's own
best, and what it does now.

Called by the ingest of step reports, which keeps a `Pace` for each job, and by `jobs.numbers`,
which reads it; a step costs the same whatever came before. Never reads a clock or a row.

Theory. Time between commits is the one clock that adds up to wall time: clocks of ranks overlap.
A gap is *undisturbed* when both commits and `WARM_UP_STEPS` before them were made by the same
membership at the job's greatest strength so far (the most devices that contributed for `MIN_GAPS`
undisturbed gaps in a row). The *best* is the lowest median of `WINDOW` undisturbed gaps; the
undisturbed step is the median of all undisturbed gaps of at most `NEAR` times the best, so that a
slow hour does not become what the job is measured by. Right after a change of members what came up still takes
processors and network of those that train: a gap that follows `SETTLED` others of one membership weighs as much as
`WEIGHT` of those before it. Gaps are counted in bins of `RATIO`, so that the median is within a quarter of a
percent.

*Full strength* is what the job asked for (`protocol.spec.contributing_devices`), also where it goes
on smaller or in another layout. While it was never seen, the step of the greatest strength so far is
scaled by devices that contributed / devices wanted, and the figure is *estimated*.
"""

import math
from statistics import median

import msgspec

from controlplane.policy.timeouts import WARM_UP_STEPS

WINDOW = 16
MIN_GAPS = 3
NEAR = 1.5
SETTLED = 16
WEIGHT = 16
RATIO = 1.005
STILL = 3.0
LEAST = 0.5
"""Of what the ranks say that a step took: their clocks overlap, and none is so long that half of it is not theirs."""
MARK_EVERY_S = 3600.0
MARKS = 52
"""A day of hourly marks and one before it, twice: a pause of an hour has one at each end."""


class Commit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The first report of a committed step, at `at_s` (Unix seconds), by `gpus` devices that
    contribute (0: not known). `kept`: steps that count, this one included; `step_s`: what its ranks say that it
    took (None: nothing)."""

    attempt: int
    step: int
    epoch: int
    at_s: float
    gpus: int
    kept: int
    step_s: float | None = None


class Mark(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """So many steps were kept at `at_s`."""

    at_s: float
    kept: int


class Undisturbed(msgspec.Struct, frozen=True):
    """The time of a step at full strength while nothing happens. `estimated`: full strength was not
    seen yet, this is what the greatest so far makes of it."""

    step_s: float
    estimated: bool


class Pace(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What is kept of a job's commits. `run`: commits in a row of one membership; `full_gpus`: its
    greatest strength so far, in devices; `bins`: undisturbed gaps at that strength by size, by weight; `window` the
    newest of them, `recent` the newest gaps of any kind, seconds;
    `refused`: gaps that are no step's time (not above 0, or far below what its ranks say: commits that waited
    somewhere and came together)."""

    attempt: int = 0
    step: int = -1
    epoch: int = 0
    at_s: float = 0.0
    run: int = 0
    full_gpus: int = 0
    bins: dict[int, int] = {}
    window: list[float] = []
    recent: list[float] = []
    best_s: float | None = None
    marks: list[Mark] = []
    refused: int = 0


def count(pace: Pace, commit: Commit) -> None:
    """Take one commit in. Told again, or older than what was counted: nothing changes."""
    if (commit.attempt, commit.step) <= (pace.attempt, pace.step):
        return
    follows = commit.attempt == pace.attempt and commit.step == pace.step + 1
    same = follows and commit.epoch == pace.epoch
    pace.run = pace.run + 1 if same else 1
    if commit.attempt != pace.attempt:
        pace.recent = []
    gap_s = commit.at_s - pace.at_s
    if follows and gap_s > LEAST * (commit.step_s or 0.0):
        pace.recent = [*pace.recent[-WINDOW + 1 :], gap_s]
        if pace.run > 1 + WARM_UP_STEPS:
            _undisturbed(pace, gap_s, commit.gpus)
    elif follows:
        pace.refused += 1
    if pace.marks and gap_s >= MARK_EVERY_S:
        # Where the pause began: what it cannot have been given is no step of it.
        pace.marks = [*pace.marks[-MARKS + 2 :], Mark(pace.at_s, commit.kept - 1)]
    pace.attempt, pace.step, pace.epoch, pace.at_s = commit.attempt, commit.step, commit.epoch, commit.at_s
    if not pace.marks or commit.at_s - pace.marks[-1].at_s >= MARK_EVERY_S:
        pace.marks = [*pace.marks[-MARKS + 1 :], Mark(commit.at_s, commit.kept)]


def _undisturbed(pace: Pace, gap_s: float, gpus: int) -> None:
    if gpus > pace.full_gpus:
        # Stronger than ever: what was undisturbed until now is less than that, and stays in use until
        # there are enough of the new ones.
        if pace.run >= 1 + WARM_UP_STEPS + MIN_GAPS:
            pace.full_gpus, pace.bins, pace.window, pace.best_s = gpus, {}, [], None
            for each_s in pace.recent[-MIN_GAPS:]:
                _keep(pace, each_s)
    elif gpus == pace.full_gpus > 0:
        _keep(pace, gap_s)


def _keep(pace: Pace, gap_s: float) -> None:
    place = round(math.log(gap_s) / math.log(RATIO))
    weight = WEIGHT if pace.run > 1 + WARM_UP_STEPS + SETTLED else 1
    pace.bins[place] = pace.bins.get(place, 0) + weight
    pace.window = [*pace.window[-WINDOW + 1 :], gap_s]
    if len(pace.window) == WINDOW:
        found_s = median(pace.window)
        pace.best_s = found_s if pace.best_s is None else min(pace.best_s, found_s)


def best_step_s(pace: Pace) -> float | None:
    """The job's own best, seconds a step; None before `MIN_GAPS` undisturbed ones."""
    if pace.best_s is not None or len(pace.window) < MIN_GAPS:
        return pace.best_s
    return median(pace.window)


def undisturbed_step(pace: Pace, *, wanted_gpus: int) -> Undisturbed | None:
    """What a step takes at full strength, `wanted_gpus` devices, while nothing happens; None before
    `MIN_GAPS` of them at some strength."""
    seen_s = _seen_step_s(pace)
    if seen_s is None:
        return None
    short = pace.full_gpus < wanted_gpus
    return Undisturbed(seen_s * pace.full_gpus / wanted_gpus if short else seen_s, short)


def _seen_step_s(pace: Pace) -> float | None:
    """At the greatest strength so far."""
    best_s = best_step_s(pace)
    if best_s is None:
        return None
    places = sorted(place for place in pace.bins if RATIO**place <= NEAR * best_s)
    half = sum(pace.bins[place] for place in places) / 2.0
    for place in places:
        half -= pace.bins[place]
        if half <= 0:
            return float(RATIO**place)
    return best_s


def productivity(pace: Pace, *, open_s: float = 0.0) -> float | None:
    """Speed of the newest commits over the job's own best; 1 / 2.4 after a slow-down by 2.4. `open_s`: since the
    newest commit, seconds; a step under way that takes longer than those before is the speed by now. None
    before a whole window was undisturbed: the first few steps are no best to be held against."""
    if pace.best_s is None or len(pace.recent) < MIN_GAPS:
        return None
    return pace.best_s / max(median(pace.recent), open_s)


def stands_still(pace: Pace, *, open_s: float) -> bool:
    """No commit for `STILL` times what the newest steps of this attempt took at most: when the next one comes
    cannot be worked out from them. An attempt that has not committed twice is judged by nothing."""
    return bool(pace.recent) and open_s > STILL * max(pace.recent)


def kept_by(pace: Pace, moment_s: float, *, kept: int) -> float:
    """So many steps were kept at that moment, those between two marks as if they had come evenly; 0 where all marks
    are younger. `kept`: by now."""
    before = next((mark for mark in reversed(pace.marks) if mark.at_s <= moment_s), None)
    if before is None:
        return 0.0
    now = Mark(pace.at_s, kept)
    after = next((mark for mark in pace.marks if mark.at_s > moment_s), now)
    if after.at_s <= moment_s:
        return float(after.kept)
    return before.kept + (after.kept - before.kept) * (moment_s - before.at_s) / (after.at_s - before.at_s)
