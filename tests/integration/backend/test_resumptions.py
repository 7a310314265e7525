"""The certificate of a job that yielded and continued: nothing was lost by it and nothing trained otherwise."""

import json
from pathlib import Path
from typing import Any

import pytest
from pytest_django.fixtures import Settings

from controlplane.changes.due.checks import LOSSES
from controlplane.jobs.models import Attempt, Job, StepRecord
from controlplane.protocol.states import JobState
from controlplane.recovery import proof, requests, resumptions
from controlplane.recovery.models import Incident, ViewRow
from controlplane.recovery.reconcile import reconcile_job
from controlplane.recovery.resumption_models import Resumption
from controlplane.runtime.clock import ago
from controlplane.runtime.models import Event
from tests.integration.backend.builders import Fleet, commit_step, make_fleet, run_job
from tests.integration.backend.test_preemption import ADA, job_of, leave, save, train

pytestmark = pytest.mark.django_db(transaction=True)
TOLD = 4.0
"""The loss of each step that the builders commit."""


@pytest.fixture(autouse=True)
def _runs(settings: Settings, tmp_path: Path) -> None:
    settings.REFERENCE_RUNS, settings.REFERENCE_DIR = True, tmp_path


def yielded() -> tuple[Fleet, Job]:
    """A job of five steps that a person had yield; its ranks are gone."""
    fleet = make_fleet(5)
    job = run_job(fleet, steps=5)
    requests.preempt(job, reason="demo at noon", actor=ADA)
    reconcile_job(job.id)
    save(fleet, job, 5)
    reconcile_job(job.id)
    leave(fleet, job)
    reconcile_job(job.id)
    return fleet, job


def went_on(fleet: Fleet, job: Job, *, until: int = 9) -> Resumption:
    """It was resumed, and has trained to this step; half a minute ago. What is to be proved of it."""
    resumptions.certify_resumed()
    requests.resume(job_of(job), reason="demo is over", actor=ADA)
    reconcile_job(job.id)
    train(fleet, job, 5)
    for step in range(6, until):
        commit_step(fleet, job, step)
    StepRecord.objects.filter(job=job).update(at=ago(30.0))
    resumptions.certify_resumed()
    row = Resumption.objects.get(job=job)
    Resumption.objects.filter(pk=row.pk).update(recovered_at=ago(40.0))
    row.refresh_from_db()
    return row


def undisturbed(row: Resumption, losses: list[float]) -> None:
    """The run from step 0 has come to these losses."""
    place = proof.folder(row)
    place.mkdir(parents=True, exist_ok=True)
    (place / "losses.json").write_text(json.dumps({"losses": losses, "tolerance": 1e-5, "first_step": 0}))


def verdicts(certificate: dict[str, Any]) -> dict[str, bool | None]:
    return {check["name"]: check["ok"] for check in certificate["checks"]}


def test_a_job_that_yielded_and_continued_is_certified_as_a_recovery_is_and_no_incident_is_opened() -> None:
    fleet, job = yielded()
    row = went_on(fleet, job)
    assert (row.yielded, row.resumed) == (1, 2)
    assert (row.began["of_attempt"], row.began["step"], row.ended["attempt"]) == (1, 4, 2)
    undisturbed(row, [TOLD] * 9)
    certificate = resumptions.certify(row)
    assert certificate["state"] == "green", certificate
    assert set(verdicts(certificate)) == {
        "state_hashes_equal", "sample_ledger_exact", LOSSES, "no_step_lost", "old_incarnation_fenced",
    }  # fmt: skip
    details = {check["name"]: check["detail"] for check in certificate["checks"]}
    assert details["no_step_lost"] == "steps 0 to 8 are all there"
    assert "compared 9 of 9 steps (0 to 8)" in details[LOSSES]
    assert "0.1 from view" in details["old_incarnation_fenced"]
    assert not Incident.objects.exists() and Resumption.objects.get().certificate_due_at is None
    told = Event.objects.get(kind="job.certificate")
    assert told.sentence == f"{job.name} continued after it had yielded. Certificate: green."
    assert list(resumptions.of_attempts(job)) == [2]


def test_a_step_that_the_pause_lost_is_red() -> None:
    fleet, job = yielded()
    row = went_on(fleet, job)
    StepRecord.objects.filter(job=job, step=5).delete()
    Attempt.objects.filter(job=job, number=2).update(resume_step=6)
    undisturbed(row, [TOLD] * 9)
    certificate = resumptions.certify(row)
    assert (certificate["state"], verdicts(certificate)["no_step_lost"]) == ("red", False)


def test_steps_after_the_pause_that_an_undisturbed_run_would_not_have_made_are_red() -> None:
    fleet, job = yielded()
    row = went_on(fleet, job)
    undisturbed(row, [TOLD] * 5 + [TOLD + 0.01] * 4)
    certificate = resumptions.certify(row)
    assert (certificate["state"], verdicts(certificate)[LOSSES]) == ("red", False)


def test_what_the_old_attempt_commits_after_the_new_one_went_on_is_red() -> None:
    fleet, job = yielded()
    row = went_on(fleet, job)
    first = ViewRow.objects.filter(job=job).order_by("epoch").values_list("epoch", flat=True)[0]
    StepRecord.objects.filter(job=job, step=7).update(epoch=first)
    undisturbed(row, [TOLD] * 9)
    certificate = resumptions.certify(row)
    assert (certificate["state"], verdicts(certificate)["old_incarnation_fenced"]) == ("red", False)


def test_without_an_undisturbed_run_it_is_incomplete_and_says_why(settings: Settings) -> None:
    settings.REFERENCE_RUNS = False
    fleet, job = yielded()
    certificate = resumptions.certify(went_on(fleet, job))
    assert certificate["state"] == "incomplete"
    (loss,) = (check for check in certificate["checks"] if check["name"] == LOSSES)
    assert loss["ok"] is None and "reference runs are off here" in loss["detail"]


def test_while_the_undisturbed_run_is_possible_it_waits_and_the_page_says_pending() -> None:
    fleet, job = yielded()
    row = went_on(fleet, job)
    assert resumptions.certify(row)["state"] == "pending"
    assert Resumption.objects.get().certificate_due_at is not None
    assert resumptions.of_attempts(job)[2]["state"] == "pending"


def test_each_pause_is_noted_once_however_often_it_is_swept_and_one_that_never_ends_proves_nothing() -> None:
    _, job = yielded()
    for _ in range(3):
        resumptions.certify_resumed()
    row = Resumption.objects.get()
    assert (row.resumed, row.certificate_due_at) == (None, None) and resumptions.of_attempts(job) == {}
    Job.objects.filter(pk=job.pk).update(state=JobState.CANCELLED)
    resumptions.certify_resumed()
    resumptions.certify_resumed()
    assert not Resumption.objects.exists()
