"""A step's limit is given or learned; the grace of an end is never less than a save takes."""

import pytest

from controlplane.policy.plan import EndAttempt
from controlplane.policy.snapshot import LearnedTimes
from controlplane.policy.timeouts import MIN_STEPS, Observed, Source, section_timeouts, timeout_of
from controlplane.protocol.spec import Scheduling, Timeouts
from controlplane.protocol.states import Section
from tests.unit.policy.builders import action, job, only, running, spec

STEP = Section.STEP


def step(wish: Timeouts, seen: Observed) -> tuple[float, Source]:
    found = section_timeouts(wish, seen)
    return timeout_of(found, STEP), next(timeout.source for timeout in found if timeout.section is STEP)


def test_a_given_limit_is_never_learned():
    assert step(Timeouts(step_s=7.0), Observed(step_max_s=9.0, steps=500)) == (7.0, Source.GIVEN)


def test_a_learned_limit_is_five_times_the_longest_step():
    assert step(Timeouts(), Observed(step_max_s=3.0, steps=MIN_STEPS)) == (15.0, Source.LEARNED)


def test_sixteen_steps_are_needed_to_learn():
    assert step(Timeouts(), Observed(step_max_s=3.0, steps=MIN_STEPS - 1)) == (60.0, Source.DEFAULT)
    assert step(Timeouts(), Observed()) == (60.0, Source.DEFAULT)


def test_nothing_is_learned_below_the_floor():
    assert step(Timeouts(step_floor_s=5.0), Observed(step_max_s=0.1, steps=99)) == (5.0, Source.LEARNED)


def test_the_other_sections_are_as_given():
    found = section_timeouts(Timeouts(setup_s=1.0, checkpoint_s=2.0, out_of_section_s=3.0), Observed())
    assert [(t.value_s, t.source) for t in found if t.section is not STEP] == [
        (1.0, Source.GIVEN), (2.0, Source.GIVEN), (3.0, Source.GIVEN),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("given_s", "p95_s", "grace_s"), [(60.0, None, 60.0), (60.0, 10.0, 60.0), (5.0, 10.0, 17.0), (0.0, 10.0, 0.0)]
)
def test_a_grace_that_is_shorter_than_a_save_is_extended_and_says_so(given_s, p95_s, grace_s):
    wanted = spec(scheduling=Scheduling(preempt_grace_s=given_s))
    world = running(job=job(spec=wanted, cancel_requested=True), learned=LearnedTimes(save_p95_s=p95_s))
    decision = only(world, "lifecycle")
    assert action(decision, EndAttempt).grace_s == grace_s
    assert decision.evidence == {
        "grace_given_s": given_s, "save_p95_s": p95_s, "grace_extended": grace_s > given_s,
    }  # fmt: skip
    assert ("is less than its saves take" in decision.sentence) == (grace_s > given_s)
