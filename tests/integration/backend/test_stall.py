"""How long training stood still in an incident, from what the ranks told of their steps."""

from datetime import datetime, timedelta

import pytest

from controlplane.jobs.models import Attempt, Job, StepRecord
from controlplane.protocol.states import IncidentOutcome
from controlplane.recovery import course
from controlplane.recovery.incidents import refresh_phases, resolve
from controlplane.recovery.models import Incident
from controlplane.recovery.present import incident_summary
from controlplane.recovery.reconcile import reconcile_job
from controlplane.recovery.stall import stall_of
from controlplane.runtime import events
from controlplane.runtime.clock import ago
from tests.integration.backend.builders import Fleet, commit_step, flush_all, job_that_lost_a_rank, make_fleet, run_job
from tests.integration.backend.test_certificates import go_on, kill_replica

pytestmark = pytest.mark.django_db


def broken_job() -> tuple[Job, Incident, datetime]:
    """A job with an open incident that began 100 s ago."""
    _, job = job_that_lost_a_rank()
    opened = ago(100.0)
    StepRecord.objects.filter(job=job).update(at=opened - timedelta(seconds=1.0), stall_s=7.0)
    Incident.objects.filter(job=job).update(opened_at=opened, began=course.mark(job, opened))
    return job, Incident.objects.get(job=job), opened


def commit(job: Job, step: int, at: datetime, *, stall_s: float = 0.0, attempt: int = 1) -> None:
    StepRecord.objects.create(job=job, attempt=attempt, step=step, epoch=9, at=at, stall_s=stall_s, step_time_s=1.0)


def test_the_stall_is_what_survivors_waited_while_it_was_open() -> None:
    job, incident, opened = broken_job()
    assert stall_of(incident) is None, "no step has been committed since"
    for step, stall_s in enumerate((0.8, 0.0, 0.0, 0.3, 0.0), 2):
        commit(job, step, opened + timedelta(seconds=step), stall_s=stall_s)
    over = opened + timedelta(seconds=20.0)
    Incident.objects.filter(pk=incident.pk).update(resolved_at=over, ended=course.mark(job, over))
    commit(job, 7, opened + timedelta(seconds=30.0), stall_s=5.0)
    incident.refresh_from_db()
    refresh_phases(incident)
    assert incident_summary(Incident.objects.get(pk=incident.pk))["stall_s"] == pytest.approx(1.1)


def test_where_nobody_survived_it_lasts_from_the_last_step_to_the_next_attempts_first() -> None:
    job, incident, opened = broken_job()
    old = Attempt.objects.get(job=job)
    Attempt.objects.filter(pk=old.pk).update(state="ended", ended_at=opened + timedelta(seconds=2.0))
    again = Attempt.objects.create(
        job=job, number=2, layout=old.layout, replicas=old.replicas, checkpoint_dir=old.checkpoint_dir
    )
    Attempt.objects.filter(pk=again.pk).update(started_at=opened + timedelta(seconds=3.0))
    commit(job, 0, opened + timedelta(seconds=41.0), attempt=2)
    commit(job, 1, opened + timedelta(seconds=42.0), attempt=2, stall_s=0.5)
    found = stall_of(incident)
    assert found is not None and found.own_s == pytest.approx(42.0 + 0.5)


def test_an_incident_of_the_fleet_has_none() -> None:
    assert stall_of(Incident.objects.create(id="inc_1", title="a device", opened_at=ago(5.0))) is None


def two_faults_at_a_time() -> tuple[Fleet, Job]:
    """Replica 2 dies while the others leave replica 1 behind; in the step under way they wait for 8 s in all."""
    fleet = make_fleet(6)
    job = run_job(fleet)
    kill_replica(fleet, job, 1)
    reconcile_job(job.id)
    kill_replica(fleet, job, 2)
    reconcile_job(job.id)
    flush_all(fleet, job, committed=2)
    go_on(fleet, job, first=2, until=2)
    commit_step(fleet, job, 2, stall_s=8.0, step_s=9.0)
    commit_step(fleet, job, 3, stall_s=0.5, step_s=1.5)
    return fleet, job


def test_of_two_incidents_at_the_same_time_one_has_the_stall_and_the_other_says_so() -> None:
    _, job = two_faults_at_a_time()
    first, second = Incident.objects.filter(job=job).order_by("id")
    for incident in (first, second):
        refresh_phases(incident)
    assert (first.stall_s, first.stall_others_s) == pytest.approx((8.5, 0.0))
    assert (second.stall_s, second.stall_others_s) == pytest.approx((0.0, 8.5))


def test_all_incidents_together_have_no_more_than_the_steps_of_the_job_stood_still() -> None:
    fleet, job = two_faults_at_a_time()
    with events.unit_of_work():
        resolve(Job.objects.get(pk=job.pk), "Training is back.", IncidentOutcome.RECOVERED)
    kill_replica(fleet, job, 0)
    reconcile_job(job.id)
    incidents = list(Incident.objects.filter(job=job))
    for incident in incidents:
        refresh_phases(incident)
    stood_s = sum(StepRecord.objects.filter(job=job).values_list("stall_s", flat=True))
    assert len(incidents) == 3
    assert sum(incident.stall_s or 0.0 for incident in incidents) == pytest.approx(stood_s) == pytest.approx(8.5)
