"""What each second of one job was: its runs one after the other, the rest of its time, and the shares of each.

Of a second in which training replicas held D devices in a run's mean, `steps` x undisturbed step x full strength /
(D x length) is productive: a step of fewer devices takes longer, so a job that goes on smaller is as productive
a device. Lost steps are lost work, what saves took is checkpoint, and the rest is of the run's kind. Nothing is cut at
0, as in `policy.spent`: the shares of a second are exactly 1, and a rest below 0 says that the undisturbed step was
taken too long.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec

from controlplane.policy.ledger.facts import Cause, JobFacts, Run
from controlplane.policy.ledger.levels import Level
from controlplane.policy.pace import STILL
from controlplane.policy.spent import AGAIN, DEGRADED, RECOVERY, STALLED
from controlplane.protocol.ledger import CauseKind, TimeClass

CLASSES = tuple(TimeClass)
PLACE = {of: place for place, of in enumerate(CLASSES)}
UNKNOWN = "unknown"
"""Kind of a job's time of which nobody counted a commit."""
CLASS_OF = {
    AGAIN: TimeClass.LOST_WORK,
    RECOVERY: TimeClass.RECOVERY,
    STALLED: TimeClass.STALL,
    DEGRADED: TimeClass.DEGRADED,
    UNKNOWN: TimeClass.NOT_OBSERVED,
}


class Share(msgspec.Struct, frozen=True, gc=False):
    """Of each second of a training device."""

    of: TimeClass
    cause: Cause
    part: float


class Stretch(msgspec.Struct, frozen=True, gc=False):
    """Shares of a training device's second, which are 1 together, and what one is of a device that is held and does
    not train."""

    from_s: float
    until_s: float
    training: tuple[Share, ...]
    held: Share
    restated: bool


def course(job: JobFacts, runs: Iterable[Run], training: Level, judged_s: float) -> list[Stretch]:
    """From before the job until after it, without a hole. `training`: devices of training replicas."""
    whole = _whole(job, sorted(runs, key=lambda run: (run.from_s, run.until_s, run.kind)), judged_s)
    return [_stretch(job, run, training) for run in whole]


class Sums:
    """What a device that trains all the time has of each class until a moment; so are many spans of many nodes
    counted without a walk over the job's runs for each."""

    def __init__(self, stretches: Sequence[Stretch], *, training: bool) -> None:
        finite = [each for each in stretches if math.isfinite(each.from_s)]
        self._at = [each.from_s for each in finite]
        self._parts = [_parts(each, training=training) for each in finite]
        self._before = _parts(stretches[0], training=training)
        sums = [0.0] * len(CLASSES)
        self._sums = [sums]
        for place, (from_s, until_s) in enumerate(pairwise(self._at)):
            sums = sums.copy()
            for of, part in self._parts[place]:
                sums[of] += part * (until_s - from_s)
            self._sums.append(sums)

    def between(self, from_s: float, until_s: float) -> list[tuple[TimeClass, float]]:
        """Seconds by class."""
        both = zip(CLASSES, self._until(from_s), self._until(until_s), strict=True)
        return [(of, last - first) for of, first, last in both if last != first]

    def _until(self, moment: float) -> list[float]:
        place = bisect_right(self._at, moment) - 1
        if place < 0:
            long_s, parts, sums = moment - (self._at[0] if self._at else 0.0), self._before, self._sums[0].copy()
        else:
            long_s, parts, sums = moment - self._at[place], self._parts[place], self._sums[place].copy()
        for of, part in parts:
            sums[of] += part * long_s
        return sums


def _parts(stretch: Stretch, *, training: bool) -> list[tuple[int, float]]:
    """By place in `CLASSES`."""
    return [(PLACE[share.of], share.part) for share in (stretch.training if training else (stretch.held,))]


def _whole(job: JobFacts, runs: Sequence[Run], judged_s: float) -> list[Run]:
    """The runs with what lies before, between and after them; where two overlap, the earlier one has it."""
    found: list[Run] = []
    at_s = -math.inf
    for run in runs:
        until_s = max(at_s, run.until_s)
        if run.from_s > at_s:
            found.append(_rest(job, at_s, run.from_s, UNKNOWN))
            at_s = run.from_s
        if until_s > at_s:
            # All its steps stay in it: so none is counted twice or forgotten.
            found.append(_clipped(run, at_s, until_s))
        elif found:
            found[-1] = _with_steps_of(found[-1], run)
        at_s = until_s
    if not runs and job.began_s is not None:
        found.append(_rest(job, -math.inf, job.began_s, RECOVERY))
        at_s = job.began_s
    return [*found, *_tail(job, at_s, judged_s, started=bool(runs))]


