"""Seconds of training that a restart now would lose."""

import pytest

from controlplane.policy import prices
from controlplane.policy.snapshot import LearnedTimes
from tests.unit.policy.builders import CONFIG, change, checkpoint, job, running

AT_100 = change(running(), job=change(job(), committed_step=100), learned=LearnedTimes(step_s=2.5))


@pytest.mark.parametrize(
    ("saved", "at_risk_s"), [((), 250.0), ((90,), 25.0), ((60, 90), 25.0), ((100,), 0.0), ((101,), 0.0)]
)
def test_it_is_the_time_of_the_steps_since_the_newest_checkpoint(saved: tuple[int, ...], at_risk_s: float) -> None:
    checkpoints = tuple(checkpoint(step) for step in saved)
    assert prices.at_risk_s(change(AT_100, checkpoints=checkpoints), CONFIG) == at_risk_s


def test_before_a_step_was_measured_one_is_taken_to_last_as_long_as_is_configured() -> None:
    unmeasured = change(AT_100, checkpoints=(), learned=LearnedTimes())
    assert prices.at_risk_s(unmeasured, CONFIG) == 100 * CONFIG.default_step_s
