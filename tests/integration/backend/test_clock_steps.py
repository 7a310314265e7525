"""Steps of the server's clock that are found late, twice, or are taken back: counted once, and forgotten by nobody."""

import time
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import OperationalError

from controlplane.jobs.models import Job
from controlplane.policy.rules.registry import DESTRUCTIVE
from controlplane.recovery import clock_set, disruption
from controlplane.recovery.ledger import ledger_of
from controlplane.recovery.models import Decision, Restart
from controlplane.runtime import beats, windows
from controlplane.runtime.clock import ago, now, now_s
from controlplane.runtime.models import ClockStep, ProcessBeat
from controlplane.sentinel.leadership import Held, Leadership
from controlplane.sentinel.process import Sentinel
from tests.integration.backend.builders import make_job

pytestmark = pytest.mark.django_db
HOUR_S = 3600.0


def lease_of_before(step_s: float, down_s: float) -> None:
    """A leader went `down_s` ago; the clock was set by `step_s` since."""
    Leadership("old", 1).turn()
    ProcessBeat.objects.filter(name="old").delete()
    boot, up_s = windows.uptime()
    told = {"owner": "", "boot": boot, "up_s": up_s - down_s, "wall_s": now_s() - down_s - step_s}
    kept = now() - timedelta(seconds=down_s + step_s)
    ProcessBeat.objects.filter(name="lease:sentinel").update(detail=told, beat_at=min(kept, ago(60.0)))


def acted(name: str, at: datetime, job: Job) -> None:
    made = Decision.objects.create(
        id=name, job=job, key=name, at=at, rule=min(DESTRUCTIVE), choice="evict", reason_code="r", sentence="",
        applied=True, policy_version="", snapshot=b"",
    )  # fmt: skip
    Restart.objects.create(job=job, decision=made, at=at, attempt=1, rung="replica", charged=True)


def away(*_: Any, **__: Any) -> None:
    raise OperationalError("deadlock detected")


def test_a_step_whose_move_failed_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    lease_of_before(HOUR_S, 90.0)
    leads = Leadership("sentinel:new", 1)
    with monkeypatch.context() as patched:
        patched.setattr(clock_set, "move", away)
        with pytest.raises(OperationalError):
            leads.turn()
    leads.turn()
    assert leads.term() is not None
    assert ClockStep.objects.count() == 1


def test_a_step_that_the_lease_showed_is_not_moved_again_by_who_saw_it() -> None:
    sentinel = Sentinel()
    lease_of_before(HOUR_S, 5.0)
    job = make_job()
    Job.objects.filter(pk=job.pk).update(due_at=now() + timedelta(seconds=30.0 - HOUR_S))
    sentinel._steps.append((HOUR_S, now_s(), windows.uptime()[1]))
    sentinel.leadership.turn()
    assert sentinel.leadership.term() is not None
    sentinel._move_due()
    assert ClockStep.objects.count() == 1
    job.refresh_from_db()
    assert job.due_at is not None
    assert (job.due_at - now()).total_seconds() == pytest.approx(30.0, abs=10.0)


def test_a_step_that_was_written_after_its_lease_makes_no_opposite() -> None:
    boot, up_s = windows.uptime()
    lease_of_before(0.0, 90.0)
    ClockStep.objects.create(set_at=ago(91.0), step_s=HOUR_S, boot=boot, up_s=up_s - 90.5)
    Leadership("sentinel:new", 1).turn()
    assert list(ClockStep.objects.values_list("step_s", flat=True)) == [HOUR_S]


def beat_there(boot: str, up_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A web process beats on another machine, so long after its boot."""
    with monkeypatch.context() as there:
        there.setattr(windows, "uptime", lambda: (boot, up_s))
        beats.beat("web", "web:there", {"threads": 3})


@pytest.mark.parametrize("step_s", [HOUR_S, -HOUR_S, 0.0], ids=["ahead", "back", "not at all"])
def test_who_leads_next_on_another_machine_hears_of_the_step_from_whoever_lives_on_the_one_before(
    step_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    up_s = windows.uptime()[1]
    with monkeypatch.context() as there:
        there.setattr(windows, "uptime", lambda: ("there", up_s))
        lease_of_before(step_s, 90.0)
    beat_there("there", up_s, monkeypatch)
    job = make_job()
    due = now() + timedelta(seconds=30.0 - step_s)
    Job.objects.filter(pk=job.pk).update(due_at=due)
    Leadership("sentinel:here", 1).turn()
    steps = list(ClockStep.objects.values_list("step_s", flat=True))
    assert steps == pytest.approx([step_s] if step_s else [], abs=3.0)
    job.refresh_from_db()
    assert job.due_at is not None
    assert (job.due_at - now()).total_seconds() == pytest.approx(30.0, abs=10.0)


def test_a_machine_that_has_started_anew_or_said_its_last_before_the_lease_proves_no_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    up_s = windows.uptime()[1]
    with monkeypatch.context() as there:
        there.setattr(windows, "uptime", lambda: ("there", up_s))
        lease_of_before(HOUR_S, 90.0)
    beat_there("there", up_s - 95.0, monkeypatch)
    assert clock_set.unwatched() is None
    beat_there("another boot", 12.0, monkeypatch)
    assert clock_set.unwatched() is None


def test_a_clock_that_is_set_back_and_right_again_makes_no_old_act_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    job, end = make_job(), now()
    for minutes in (10, 20, 30, 40, 50):
        acted(f"dec_{minutes}", end - timedelta(minutes=minutes), job)
    monkeypatch.setattr(windows, "uptime", lambda: ("b", 1.0))
    clock_set._write_down(-HOUR_S, (end - timedelta(seconds=30.0 + HOUR_S)).timestamp())
    acted("dec_mid", end - timedelta(seconds=20.0 + HOUR_S), job)
    clock_set._write_down(HOUR_S, (end - timedelta(seconds=12.0)).timestamp())
    acted("dec_new", end, job)
    assert disruption.recent_acts() == 2
    assert ledger_of(job, 1).in_window == 7, "its window is an hour: all of them"


def test_ages_are_right_after_a_clock_was_set_back_and_right_again() -> None:
    end = now()
    ClockStep.objects.create(set_at=end - timedelta(seconds=30.0 + HOUR_S), step_s=-HOUR_S)
    ClockStep.objects.create(set_at=end - timedelta(seconds=12.0), step_s=HOUR_S)
    for age_s, told_s in ((1800.0, 1800.0), (20.0, 20.0 + HOUR_S), (5.0, 5.0), (7200.0, 7200.0)):
        assert windows.age_s(end - timedelta(seconds=told_s)) == pytest.approx(age_s, abs=3.0)


def test_who_begins_to_lead_while_the_database_is_away_has_its_grace_when_it_is_back(
    monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    settings.GRACE_S = 60.0
    sentinel = Sentinel()
    sentinel.blind_until = 0.0
    with monkeypatch.context() as patched:
        patched.setattr(windows, "known", away)
        with pytest.raises(OperationalError):
            sentinel._begin_to_lead(sentinel.shards[0], Held(term=1, kept_s=time.monotonic()))
    sentinel._begin_to_lead(sentinel.shards[0], Held(term=1, kept_s=time.monotonic()))
    assert sentinel.blind_until > time.monotonic()
