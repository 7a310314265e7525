"""What counts within a window, and ages, whatever the clock was set to and whoever watched."""

import time
from datetime import timedelta
from types import SimpleNamespace

import pytest

from controlplane.jobs.models import Job
from controlplane.policy.rules.registry import DESTRUCTIVE
from controlplane.recovery import clock_set, disruption
from controlplane.recovery.ledger import ledger_of
from controlplane.recovery.models import Decision, Restart
from controlplane.runtime import windows
from controlplane.runtime.clock import ago, now, now_s
from controlplane.runtime.models import ClockStep, ProcessBeat
from controlplane.sentinel.leadership import Held, Leadership
from controlplane.sentinel.process import Sentinel
from tests.integration.backend.builders import make_job

pytestmark = pytest.mark.django_db

HOUR_S = 3600.0
BOTH = pytest.mark.parametrize("step_s", [HOUR_S, -HOUR_S], ids=["ahead", "back"])


def act(name: str, age_s: float, job: Job) -> Decision:
    """A destructive act of the governor, charged to the job's budget, as the clock of now tells its age."""
    made = Decision.objects.create(
        id=name, job=job, key=name, at=ago(0.0) - timedelta(seconds=age_s), rule=min(DESTRUCTIVE), choice="evict",
        reason_code="r", sentence="", applied=True, policy_version="", snapshot=b"",
    )  # fmt: skip
    Restart.objects.create(job=job, decision=made, at=made.at, attempt=1, rung="replica", charged=True)
    return made


@BOTH
def test_acts_and_restarts_of_a_window_are_counted_by_what_passed_and_not_by_the_clock(step_s: float) -> None:
    job = make_job()
    act("dec_old", step_s + HOUR_S + 20.0, job)
    act("dec_lately", step_s + 20.0, job)
    clock_set.move(step_s, set_s=now_s())
    act("dec_since", 0.0, job)
    assert disruption.recent_acts() == 2
    assert ledger_of(job, 1).in_window == 2
    assert ledger_of(job, 1).restarts == 3


def test_what_the_clock_tells_again_after_it_was_set_back_is_not_counted_again() -> None:
    """An act of an hour ago, when the clock comes by the same time once more."""
    job = make_job()
    act("dec_old", -10.0, job)
    clock_set.move(-HOUR_S, set_s=now_s())
    # Two minutes later.
    ClockStep.objects.update(set_at=ago(120.0))
    Decision.objects.update(at=ago(10.0))
    assert disruption.recent_acts() == 0
    ClockStep.objects.update(older={})
    assert disruption.recent_acts() == 1, "without the list it would be"


def test_without_a_step_a_window_is_what_the_clock_says() -> None:
    job = make_job()
    act("dec_old", 61.0, job)
    act("dec_new", 5.0, job)
    assert disruption.recent_acts() == 1
    assert windows.age_s(ago(61.0)) == pytest.approx(61.0, abs=5.0)


def test_ages_reach_over_several_steps() -> None:
    """An hour ahead, and half of that back ten seconds later."""
    for step_s, set_age_s in ((HOUR_S, HOUR_S / -2 + 20.0), (-HOUR_S / 2, 10.0)):
        ClockStep.objects.create(set_at=now() - timedelta(seconds=set_age_s), step_s=step_s)
    assert windows.age_s(ago(5.0)) == pytest.approx(5.0, abs=2.0)
    assert windows.age_s(now() + timedelta(seconds=HOUR_S / 2 - 15.0)) == pytest.approx(15.0, abs=2.0)
    assert windows.age_s(ago(HOUR_S / 2 + 30.0)) == pytest.approx(30.0, abs=2.0)


def lease_of_before(step_s: float, down_s: float, **changes: object) -> None:
    """A leader stopped `down_s` ago, and the clock was set since."""
    Leadership("old", 1).turn()
    ProcessBeat.objects.filter(name="old").delete()
    boot, up_s = windows.uptime()
    told = {"owner": "", "boot": boot, "up_s": up_s - down_s, "wall_s": now_s() - down_s - step_s, **changes}
    kept = now() - timedelta(seconds=down_s + step_s)
    ProcessBeat.objects.filter(name="lease:sentinel").update(detail=told, beat_at=min(kept, ago(60.0)))


@BOTH
def test_a_step_while_no_sentinel_ran_is_found_by_the_one_that_takes_the_lead(step_s: float) -> None:
    job = make_job()
    lease_of_before(step_s, down_s=90.0)
    Job.objects.filter(pk=job.pk).update(due_at=now() + timedelta(seconds=30.0 - step_s))
    leads = Leadership("sentinel:new", 1)
    leads.turn()
    assert leads.term() is not None
    job.refresh_from_db()
    assert job.due_at is not None
    assert (job.due_at - now()).total_seconds() == pytest.approx(30.0, abs=10.0)
    step = ClockStep.objects.get()
    assert step.step_s == pytest.approx(step_s, abs=1.0)
    assert windows.age_s(now() - timedelta(seconds=90.0 + step_s)) == pytest.approx(90.0, abs=5.0)


def test_one_that_was_seen_before_its_leader_died_is_not_moved_twice() -> None:
    lease_of_before(HOUR_S, down_s=90.0)
    boot, up_s = windows.uptime()
    ClockStep.objects.create(set_at=ago(80.0), step_s=HOUR_S, boot=boot, up_s=up_s - 80.0)
    Leadership("sentinel:new", 1).turn()
    assert ClockStep.objects.count() == 1


def test_of_a_leader_on_another_machine_a_step_ahead_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    lease_of_before(HOUR_S, down_s=90.0, boot="another")
    Leadership("sentinel:new", 1).turn()
    assert not ClockStep.objects.exists()


def test_one_who_begins_to_lead_knows_the_newest_step_for_what_it_shows_the_policy() -> None:
    clock_set.move(HOUR_S, set_s=now_s())
    sentinel = Sentinel()
    sentinel._begin_to_lead(sentinel.shards[0], Held(term=1, kept_s=time.monotonic()))
    assert sentinel.clock.step_s == HOUR_S
    assert sentinel.clock.set_s == pytest.approx(now_s(), abs=5.0)


def test_a_certificate_is_not_given_up_because_the_clock_was_set_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    from controlplane.recovery import proof

    incident = SimpleNamespace(id="inc_1", ended_at=ago(HOUR_S + 5.0), job=None)
    monkeypatch.setattr(proof._Places, "free_s", time.monotonic() - 2 * HOUR_S)
    assert proof.waited_s(incident) > HOUR_S
    clock_set.move(HOUR_S, set_s=now_s())
    assert proof.waited_s(incident) < 60.0
