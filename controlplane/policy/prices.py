"""What each way out of a failure costs, on one basis.

The basis: GPU-seconds of the job's devices that commit nothing new, from the decision until the
job ends or a repair has brought back what is missing (`repair_horizon_s`), whichever is first.
What was lost before the decision (detection) is the same whatever is decided and is left out.

| way | price |
|---|---|
| evict | every device stalls for half a step and a view change; what is missing stays away to the end of the basis |
| evict_and_replace | the same stall; what is started again is away for a start and a catch-up |
| hold_and_replace | the same, and those who are left wait for the start |
| start_beside | two view changes, its share of one step, and what it holds up until the other is in |
| restart | every device for the same stall, a start, a load and the steps since the checkpoint |
| wait | every device until the hang timeout, then the cheapest of the others |
| queue | every device to the end of the basis, and the steps since the checkpoint |

A load is priced as a catch-up: the same bytes, from a place that is no nearer. So to go on is
never dearer than a restart that places no more (a property the tests hold), and nobody who holds
the newest state is ended for money.

Pure arithmetic, called by `policy.ways`; it knows no constraint and chooses nothing.
docs/restart-ladder.md has the same in words; benchmarks/g14_regret.py measures the choices in the simulator.
"""

import msgspec

from controlplane.policy.checkpoints import newest_trusted
from controlplane.policy.config import PolicyConfig
from controlplane.policy.snapshot import JobSnapshot


class Times(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Seconds. `left_s` to the end of the basis; `view_s` of a view change; `at_risk_s` of steps
    since the checkpoint."""

    step_s: float
    start_s: float
    catch_up_s: float
    view_s: float
    left_s: float
    at_risk_s: float
    hang_s: float


class Stakes(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Replicas of `gpus` devices each. `asked`: of a whole job; `missing`: without the failed ones;
    `started`: of those missing that start again at once; `placeable`: in a new attempt."""

    gpus: int
    asked: int
    missing: int
    started: int
    placeable: int


def times_of(snapshot: JobSnapshot, config: PolicyConfig) -> Times:
    """Measured where this job has been measured, else the policy's defaults."""
    learned = snapshot.learned
    step_s = learned.step_s or config.default_step_s
    steps_left = max(0, snapshot.job.spec.training.steps - snapshot.job.committed_step)
    return Times(
        step_s=step_s,
        start_s=learned.start_replica_s or config.default_start_s,
        catch_up_s=learned.catch_up_s or config.default_catch_up_s,
        view_s=config.view_way_s + config.install_way_s,
        left_s=min(config.repair_horizon_s, steps_left * step_s),
        at_risk_s=at_risk_s(snapshot, config),
        hang_s=config.hang_timeout_s,
    )


def evict_s(times: Times, stakes: Stakes) -> float:
    """Go on without them, and start nothing."""
    return _stall_s(times, stakes) + stakes.missing * stakes.gpus * times.left_s


def evict_and_replace_s(times: Times, stakes: Stakes) -> float:
    """Go on without them, and start `started` of them again."""
    back_s = min(times.left_s, times.start_s + times.catch_up_s)
    away_s = stakes.started * back_s + (stakes.missing - stakes.started) * times.left_s
    return _stall_s(times, stakes) + stakes.gpus * away_s


def hold_and_replace_s(times: Times, stakes: Stakes) -> float:
    """Those who are left wait until the replacement is in."""
    waiting = stakes.gpus * (stakes.asked - stakes.missing) * min(times.left_s, times.start_s)
    return evict_and_replace_s(times, stakes) + waiting


def beside_s(times: Times, stakes: Stakes, *, late_s: float) -> float:
    """Start another one beside one that still trains, and holds each step up by `late_s`: nobody is
    missing meanwhile, what it would have computed of the step that the swap begins with is dealt out
    to all, and it is lived with until the other has caught up."""
    back_s = min(times.left_s, times.start_s + times.catch_up_s)
    share_s = times.step_s / stakes.asked
    return stakes.gpus * stakes.asked * (2.0 * times.view_s + share_s + back_s / times.step_s * late_s)


def restart_s(times: Times, stakes: Stakes) -> float:
    """Everything starts again from the newest trusted checkpoint."""
    again_s = (times.start_s + times.catch_up_s + times.at_risk_s) * stakes.asked
    away_s = max(0, stakes.asked - stakes.placeable) * times.left_s
    return _stall_s(times, stakes) + stakes.gpus * (again_s + away_s)


def queue_s(times: Times, stakes: Stakes) -> float:
    """Nothing trains until there are devices."""
    return stakes.gpus * stakes.asked * (times.left_s + times.at_risk_s)


def wait_s(times: Times, stakes: Stakes, *, after_s: float) -> float:
    """Everything stands until the hang timeout; then `after_s` (GPU-seconds) is paid all the same:
    how often what hangs comes back by itself is not known."""
    return stakes.gpus * stakes.asked * times.hang_s + after_s


def stay_s(times: Times, stakes: Stakes, *, late_s: float) -> float:
    """Live with a rank that holds up each step of the whole job by `late_s`."""
    return times.left_s / times.step_s * late_s * stakes.gpus * stakes.asked


def without_s(times: Times, stakes: Stakes, *, late_s: float) -> float:
    """Go on without a slow one: the others train at their own speed, and what it would have trained
    at theirs is lost."""
    steps = times.left_s / times.step_s
    return _stall_s(times, stakes) + stakes.gpus * stakes.missing * steps * max(0.0, times.step_s - late_s)


def work_at_risk_s(*, committed_step: int, saved_step: int | None, step_s: float) -> float:
    """Seconds of training that are to be repeated if everything stops now: the steps since the newest checkpoint that
    may be resumed from (None: since the first), each as long as `changes.assembly.measured.step_s` has it. What page,
    API and command line show, and what decisions price."""
    return max(0, committed_step - (saved_step or 0)) * step_s


def at_risk_s(snapshot: JobSnapshot, config: PolicyConfig) -> float:
    """Of the job as it is in the snapshot; before steps were measured, by the policy's default."""
    return _at_risk_s(snapshot, snapshot.learned.step_s or config.default_step_s)


def measured_at_risk_s(snapshot: JobSnapshot) -> float | None:
    """As people are shown it; None: nothing was measured yet."""
    step_s = snapshot.learned.step_s
    return None if step_s is None else _at_risk_s(snapshot, step_s)


def _at_risk_s(snapshot: JobSnapshot, step_s: float) -> float:
    trusted = newest_trusted(snapshot.checkpoints)
    saved = trusted.step if trusted else None
    return work_at_risk_s(committed_step=snapshot.job.committed_step, saved_step=saved, step_s=step_s)


def _stall_s(times: Times, stakes: Stakes) -> float:
    """Of all devices: micro-batches of the lost ones are computed again, half a step on average."""
    return (times.step_s / 2.0 + times.view_s) * stakes.asked * stakes.gpus
