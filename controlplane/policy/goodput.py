"""Goodput formulas. Units: seconds. Pure arithmetic, no policy; what a way out of a failure
costs is in `policy.prices`.
"""

import math


def effective_ratio(*, committed: float, undisturbed_step_s: float, wall_s: float) -> float | None:
    """Effective training time, the one definition (page, API, command line, Prometheus and benchmarks):
    steps that are committed and kept x the time of an undisturbed step at full strength / wall time.
    Waiting, steps trained again and slower steps with fewer devices all show. None: no time has
    passed. It is not cut: above 1 the undisturbed step was taken too long, and that has to be seen."""
    return committed * undisturbed_step_s / wall_s if wall_s > 0 else None


def young_interval_s(save_s: float, mtbf_s: float) -> float:
    """Young's checkpoint interval: sqrt(2 w M)."""
    return math.sqrt(2.0 * save_s * mtbf_s)


def daly_ettr(interval_s: float, save_s: float, restart_s: float, mtbf_s: float) -> float:
    """Daly: share of time that trains, for stop-and-restart from checkpoints. 0..1."""
    exponent = (interval_s + save_s) / mtbf_s
    return interval_s / (mtbf_s * math.exp(restart_s / mtbf_s) * math.expm1(exponent))


def replica_ettr(stall_s: float, rejoin_s: float, missing_s: float, replicas: int, mtbf_s: float) -> float:
    """Share of time that trains with replica fault tolerance: all stall for `stall_s` and
    `rejoin_s` a failure, one of `replicas` is missing for `missing_s`. 0..1."""
    return max(0.0, 1.0 - (stall_s + rejoin_s + missing_s / replicas) / mtbf_s)


def break_even_precision(false_alarm_cost_s: float, benefit_s: float) -> float:
    """Precision of an alarm from which acting on it pays (same unit for both)."""
    return false_alarm_cost_s / (false_alarm_cost_s + benefit_s)
