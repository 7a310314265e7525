"""A recovery in which the server's clock is set: its phases are as long as they were, and its events are all there."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models import F
from django.test.utils import CaptureQueriesContext
from prometheus_client import REGISTRY

from controlplane.jobs.models import Job, Rank, Replica
from controlplane.protocol.states import IncidentOutcome
from controlplane.recovery import clock_set, selectors
from controlplane.recovery.certificate import certify
from controlplane.recovery.incidents import refresh_phases, resolve
from controlplane.recovery.models import Decision, FlushRow, Incident, Signal, ViewRow
from controlplane.recovery.phases import recovery_s
from controlplane.recovery.reconcile import reconcile_job
from controlplane.runtime import events
from controlplane.runtime.clock import ago, now_s
from controlplane.runtime.models import ClockStep, Event
from tests.integration.backend.builders import Fleet, make_fleet, run_job
from tests.integration.backend.test_certificates import go_on, kill_replica

pytestmark = pytest.mark.django_db

HOUR_S = 3600.0
BOTH = pytest.mark.parametrize("step_s", [HOUR_S, -HOUR_S, 0.0], ids=["ahead", "back", "not at all"])
TIMES: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (Incident, ("opened_at",)), (Signal, ("seen_at", "created_at")), (Decision, ("at",)), (FlushRow, ("at",)),
    (ViewRow, ("announced_at", "installed_at", "resumed_at")), (Event, ("at",)), (Replica, ("created_at",)),
    (Rank, ("started_at", "joined_at")),
)  # fmt: skip
RECOVERED = ("holdfast_recovery_seconds_sum", {"phase": "full_strength"})
RECOVERIES = ("holdfast_recovery_seconds_count", {"phase": "full_strength"})


def failed() -> tuple[Fleet, Job]:
    """One replica is gone; that was decided."""
    fleet = make_fleet(5)
    job = run_job(fleet)
    kill_replica(fleet, job, 1)
    reconcile_job(job.id)
    job.refresh_from_db()
    return fleet, job


def set_clock(step_s: float) -> None:
    """All rows until now were written by the clock of before."""
    for model, columns in TIMES:
        model.objects.update(**{column: F(column) - timedelta(seconds=step_s) for column in columns})
    if step_s:
        clock_set.move(step_s, set_s=now_s())


def over(job: Job) -> Incident:
    with events.unit_of_work():
        resolve(Job.objects.get(pk=job.pk), "Training is back.", IncidentOutcome.RECOVERED)
    return Incident.objects.get(job=job)


@BOTH
def test_its_phases_are_those_of_a_recovery_of_seconds_in_their_order(step_s: float) -> None:
    fleet, job = failed()
    set_clock(step_s)
    go_on(fleet, job, first=2, until=5)
    incident = over(job)
    names = [phase["name"] for phase in incident.phases]
    assert names[:4] in (
        ["fault", "detected", "decided", "view_announced"],
        ["fault", "detected", "view_announced", "decided"],
    )
    assert {"all_flushed", "view_installed", "first_commit"} <= set(names[4:])
    assert names[-1] == "full_strength"
    found_s = recovery_s(incident)
    assert found_s is not None
    assert 0.0 < found_s < 60.0


@BOTH
def test_what_is_shown_as_its_moments_is_what_the_clock_told(step_s: float) -> None:
    _, job = failed()
    set_clock(step_s)
    incident = over(job)
    at = {phase["name"]: phase["at"] for phase in incident.phases}
    assert at["decided"][:19] == Decision.objects.get(incident=incident, routine=False).at.isoformat()[:19]


@BOTH
def test_prometheus_counts_it_as_that_too(step_s: float, django_capture_on_commit_callbacks: Any) -> None:
    _, job = failed()
    set_clock(step_s)
    before_s = REGISTRY.get_sample_value(*RECOVERED) or 0.0
    with django_capture_on_commit_callbacks(execute=True):
        incident = over(job)
        certify(incident)
        certify(incident)
    counted_s = (REGISTRY.get_sample_value(*RECOVERED) or 0.0) - before_s
    assert 0.0 < counted_s < 60.0


@BOTH
@pytest.mark.parametrize("seen_after_s", [0.0, 1.5], ids=["at once", "later"])
def test_one_that_ends_before_anybody_knows_of_the_step_is_as_long_as_it_was(
    step_s: float, seen_after_s: float, django_capture_on_commit_callbacks: Any
) -> None:
    _, job = failed()
    for model, columns in TIMES:
        model.objects.update(**{column: F(column) - timedelta(seconds=step_s) for column in columns})
    Incident.objects.update(began={**Incident.objects.get(job=job).began, "clock": 0})
    before = [REGISTRY.get_sample_value(*RECOVERED), REGISTRY.get_sample_value(*RECOVERIES)]
    with django_capture_on_commit_callbacks(execute=True):
        incident = over(job)
        if step_s:
            clock_set.move(step_s, set_s=now_s() + seen_after_s)
        certify(incident)
    found_s = recovery_s(incident)
    assert found_s is not None and 0.0 < found_s < 60.0
    after = [REGISTRY.get_sample_value(*RECOVERED), REGISTRY.get_sample_value(*RECOVERIES)]
    assert [one - (other or 0.0) for one, other in zip(after, before, strict=True)] == pytest.approx([found_s, 1.0])
    later_s = recovery_s(Incident.objects.get(job=job))
    assert later_s == found_s


@BOTH
def test_a_step_after_it_changes_nothing(step_s: float) -> None:
    _, job = failed()
    before_s = recovery_s(over(job))
    set_clock(step_s)
    # Hours later, by when the clock has told its times again.
    ClockStep.objects.update(set_at=F("set_at") - timedelta(hours=2))
    Incident.objects.update(recovered_at=F("recovered_at") - timedelta(seconds=step_s))
    incident = Incident.objects.get(job=job)
    refresh_phases(incident)
    assert recovery_s(incident) == pytest.approx(before_s, abs=1e-3)


@BOTH
def test_no_event_of_it_is_missing_and_none_of_another_time_is_in_it(step_s: float) -> None:
    _, job = failed()
    set_clock(step_s)
    incident = over(job)
    with events.unit_of_work():
        events.publish("job.note", "Something else, later.", job_id=job.id)
    told = [event["seq"] for event in selectors.incident_detail(incident.id)["events"]]
    last = Event.objects.get(kind="incident.resolved", entity_id=incident.id).seq
    assert told == sorted(told)
    wanted = Event.objects.filter(seq__lte=last, job_id=job.id).exclude(sentence="")
    assert set(wanted.values_list("seq", flat=True)) <= set(told)
    assert told[-1] == last


@BOTH
@pytest.mark.parametrize("known", ["when it opens", "a moment later"])
def test_what_led_to_it_is_told_from_before_a_step_in_its_last_minute(step_s: float, known: str) -> None:
    fleet = make_fleet(5)
    job = run_job(fleet)
    with events.unit_of_work():
        for name in ("job.long_ago", "job.half_a_minute_ago", "job.just_now"):
            events.publish(name, "It happened.", job_id=job.id)
    ages_s = {"job.long_ago": 90.0, "job.half_a_minute_ago": 30.0, "job.just_now": 0.2}
    Event.objects.exclude(kind__in=ages_s).update(at=ago(3.0 * HOUR_S))
    for name, age_s in ages_s.items():
        Event.objects.filter(kind=name).update(at=ago(age_s) - timedelta(seconds=step_s if age_s > 5.0 else 0.0))
    set_s = now_s() - 1.0
    if step_s and known == "when it opens":
        clock_set.move(step_s, set_s=set_s)
    kill_replica(fleet, job, 1)
    reconcile_job(job.id)
    if step_s and known != "when it opens":
        clock_set.move(step_s, set_s=set_s)
    told = {event["kind"] for event in selectors.incident_detail(Incident.objects.get(job=job).id)["events"]}
    assert told & set(ages_s) == {"job.half_a_minute_ago", "job.just_now"}


def test_what_the_clock_told_in_its_last_minute_an_hour_before_is_not_what_led_to_it() -> None:
    fleet = make_fleet(5)
    job = run_job(fleet)
    with events.unit_of_work():
        events.publish("job.an_hour_ago", "It happened.", job_id=job.id)
    Event.objects.filter(kind="job.an_hour_ago").update(at=ago(20.0))
    clock_set.move(-HOUR_S, set_s=now_s() - 1.0)
    kill_replica(fleet, job, 1)
    reconcile_job(job.id)
    told = {event["kind"] for event in selectors.incident_detail(Incident.objects.get(job=job).id)["events"]}
    assert "job.an_hour_ago" not in told


def test_while_the_clock_was_not_set_the_database_says_when_the_last_rank_had_come() -> None:
    """Of a hundred thousand ranks none is read."""
    fleet, job = failed()
    go_on(fleet, job, first=3, until=6)
    incident = over(job)
    with CaptureQueriesContext(connection) as asked:
        refresh_phases(incident)
    told = [
        q["sql"] for q in asked if q["sql"].startswith("SELECT") and ("jobs_rank" in q["sql"] or "flushrow" in q["sql"])
    ]
    assert told and all("COUNT(" in sql for sql in told)
