"""Goodput formulas (goals.md) and what each way out of a failure costs.

Units: seconds, GPU-seconds where the name says so. Pure arithmetic, no policy.
"""

import math

import msgspec

from controlplane.policy.checkpoints import newest_trusted
from controlplane.policy.config import PolicyConfig
from controlplane.policy.snapshot import JobSnapshot, ReplicaFact


class Costs(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Expected GPU-seconds lost. None: impossible."""

    evict_s: float | None
    evict_spare_s: float | None
    restart_s: float
    wait_s: float | None


class StragglerCosts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Expected GPU-seconds of living with a slow rank and of moving its replica. None: impossible."""

    stay_s: float
    move_s: float | None


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


def failure_costs(
    snapshot: JobSnapshot, config: PolicyConfig, *, lost: int, survivors: int, spare_ready: bool, gone: bool
) -> Costs:
    """GPU-seconds each way out of losing `lost` replicas costs, with `survivors` that
    contribute. `gone`: the processes are proved gone, so waiting is no way out."""
    learned = snapshot.learned
    step_s = learned.step_s or config.default_step_s
    rebuild_s = (learned.start_replica_s or config.default_start_s) + (learned.catch_up_s or config.default_catch_up_s)
    replica_gpus = max((replica.world_size for replica in snapshot.replicas), default=1)
    job_gpus = replica_gpus * max(1, len(snapshot.replicas))
    # All replicas stall for half a step on average: micro-batches of the lost one are redone.
    stall = (config.default_detect_s + step_s / 2.0) * job_gpus
    evict = stall + lost * replica_gpus * config.repair_horizon_s if survivors else None
    swap = stall + lost * replica_gpus * rebuild_s if survivors and spare_ready else None
    wait = None if gone else config.hang_timeout_s * job_gpus
    restart = (rebuild_s + work_at_risk_s(snapshot, config)) * job_gpus
    return Costs(evict_s=evict, evict_spare_s=swap, restart_s=restart, wait_s=wait)


def straggler_costs(
    snapshot: JobSnapshot, config: PolicyConfig, *, late_s: float, replica: ReplicaFact, spare_ready: bool
) -> StragglerCosts:
    """`late_s` by which one rank of `replica` holds up each step of the whole job, over what
    is left to train or the time a repair takes, whichever is shorter."""
    step_s = snapshot.learned.step_s or config.default_step_s
    left = max(0, snapshot.job.spec.training.steps - snapshot.job.committed_step)
    steps = min(float(left), config.repair_horizon_s / step_s)
    gpus = sum(each.world_size for each in snapshot.replicas)
    survivors = max(0, len(snapshot.replicas) - 1)
    moved = failure_costs(snapshot, config, lost=1, survivors=survivors, spare_ready=spare_ready, gone=False)
    return StragglerCosts(stay_s=steps * late_s * max(gpus, replica.world_size), move_s=moved.evict_spare_s)


def work_at_risk_s(snapshot: JobSnapshot, config: PolicyConfig) -> float:
    """Seconds of training since the newest checkpoint that may be resumed from."""
    trusted = newest_trusted(snapshot.checkpoints)
    base = trusted.step if trusted else 0
    steps = max(0, snapshot.job.committed_step - base)
    return steps * (snapshot.learned.step_s or config.default_step_s)
