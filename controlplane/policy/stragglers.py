"""Which ranks are slow, against whom, and by how much. Pure arithmetic over one window.

A score is 1 for a rank as fast as its reference and tends to 0 as it gets slower (the
semantics of nvidia-resiliency-ext): `relative` compares with the median of the other ranks
that do the same work (the same pipeline stage), `individual` with the rank's own best window.
The fastest is no reference: where micro-batches differ in length, the more ranks there are,
the further the fastest of a short window is from the ordinary.
Compared is the rank's own work on one micro-batch (compute + data), never the exchange,
in which the fast ones wait for the slow one.

A score below its threshold makes a straggler only if it costs the job something: all of
them wait for the slowest, so it has to hold a step up by `MIN_LATE_RATIO` of its length.
One window proves nothing: `WINDOWS` in a row in one view do (`confirmed`), for in another view a rank has other
peers. Where views change so often that none holds as many, `WINDOWS_ACROSS` in a row do.
"""

from bisect import bisect_left
from collections.abc import Iterable
from statistics import median

import msgspec

from controlplane.protocol.spec import Stragglers

MIN_SAMPLES = 3
"""Steps a window must hold before its median says anything."""
MIN_LATE_RATIO = 0.05
"""Of the step: less than a twentieth is noise, and nothing could be won by acting on it."""
WINDOWS = 2
"""In a row, in which a rank is slow, before it is called a straggler."""
WINDOWS_ACROSS = 4
"""The same, where no view lasts for `WINDOWS` of them; the last one is of the present view."""
FRESH_STEPS = 10.0
"""A window holds a few steps at least, however long they are."""
SHOWN = 5
"""Best and worst ranks that are told."""


