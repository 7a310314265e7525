"""Published traces of slow jobs, judged by the scores that judge live ones. Pure.

A trace holds one row an operation (the columns of ByteDance's straggler traces, arXiv
2505.05713): data-parallel rank, stage, rank, step, operation, duration. Only a rank's own
computation is scored, as live; steps are taken in windows of `window`, in the trace's order.
Called by `holdfast import straggler-trace`.
"""

from collections.abc import Iterable, Sequence
from statistics import median

import msgspec

from controlplane.policy.stragglers import MIN_SAMPLES, RankWork, Run, Score, advice, confirmed, scores, stage_loads
from controlplane.protocol.spec import Stragglers

OWN_WORK = frozenset({"forward-compute", "backward-compute"})
MAX_WINDOW = 16
_TENTHS = 10


class TraceRow(msgspec.Struct, frozen=True):
    """One operation; `duration_s` of its own."""

    replica: int
    stage: int
    rank: int
    step: int
    operation: str
    duration_s: float


class SlowRank(msgspec.Struct, frozen=True, kw_only=True):
    """A rank found slow. `relative`: its lowest score; `late_s`: most that it held a step up;
    `windows` in which it was called a straggler; `cause` in the last of them."""

    replica: int
    stage: int
    rank: int
    relative: float
    late_s: float
    windows: int
    cause: str


class TraceVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """`verdict`: worker (the ranks of `slow` hold the job up), stage (`advice` says what would
    help), or none. `ranks`, `steps`, `windows` that were judged."""

    verdict: str
    sentence: str
    slow: tuple[SlowRank, ...]
    advice: str
    ranks: int
    steps: int
    windows: int


def judge(rows: Iterable[TraceRow], *, window: int, settings: Stragglers) -> TraceVerdict:
    """Raises ValueError where `window` is not 3 to 16 steps, or no two windows are in the trace."""
    if not MIN_SAMPLES <= window <= MAX_WINDOW:
        raise ValueError(f"a window has {MIN_SAMPLES} to {MAX_WINDOW} steps, not {window}")
    own = [row for row in rows if row.operation in OWN_WORK]
    steps = sorted({row.step for row in own})
    windows = [steps[at : at + window] for at in range(0, len(steps) - window + 1, window)]
    if len(windows) < 2:
        raise ValueError(f"{len(steps)} steps hold no two windows of {window}: take a shorter window or a longer trace")
    by_step: dict[int, list[TraceRow]] = {}
    for row in own:
        by_step.setdefault(row.step, []).append(row)
    slow: dict[tuple[int, int], SlowRank] = {}
    before: dict[tuple[int, int], Run] = {}
    said: list[str] = []
    for numbers in windows:
        found = scores(_works([by_step[number] for number in numbers]), settings)
        said.append(advice(stage_loads(found), settings))
        for score in found:
            key = (score.work.replica, score.work.rank)
            before[key], is_straggler = confirmed(score, before.get(key, Run()), 0)
            if is_straggler:
                slow[key] = _add(slow.get(key), score)
    advised = max(set(said), key=said.count) if all(said) else ""
    ranks = len({(row.replica, row.rank) for row in own})
    return _verdict(tuple(slow.values()), advised, ranks=ranks, steps=len(steps), windows=len(windows))


def _works(steps: Sequence[list[TraceRow]]) -> list[RankWork]:
    """Of one window: each rank's median work on one micro-batch. The step lasts at least as long
    as its busiest rank works."""
    sums: dict[tuple[int, int, int], list[float]] = {}
    single: dict[tuple[int, int, int], list[float]] = {}
    counts: dict[tuple[int, int, int], int] = {}
    busiest: list[float] = []
    for rows in steps:
        mine: dict[tuple[int, int, int], list[TraceRow]] = {}
        for row in rows:
            mine.setdefault((row.replica, row.rank, row.stage), []).append(row)
        busiest.append(max(sum(row.duration_s for row in own) for own in mine.values()))
        for key, own in mine.items():
            forwards = [row.duration_s for row in own if row.operation == "forward-compute"]
            counts[key] = max(1, len(forwards))
            sums.setdefault(key, []).append(sum(row.duration_s for row in own) / counts[key])
            single.setdefault(key, []).extend(forwards)
    return [
        RankWork(
            replica=replica,
            incarnation=1,
            rank=rank,
            stage=stage,
            samples=len(values),
            compute_s=median(values),
            data_s=0.0,
            step_s=median(busiest),
            micro_batches=float(counts[replica, rank, stage]),
            spread=_spread(single[replica, rank, stage]),
        )
        for (replica, rank, stage), values in sorted(sums.items())
    ]


def _spread(forwards: list[float]) -> float:
    middle = median(forwards) if forwards else 0.0
    if middle <= 0.0:
        return 0.0
    ordered, tenth = sorted(forwards), (len(forwards) - 1) // _TENTHS
    return (ordered[-1 - tenth] - ordered[tenth]) / middle


def _add(known: SlowRank | None, score: Score) -> SlowRank:
    return SlowRank(
        replica=score.work.replica,
        stage=score.work.stage,
        rank=score.work.rank,
        relative=min(score.lowest, known.relative if known else 1.0),
        late_s=max(score.late_s, known.late_s if known else 0.0),
        windows=(known.windows if known else 0) + 1,
        cause=score.cause,
    )


def _verdict(slow: tuple[SlowRank, ...], advised: str, *, ranks: int, steps: int, windows: int) -> TraceVerdict:
    ordered = tuple(sorted(slow, key=lambda rank: (rank.relative, rank.replica, rank.rank)))
    if ordered:
        worst = ordered[0]
        sentence = (
            f"Rank {worst.rank} (replica {worst.replica}, stage {worst.stage}) works at {worst.relative:.0%} of the "
            f"speed of its stage and holds each step up by {worst.late_s:.3g} s; cause: {worst.cause}."
        )
        if len(ordered) > 1:
            sentence += f" {len(ordered) - 1} more are slow."
    else:
        sentence = advised or "No rank and no stage is slow."
    verdict = "worker" if ordered else "stage" if advised else "none"
    return TraceVerdict(
        verdict=verdict, sentence=sentence, slow=ordered, advice=advised, ranks=ranks, steps=steps, windows=windows
    )
