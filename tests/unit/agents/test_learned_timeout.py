"""A hang is found after five of the rank's own longest steps, whatever happened before."""

import msgspec
import pytest

from agents.core.learn import FACTOR, MIN_STEPS, NO_STEPS, WARM_UP_STEPS, StepTimes, step_timeout_s
from controlplane.protocol.launch import ReplicaLaunch
from controlplane.protocol.rank import StepReport
from tests.properties.agents.world import launch


def report(step_time_s: float, stall_s: float = 0.0) -> StepReport:
    return StepReport(step=0, epoch=1, step_time_s=step_time_s, tokens=1, micro_batches=(0,), stall_s=stall_s)


def after(*steps: StepReport) -> StepTimes:
    times = NO_STEPS
    for step in steps:
        times = times.after(step)
    return times


ENOUGH = [report(0.4)] * (WARM_UP_STEPS + MIN_STEPS)


def ordered(timeout_s: float, floor_s: float | None) -> ReplicaLaunch:
    return msgspec.structs.replace(launch(), step_timeout_s=timeout_s, step_floor_s=floor_s)


LEARNS = ordered(60.0, 1.0)


def test_the_order_holds_until_enough_steps_are_seen() -> None:
    assert step_timeout_s(LEARNS, after(*ENOUGH[:-1])) == 60.0
    assert step_timeout_s(LEARNS, after(*ENOUGH)) == pytest.approx(0.4 * FACTOR)


def test_a_step_with_a_membership_change_teaches_nothing() -> None:
    times = after(*ENOUGH, report(12.0, stall_s=0.3))
    assert step_timeout_s(LEARNS, times) == pytest.approx(0.4 * FACTOR)


def test_the_first_steps_of_a_process_teach_nothing() -> None:
    times = after(report(9.0), report(9.0), *[report(0.4)] * MIN_STEPS)
    assert step_timeout_s(LEARNS, times) == pytest.approx(0.4 * FACTOR)


def test_a_slow_step_widens_the_timeout_up_to_what_was_ordered() -> None:
    assert step_timeout_s(LEARNS, after(*ENOUGH, report(3.0))) == pytest.approx(15.0)
    assert step_timeout_s(LEARNS, after(*ENOUGH, report(30.0))) == 60.0


def test_the_floor_holds_below() -> None:
    assert step_timeout_s(LEARNS, after(*[report(0.01)] * 40)) == 1.0


def test_a_timeout_that_was_given_is_never_learned() -> None:
    assert step_timeout_s(ordered(60.0, None), after(*ENOUGH)) == 60.0