class RankWork(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One rank's newest window. `compute_s`, `data_s`: median of one micro-batch;
    `step_s`: median step; `best_s`: the least `work_s` of any of its windows so far;
    `micro_batches` it computes in a step; `spread` of single micro-batches, over their median
    (0: not measured)."""

    replica: int
    incarnation: int
    rank: int
    stage: int
    samples: int
    compute_s: float
    data_s: float
    step_s: float
    best_s: float | None = None
    micro_batches: float = 1.0
    spread: float = 0.0

    @property
    def work_s(self) -> float:
        """Its own work on one micro-batch."""
        return self.compute_s + self.data_s


class Score(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How one rank does. None: nothing to compare with. `late_s`: by how much it holds a
    step up, at most; `cause`: the part of its work ("compute" or "data") that accounts for
    most of it, or "length" where its micro-batches differ among themselves by as much as it
    differs from its reference; `straggler`: which score is below its threshold, else empty."""

    work: RankWork
    relative: float | None
    individual: float | None
    late_s: float
    cause: str
    straggler: str = ""

    @property
    def lowest(self) -> float:
        """The worse of the two; 1 where there is none."""
        return min((score for score in (self.relative, self.individual) if score is not None), default=1.0)


class Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Windows in a row in which one rank was slow: `here` in the view of `epoch`, `before` it in earlier ones."""

    epoch: int = 0
    here: int = 0
    before: int = 0


class StageLoad(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Median work of one pipeline stage; `ratio` to the median of the others (1 if alone)."""

    stage: int
    work_s: float
    ratio: float


def scores(window: Iterable[RankWork], settings: Stragglers) -> tuple[Score, ...]:
    """Every rank with enough samples, by (replica, incarnation, rank)."""
    ranks = sorted(
        (work for work in window if work.samples >= MIN_SAMPLES and work.work_s > 0),
        key=lambda work: (work.replica, work.incarnation, work.rank),
    )
    stages: dict[int, list[RankWork]] = {}
    for work in ranks:
        stages.setdefault(work.stage, []).append(work)
    others = {stage: (_Others([p.work_s for p in peers]), _Others([p.data_s for p in peers]))
              for stage, peers in stages.items()}  # fmt: skip
    return tuple(_score(work, *others[work.stage], settings) for work in ranks)


def confirmed(score: Score, run: Run, epoch: int) -> tuple[Run, bool]:
    """(`run` with this window, which ended in the view of `epoch`; whether that makes the rank a straggler)."""
    if not score.straggler:
        return Run(epoch=epoch), False
    if run.epoch != epoch:
        run = Run(epoch=epoch, before=min(run.before + run.here, WINDOWS_ACROSS))
    run = msgspec.structs.replace(run, here=min(run.here + 1, WINDOWS))
    return run, run.here >= WINDOWS or run.before + run.here >= WINDOWS_ACROSS


def fresh_s(settings: Stragglers, step_s: float | None) -> float:
    """For how long what the newest windows said holds (seconds): there are two an interval."""
    return max(settings.interval_s, FRESH_STEPS * (step_s or 0.0))


def ordered(found: Iterable[Score]) -> tuple[Score, ...]:
    """Worst first; equal scores by name."""
    return tuple(sorted(found, key=lambda s: (s.lowest, s.work.replica, s.work.incarnation, s.work.rank)))


def stage_loads(found: Iterable[Score]) -> tuple[StageLoad, ...]:
    """How evenly the pipeline is cut: a stage whose every rank is slow is a matter of the
    layout, not of any device."""
    work: dict[int, list[float]] = {}
    for score in found:
        work.setdefault(score.work.stage, []).append(score.work.work_s)
    medians = {stage: median(values) for stage, values in work.items()}
    loads = []
    for stage, own_s in sorted(medians.items()):
        others = [value for other, value in medians.items() if other != stage]
        loads.append(StageLoad(stage=stage, work_s=own_s, ratio=own_s / median(others) if others else 1.0))
    return tuple(loads)


def advice(loads: Iterable[StageLoad], settings: Stragglers) -> str:
    """What would help where no rank is to blame; empty if the stages are even."""
    worst = max(loads, key=lambda load: load.ratio, default=None)
    if worst is None or worst.ratio * settings.relative_threshold <= 1.0:
        return ""
    return (
        f"Every rank of pipeline stage {worst.stage} works {worst.ratio:.1f} times as long as the other stages:"
        " no device is to blame, give that stage fewer layers."
    )


class _Others:
    """The median of all values but one."""

    def __init__(self, values: list[float]) -> None:
        self._values = sorted(values)

    def median_without(self, value: float) -> float | None:
        """None: there is no other."""
        rest, gone = len(self._values) - 1, bisect_left(self._values, value)
        if rest < 1:
            return None
        places = (rest - 1) // 2, rest // 2
        return sum(self._values[place + (place >= gone)] for place in places) / 2.0


def _score(work: RankWork, peers: _Others, peers_data: _Others, settings: Stragglers) -> Score:
    usual_s = peers.median_without(work.work_s)
    usual_data_s = peers_data.median_without(work.data_s) or 0.0
    relative = _ratio(usual_s, work.work_s) if usual_s is not None else None
    individual = _ratio(work.best_s, work.work_s) if work.best_s else None
    low = {
        "relative": settings.relative and relative is not None and relative < settings.relative_threshold,
        "individual": settings.individual and individual is not None and individual < settings.individual_threshold,
    }
    # Against itself only the sum is known; whatever its peers need for data is no news.
    reference_s = usual_s if low["relative"] and usual_s is not None else work.best_s or work.work_s
    late_s = max(0.0, work.work_s - reference_s) * work.micro_batches
    costs = late_s >= MIN_LATE_RATIO * work.step_s
    return Score(
        work=work,
        relative=relative,
        individual=individual,
        late_s=late_s,
        cause=_cause(work, reference_s, usual_data_s),
        straggler=next((name for name, is_low in low.items() if is_low), "") if costs else "",
    )


def _cause(work: RankWork, reference_s: float, usual_data_s: float) -> str:
    late_s = work.work_s - reference_s
    if 2.0 * max(0.0, work.data_s - usual_data_s) > late_s > 0:
        return "data"
    return "length" if 0 < late_s <= work.spread * reference_s else "compute"


def _ratio(reference_s: float, own_s: float) -> float:
    """0..1: never above 1, a rank cannot be better than the best."""
    return min(1.0, reference_s / own_s)