def _clipped(run: Run, from_s: float, until_s: float) -> Run:
    if (run.from_s, run.until_s) == (from_s, until_s):
        return run
    return Run(
        job=run.job, from_s=from_s, until_s=until_s, kind=run.kind, steps=run.steps, lost_steps=run.lost_steps,
        saved_s=run.saved_s, cause=run.cause, lost_cause=run.lost_cause, preempted=run.preempted, restated=run.restated,
    )  # fmt: skip


def _with_steps_of(earlier: Run, run: Run) -> Run:
    """All of its time is the earlier one's; its steps were made all the same."""
    return Run(
        job=earlier.job, from_s=earlier.from_s, until_s=earlier.until_s, kind=earlier.kind,
        steps=earlier.steps + run.steps, lost_steps=earlier.lost_steps + run.lost_steps,
        saved_s=earlier.saved_s + run.saved_s, cause=earlier.cause,
        lost_cause=earlier.lost_cause if earlier.lost_steps else run.lost_cause, preempted=earlier.preempted,
        restated=earlier.restated or run.restated,
    )  # fmt: skip


def _rest(job: JobFacts, from_s: float, until_s: float, kind: str, *, cause: Cause | None = None) -> Run:
    own = Cause(CauseKind.JOB, job.id)
    return Run(job=job.id, from_s=from_s, until_s=until_s, kind=kind, cause=own if cause is None else cause)


def _tail(job: JobFacts, at_s: float, judged_s: float, *, started: bool) -> list[Run]:
    """As `policy.spent.wall` has it: the step in progress, a stall where that is overdue, or a recovery."""
    if not started and job.began_s is None:
        return [_rest(job, at_s, math.inf, UNKNOWN)]
    kind = RECOVERY
    if started and job.training:
        over_s = (judged_s if job.finished_s is None else min(judged_s, job.finished_s)) - at_s
        kind = STALLED if job.step_s is not None and over_s > STILL * job.step_s else DEGRADED
    cause = job.tail if job.tail.kind else None
    until_s = at_s if job.finished_s is None else max(at_s, job.finished_s)
    found = [_rest(job, at_s, math.inf if job.finished_s is None else until_s, kind, cause=cause)]
    if job.finished_s is not None:
        # Its ranks are on their way out.
        found.append(_rest(job, until_s, math.inf, RECOVERY))
    if job.yields:
        found = [_preempted(run) for run in found]
    return found


def _preempted(run: Run) -> Run:
    return Run(job=run.job, from_s=run.from_s, until_s=run.until_s, kind=run.kind, cause=run.cause, preempted=True)


def _stretch(job: JobFacts, run: Run, training: Level) -> Stretch:
    kind = UNKNOWN if job.step_s is None and run.steps + run.lost_steps > 0 else run.kind
    of = TimeClass.PREEMPTED if run.preempted and kind == RECOVERY else CLASS_OF[kind]
    held = of if of in (TimeClass.PREEMPTED, TimeClass.NOT_OBSERVED) else TimeClass.RECOVERY
    beside = Share(held, run.cause if run.cause.kind else Cause(CauseKind.JOB, job.id), 1.0)
    shares = _shares(job, run, training) if kind != UNKNOWN and math.isfinite(run.until_s - run.from_s) else []
    rest = Share(of, run.cause, 1.0 - sum(share.part for share in shares))
    return Stretch(run.from_s, run.until_s, (*shares, rest), beside, run.restated)


def _shares(job: JobFacts, run: Run, training: Level) -> list[Share]:
    long_s = run.until_s - run.from_s
    found = [Share(TimeClass.CHECKPOINT, Cause(CauseKind.JOB, job.id), run.saved_s / long_s)] if run.saved_s else []
    devices_s = training.between(run.from_s, run.until_s)
    if job.step_s is None or devices_s <= 0.0:
        return found
    step = job.step_s * job.gpus / devices_s
    if run.steps:
        found.append(Share(TimeClass.PRODUCTIVE, Cause(), run.steps * step))
    if run.lost_steps:
        found.append(Share(TimeClass.LOST_WORK, run.lost_cause, run.lost_steps * step))
    return found
