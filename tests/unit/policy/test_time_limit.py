"""A job with a time limit saves before it and has ended by it, whatever state it is in."""

import pytest

from controlplane.policy.decide import decide
from controlplane.policy.plan import EndAttempt, SetJobState
from controlplane.policy.snapshot import LearnedTimes
from controlplane.policy.time_limit import ends_s, leaves_s
from controlplane.protocol.spec import Scheduling
from controlplane.protocol.states import JobState
from tests.unit.policy.builders import CONFIG, NOW_S, change, job, only, pending, running, spec


def limited(limit_s: float, *, begun_s: float | None, grace_s: float = 60.0, world=running, **fields):
    settings = Scheduling(time_limit_s=limit_s, preempt_grace_s=grace_s)
    made = world(**fields)
    return change(made, job=change(made.job, spec=change(made.job.spec, scheduling=settings), begun_s=begun_s))


def test_it_leaves_when_its_grace_begins_and_is_killed_at_the_limit_and_no_later():
    world = limited(600.0, begun_s=NOW_S - 541.0)
    decision = only(world, "lifecycle")
    end, state, _ = decision.actions
    assert end == EndAttempt(number=1, grace_s=59.0) and state == SetJobState(to=JobState.CANCELLED)
    assert decision.reason_code == "time_limit" and "time limit of 600 s ends in 59 s" in decision.sentence
    assert "begins at step 0" in decision.sentence, "each job has a folder of checkpoints of its own"
    late = only(limited(600.0, begun_s=NOW_S - 700.0), "lifecycle")
    assert late.actions[0].grace_s == 0.0, "found late: there is no time left to give"


@pytest.mark.parametrize("begun_s", [None, NOW_S, NOW_S - 539.0])
def test_before_that_nothing_ends_and_the_moment_is_when_it_is_looked_at(begun_s):
    world = limited(600.0, begun_s=begun_s)
    plan = decide(world, CONFIG)
    assert not [d for d in plan.decisions if d.reason_code == "time_limit"]
    if begun_s == NOW_S - 539.0:
        assert plan.next_pass_s is not None and plan.next_pass_s <= leaves_s(world) == NOW_S + 1.0


def test_a_job_without_a_limit_has_no_moment():
    assert (ends_s(limited(0.0, begun_s=1.0)), leaves_s(running())) == (None, None)


def test_saves_that_take_longer_than_its_grace_begin_earlier_and_take_half_of_its_time_at_most():
    slow = limited(600.0, begun_s=NOW_S, learned=LearnedTimes(save_p95_s=100.0))
    assert leaves_s(slow) < NOW_S + 600.0 - 150.0
    assert leaves_s(limited(60.0, begun_s=NOW_S, learned=LearnedTimes(save_p95_s=100.0))) == NOW_S + 30.0


def test_one_that_waits_in_the_queue_again_is_over_at_its_limit_too():
    world = limited(600.0, begun_s=NOW_S - 590.0, world=pending)
    decision = only(world, "lifecycle")
    assert decision.actions[0] == SetJobState(to=JobState.CANCELLED)
    assert "it is not placed again" in decision.sentence and "ranks" not in decision.sentence


def test_one_that_has_trained_all_its_steps_has_succeeded():
    world = limited(600.0, begun_s=NOW_S - 590.0)
    done = change(world, job=change(world.job, finished=True))
    assert only(done, "lifecycle").actions[1] == SetJobState(to=JobState.SUCCEEDED)


def test_the_spec_of_the_builders_has_none():
    assert job(spec=spec()).spec.scheduling.time_limit_s == 0.0
