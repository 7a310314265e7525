"""What a job's own rows have measured: how long its steps, starts, transfers and saves take."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from controlplane.policy.snapshot import LearnedTimes, SaveFact
from controlplane.protocol.spec import TrainSpec

MIN_STEPS = 3
RECENT = 50
P95 = 0.95
SAVE_LIMIT_S = 600.0
"""A save that was begun longer ago is written no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Seconds of the `RECENT` ones, newest first: of steps in which no membership changed, of starts of replicas, of
    transfers to them, of committed saves of the persistent tier. `setup_limit_s`: see `LearnedTimes`."""

    steps: Sequence[float] = ()
    starts: Sequence[float] = ()
    transfers: Sequence[float] = ()
    saves: Sequence[float] = ()
    setup_limit_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Saves:
    """When the newest save of the persistent tier was begun, was committed, and an emergency one was ordered (the
    order counts too: a second alarm must not ask again before the first is answered). `writing`: one is."""

    started_s: float | None = None
    committed_s: float | None = None
    emergency_s: float | None = None
    writing: bool = False


def step_s(steps: Sequence[float]) -> float | None:
    """Mean; None before there are enough."""
    return fmean(steps) if len(steps) >= MIN_STEPS else None


def share_within_s(seconds: Sequence[float], share: float) -> float:
    """So many seconds that the share (0..1) of them took no longer; `seconds` sorted, at least one."""
    return seconds[min(len(seconds) - 1, int(share * len(seconds)))]


def learned_times(times: Times) -> LearnedTimes:
    """None where there is not enough data."""
    saves = sorted(times.saves)
    return LearnedTimes(
        step_s=step_s(times.steps),
        step_max_s=max(times.steps) if len(times.steps) >= MIN_STEPS else None,
        save_s=fmean(saves) if saves else None,
        save_p95_s=share_within_s(saves, P95) if saves else None,
        start_replica_s=fmean(times.starts) if times.starts else None,
        catch_up_s=fmean(times.transfers) if times.transfers else None,
        setup_limit_s=times.setup_limit_s,
    )


def saves_found(saves: Saves, times: Times, spec: TrainSpec) -> SaveFact:
    """With how long scheduled saves lie apart, by what a step takes."""
    took_s = step_s(times.steps)
    return SaveFact(
        last_started_s=saves.started_s,
        last_committed_s=saves.committed_s,
        interval_s=took_s * spec.checkpoint.interval_steps if took_s is not None else None,
        last_emergency_s=saves.emergency_s,
        in_progress=saves.writing,
    )
