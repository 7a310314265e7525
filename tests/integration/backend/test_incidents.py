"""What an incident tells of itself: when training went on, and when its certificate is news."""

import contextlib
import time
from pathlib import Path

import pytest
from pytest_django.fixtures import Settings

from controlplane.changes.due.checks import LOSSES
from controlplane.jobs.models import Job
from controlplane.protocol.states import JobState
from controlplane.recovery import proof
from controlplane.recovery.certificate import certify, certify_due
from controlplane.recovery.models import Decision, Incident, ViewRow
from controlplane.recovery.phases import compute_phases
from controlplane.recovery.reconcile import is_due, reconcile_job
from controlplane.runtime.clock import ago, now
from controlplane.runtime.models import Event
from controlplane.runtime.sandbox import service
from tests.integration.backend.builders import (
    commit_step,
    flush_all,
    install_all,
    job_that_lost_a_rank,
    join_all,
)

pytestmark = pytest.mark.django_db


def test_training_that_went_on_in_the_joiners_view_already_is_told_all_the_same() -> None:
    fleet, job = job_that_lost_a_rank()
    without = job.epoch + 1
    for _ in range(2):
        flush_all(fleet, job, committed=2)
        reconcile_job(job.id)
        install_all(fleet, job)
        join_all(fleet, job)
        reconcile_job(job.id)
    commit_step(fleet, job, 2)
    view = ViewRow.objects.get(job=job, epoch=without)
    assert view.installed_at is not None
    assert view.resumed_at is None, "no step was made in it"
    phases = {phase["name"]: phase["since_fault_s"] for phase in compute_phases(Incident.objects.get(job=job))}
    assert phases["first_commit"] > phases["view_installed"]


def test_an_incident_in_which_no_membership_changed_has_nothing_of_the_recovery_from_another_one() -> None:
    fleet, job = job_that_lost_a_rank()
    flush_all(fleet, job, committed=2)
    reconcile_job(job.id)
    lost = Incident.objects.get(job=job)
    # A reading kept new work from a node of the job a minute before a rank was killed on another one.
    other = Incident.objects.create(id="inc_reading", job=job, title="60 retired memory pages", opened_at=ago(60.0))
    evicted = lost.decisions.get(routine=False)
    cordon = {"action": "set_node_state", "node_id": fleet.nodes["n1"].id, "to": "cordoned"}
    values = {field.attname: getattr(evicted, field.attname) for field in Decision._meta.fields}
    values |= {"id": "dec_reading", "key": "cordon", "incident_id": other.id, "at": ago(59.0), "actions": [cordon]}
    Decision.objects.create(**values)
    assert {phase["name"] for phase in compute_phases(other)} == {"fault", "decided"}
    assert {"view_announced", "all_flushed"} <= {phase["name"] for phase in compute_phases(lost)}


def test_a_certificate_that_waits_is_told_once_and_again_when_a_verdict_changes() -> None:
    _, job = job_that_lost_a_rank()
    incident = Incident.objects.get(job=job)
    told = Event.objects.filter(kind="incident.certificate")
    assert certify(incident)["state"] == "pending"
    certify(Incident.objects.get(job=job))
    assert told.count() == 1
    Incident.objects.update(certificate={**Incident.objects.get(job=job).certificate, "checks": []})
    certify(Incident.objects.get(job=job))
    assert told.count() == 2


def test_a_run_that_is_put_off_keeps_its_certificate_pending_until_the_job_has_ended(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.REFERENCE_RUNS, settings.REFERENCE_WHEN, settings.REFERENCE_DIR = True, "ended", tmp_path
    _, job = job_that_lost_a_rank()
    Incident.objects.filter(job=job).update(resolved_at=ago(3600.0), certificate_due_at=ago(1.0))
    certify_due()
    incident = Incident.objects.get(job=job)
    losses = next(check for check in incident.certificate["checks"] if check["name"] == LOSSES)
    assert incident.certificate["state"] == "pending"
    assert "once the job has ended" in losses["detail"]
    assert not list(tmp_path.iterdir()), "no run was begun"
    Job.objects.filter(pk=job.pk).update(state=JobState.CANCELLED, state_since=ago(3600.0))
    monkeypatch.setattr(proof, "GIVE_UP_S", 0.0)
    assert certify(Incident.objects.get(job=job))["state"] != "pending", "it is not waited for any longer"


def test_a_run_that_has_no_place_yet_is_waited_for_and_one_that_hangs_gives_its_place_up(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.REFERENCE_RUNS, settings.REFERENCE_DIR = True, tmp_path
    _, job = job_that_lost_a_rank()
    Incident.objects.filter(job=job).update(resolved_at=ago(3600.0))
    others = [tmp_path / "incidents" / f"other{number}" for number in range(proof.MAX_RUNS)]
    with contextlib.ExitStack() as ending:
        for other in others:
            other.mkdir(parents=True)
            process = service.start(
                service.Task(module="timeit", arguments=["-s", "import time; time.sleep(600)", "0"], place=other)
            )
            ending.callback(process.end)
            proof._Places.running[process] = time.monotonic()
        assert certify(Incident.objects.get(job=job))["state"] == "pending"
        losses = next(each for each in Incident.objects.get(job=job).certificate["checks"] if each["name"] == LOSSES)
        assert "waits for those of other incidents" in losses["detail"]
        with monkeypatch.context() as patched:
            patched.setattr(proof, "GIVE_UP_S", 0.0)
            proof.reap()
    assert not proof._Places.running
    assert all("did not end within" in (other / "failed").read_text() for other in others), "it says why"
    assert certify(Incident.objects.get(job=job))["state"] == "pending", "there is a place for it only now"
    monkeypatch.setattr(proof, "GIVE_UP_S", 0.0)
    assert certify(Incident.objects.get(job=job))["state"] != "pending"


def test_the_first_step_of_a_view_rings_for_the_joiner_that_waited_for_it() -> None:
    fleet, job = job_that_lost_a_rank()
    flush_all(fleet, job, committed=2)
    reconcile_job(job.id)
    install_all(fleet, job)
    join_all(fleet, job)
    ViewRow.objects.filter(job=job).update(ordered_at=now())
    views = ViewRow.objects.filter(job=job).count()
    reconcile_job(job.id)
    assert ViewRow.objects.filter(job=job).count() == views, "survivors are left alone for a moment"
    Job.objects.filter(pk=job.id).update(due_at=None)
    commit_step(fleet, job, 2)
    assert is_due(job.id)
    reconcile_job(job.id)
    assert ViewRow.objects.filter(job=job).count() == views + 1
