"""A job that is over has no active replica left, however it ended."""

import pytest

from controlplane.dispatch.models import Command
from controlplane.jobs.models import Attempt, Job, Replica
from controlplane.jobs.services import cancel_job
from controlplane.protocol import frames
from controlplane.recovery.reconcile import reconcile_job
from tests.integration.backend.builders import live_ranks, make_fleet, ref_of, run_job

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
