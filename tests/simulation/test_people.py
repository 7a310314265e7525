"""People's orders to evict, alone and amid faults: nobody is ended while others count on it."""

import os

import pytest

from controlplane.simulator.world import World

FAILED = ("replica_failure", "restart", "outer_error", "leave_out")
# Every sixth world has so few steps that its job may be over before anybody asks for anything.
RELEASE = "HOLDFAST_TEST_RELEASE" in os.environ
LONG = [seed for seed in range(30 if RELEASE else 7) if seed % 6]


@pytest.mark.parametrize("seed", LONG)
def test_an_order_is_no_failure_to_the_others_and_ends_nobody_who_is_in_a_view(seed: int) -> None:
    world = World(seed)
    outcome = world.run(0, orders=4)
    assert outcome.violations == ()
    assert [told for told in outcome.decisions if told.startswith(FAILED)] == []
    asked = {index for _, index in world.people.asked}
    assert asked and outcome.evictions >= len(asked)


@pytest.mark.parametrize("seed", range(100, 124 if RELEASE else 104))
def test_orders_amid_faults_break_nothing(seed: int) -> None:
    assert World(seed).run(orders=4).violations == ()


@pytest.mark.parametrize("seed", LONG)
def test_a_job_that_is_preempted_loses_no_step_and_resumes_when_a_person_says_so(seed: int) -> None:
    world = World(seed, steps=100_000)
    world.kernel.after(25.0, world.people.preempt, 30.0)
    outcome = world.run(0)
    assert outcome.violations == ()
    (ended,) = (told for told in outcome.decisions if told.startswith("preempt_request:preempt"))
    assert ended.endswith(":preempted") and world.server.rows.state == "running"
    attempt = world.server.rows.attempt
    assert attempt is not None and attempt.number == 2 and attempt.resume_step > 0
    assert not world.server.rows.charged, "the budget pays for none of it"


@pytest.mark.parametrize("seed", range(200, 224 if RELEASE else 205))
def test_preemptions_amid_faults_break_nothing(seed: int) -> None:
    world = World(seed, steps=100_000)
    for at_s in (20.0, 24.0, 28.0, 45.0):
        world.kernel.after(at_s, world.people.preempt, 12.0)
    assert world.run(6).violations == ()
