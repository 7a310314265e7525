"""All of a job stands still for one cause: somebody on call is shown that, and that it is over."""

import pytest
from django.contrib.auth.models import User
from django.test import Client

from controlplane.access.rights import EVERYTHING
from controlplane.api.overview import overview
from controlplane.jobs.models import Job, Replica
from controlplane.protocol import frames
from controlplane.protocol.rank import Phase, Section
from controlplane.protocol.spec import Resources
from controlplane.recovery import health_gate
from controlplane.recovery.certificate import certify
from controlplane.recovery.models import Decision, Incident, Signal
from controlplane.recovery.reconcile import reconcile_job
from controlplane.runtime.clock import ago
from tests.integration.backend.builders import (
    Fleet,
    commit_step,
    kill_rank,
    live_ranks,
    make_fleet,
    ref_of,
    run_job,
)

pytestmark = pytest.mark.django_db


@pytest.fixture
def stalled(monkeypatch: pytest.MonkeyPatch) -> tuple[Fleet, Job]:
    """Every rank of a job that trains is late in its step."""
    monkeypatch.setattr(health_gate, "is_blind", lambda: False)
    fleet = make_fleet(4)
    job = run_job(fleet, steps=3)
    for row in live_ranks(job):
        fleet.tell(row.node.name, frames.RankOverdue(ref_of(row), Section.STEP, Phase.COMPUTE, 3, 9.0, 5.0, 9.0))
    reconcile_job(job.id)
    return fleet, job


def why(job: Job) -> str:
    client = Client()
    client.force_login(User.objects.get_or_create(username="lin")[0])
    return str(client.get(f"/api/v1/jobs/{job.id}").json()["why"])


def test_a_stall_of_a_whole_job_is_one_incident_and_ends_nobody(stalled: tuple[Fleet, Job]) -> None:
    _, job = stalled
    incident = Incident.objects.get(job=job)
    assert incident.state == "open"
    assert incident.title == "3 of 3 replicas are late in step at once"
    assert {row.incident_id for row in Signal.objects.filter(kind="rank_overdue")} == {incident.pk}
    assert overview(EVERYTHING)["attention"]["live"] == 1
    assert why(job).startswith("3 of 3 replicas are late in step at once: ")
    assert "continues until its last step" not in why(job)
    Incident.objects.update(opened_at=ago(60.0))
    reconcile_job(job.id)
    assert Incident.objects.get(job=job).state == "open", "it lasts"
    assert Decision.objects.filter(job=job, rule="common_stall").count() == 1
    assert not Decision.objects.filter(job=job, rule__in=("replica_failure", "restart")).exists()


def test_it_is_over_when_all_of_them_train_again(stalled: tuple[Fleet, Job]) -> None:
    fleet, job = stalled
    commit_step(fleet, job, 3)
    commit_step(fleet, job, 4)
    Incident.objects.update(opened_at=ago(60.0))
    reconcile_job(job.id)
    incident = Incident.objects.get(job=job)
    assert (incident.state, incident.outcome) == ("resolved", "recovered")
    checks = {check["name"]: check["ok"] for check in certify(incident)["checks"]}
    assert False not in checks.values(), "nobody was ended, nothing was lost"
    assert checks["no_step_lost"] is checks["old_incarnation_fenced"] is True
    assert why(job).endswith("It continues until its last step.")


def test_a_rank_that_is_killed_meanwhile_has_an_incident_of_its_own(stalled: tuple[Fleet, Job]) -> None:
    fleet, job = stalled
    kill_rank(fleet, next(row for row in live_ranks(job) if (row.replica.index, row.rank) == (1, 0)))
    reconcile_job(job.id)
    titles = {row.title for row in Incident.objects.filter(job=job)}
    assert titles == {"3 of 3 replicas are late in step at once", "Rank 0 of replica 1 on n2 was killed (SIGKILL)"}


def test_two_of_four_that_are_late_at_once_are_one_incident_in_which_nobody_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(health_gate, "is_blind", lambda: False)
    fleet = make_fleet(4)
    job = run_job(fleet, steps=3, resources=Resources(nodes=4, gpus_per_node=2))
    before = {row.pk for row in live_ranks(job)}
    for row in live_ranks(job):
        if row.replica.index in (1, 2):
            fleet.tell(row.node.name, frames.RankOverdue(ref_of(row), Section.STEP, Phase.COMPUTE, 3, 9.0, 5.0, 0.2))
    reconcile_job(job.id)
    incident = Incident.objects.get(job=job)
    assert incident.title == "2 of 4 replicas are late in step at once"
    assert {row.incident_id for row in Signal.objects.filter(kind="rank_overdue")} == {incident.pk}
    (decision,) = Decision.objects.filter(job=job, rule="leave_out")
    assert (decision.reason_code, decision.evidence["late"], decision.evidence["of"]) == ("stalled", 2, 4)
    assert why(job).startswith("2 of 4 replicas are late in step at once, here replicas 1 and 2")
    states = {row.index: row.state for row in Replica.objects.filter(attempt__job=job)}
    assert states == {0: "active", 1: "suspect", 2: "suspect", 3: "active"}
    reconcile_job(job.id)
    assert {row.pk for row in live_ranks(job)} == before
    assert not Decision.objects.filter(job=job, rule__in=("replica_failure", "restart", "common_stall")).exists()
    assert Incident.objects.filter(job=job).count() == 1
