"""A job that is over has no active replica left, however it ended."""

from datetime import timedelta
from importlib import import_module

import pytest
from django.apps import apps

from controlplane.dispatch.models import Command
from controlplane.fleet.models import Node
from controlplane.jobs.models import Attempt, Job, Replica
from controlplane.jobs.services import cancel_job, wake_job
from controlplane.protocol import frames
from controlplane.protocol.spec import Scheduling
from controlplane.recovery import sweep, tasks
from controlplane.recovery.reconcile import LEFT_RETRY_S, reconcile_job
from controlplane.runtime.clock import ago, now
from tests.integration.backend.builders import Fleet, live_ranks, make_fleet, ref_of, run_job

pytestmark = pytest.mark.django_db(transaction=True)


def assert_over(job: Job, state: str) -> None:
    assert Job.objects.get(pk=job.pk).state == state
    assert set(Attempt.objects.filter(job=job).values_list("state", flat=True)) == {"ended"}
    assert set(Replica.objects.filter(attempt__job=job).values_list("state", "contributing")) == {("ended", False)}


def test_the_replicas_of_a_cancelled_job_end_when_its_processes_are_gone() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    cancel_job(job.id, reason="enough", actor="ada")
    reconcile_job(job.id)
    assert "active" in set(Replica.objects.filter(attempt__job=job).values_list("state", flat=True))
    for command in Command.objects.filter(job=job, kind="stop_ranks").select_related("node"):
        fleet.tell(command.node.name, frames.CommandAnswer(command.id, "succeeded"))
    reconcile_job(job.id)
    assert_over(job, "cancelled")


def test_the_replicas_of_a_job_that_finished_end_with_it() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    Job.objects.filter(pk=job.pk).update(trained=True)
    for row in live_ranks(job):
        fleet.tell(row.node.name, frames.RankExited(ref_of(row), 0, None, False, "done", None))
    reconcile_job(job.id)
    assert_over(job, "succeeded")


def ends(fleet: Fleet, how: str) -> Job:
    """A job whose ranks are to leave, and have not left."""
    job = run_job(fleet, scheduling=Scheduling(time_limit_s=3600.0))
    if how == "time limit":
        Attempt.objects.filter(job=job).update(started_at=ago(7200.0))
    else:
        cancel_job(job.id, reason="enough", actor="ada")
    reconcile_job(job.id)
    assert Job.objects.get(pk=job.pk).state == "cancelled"
    assert set(Attempt.objects.filter(job=job).values_list("state", flat=True)) == {"stopping"}
    return job


@pytest.mark.parametrize("how", ["cancelled", "time limit"])
def test_the_wake_up_of_its_last_process_ends_the_attempt_of_a_job_that_is_over(how: str) -> None:
    """As a worker has it: a job that is not due is not looked at."""
    fleet = make_fleet()
    job = ends(fleet, how)
    for row in live_ranks(job):
        fleet.tell(row.node.name, frames.RankExited(ref_of(row), 15, None, True, "stopped", None))
    tasks.reconcile_job(job.id)
    assert_over(job, "cancelled")
    assert Job.objects.get(pk=job.pk).due_at is None
    wake_job(job.id)
    assert Job.objects.get(pk=job.pk).due_at is None, "nothing is left to be looked at"


def test_while_its_attempt_has_not_ended_a_job_that_is_over_is_looked_at_by_its_own_timer() -> None:
    """Its nodes go out of reach with its last processes, and nobody says so of a job that is over."""
    before = now()
    job = ends(make_fleet(), "cancelled")
    due = Job.objects.get(pk=job.pk).due_at
    assert due is not None and before < due <= now() + timedelta(seconds=LEFT_RETRY_S)
    Node.objects.update(connected=False)
    Job.objects.filter(pk=job.pk).update(due_at=ago(1.0))
    assert sweep.overdue(0.5) == [job.id]
    tasks.reconcile_job(job.id)
    assert_over(job, "cancelled")
    assert sweep.overdue(0.0) == []


@pytest.mark.parametrize(("over_s", "again_s"), [(10.0, 5.0), (600.0, 60.0), (1e6, 300.0)])
def test_a_job_is_looked_at_more_seldom_the_longer_it_is_over_with_an_attempt_that_does_not_end(
    over_s: float, again_s: float
) -> None:
    job = ends(make_fleet(), "cancelled")
    Job.objects.filter(pk=job.pk).update(due_at=ago(1.0), finished_at=ago(over_s))
    tasks.reconcile_job(job.id)
    due = Job.objects.get(pk=job.pk).due_at
    assert due is not None and (due - now()).total_seconds() == pytest.approx(again_s, abs=2.0)


def test_an_upgrade_makes_jobs_due_whose_attempt_was_left_behind() -> None:
    job = ends(make_fleet(), "cancelled")
    Job.objects.update(due_at=None)
    Node.objects.update(connected=False)
    import_module("controlplane.jobs.migrations.0022_attempts_of_ended_jobs").make_due(apps, None)
    tasks.reconcile_job(job.id)
    assert_over(job, "cancelled")
