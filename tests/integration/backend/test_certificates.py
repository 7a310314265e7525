"""What a certificate claims under faults inside a recovery, and what it does not claim."""

import json
from pathlib import Path

import pytest
from pytest_django.fixtures import Settings

from controlplane.changes.due import certificates
from controlplane.changes.due.checks import Check
from controlplane.changes.due.course import Seen, judge
from controlplane.jobs.models import Attempt, Job, Replica, StepRecord
from controlplane.protocol.states import AttemptState
from controlplane.recovery import course, proof
from controlplane.recovery.certificate import certify, words_of
from controlplane.recovery.models import Decision, Incident, ViewRow
from controlplane.recovery.reconcile import reconcile_job
from controlplane.runtime.clock import ago
from tests.integration.backend.builders import (
    Fleet,
    commit_step,
    flush_all,
    install_all,
    kill_rank,
    live_ranks,
    make_fleet,
    run_job,
)

pytestmark = pytest.mark.django_db


def go_on(fleet: Fleet, job: Job, *, first: int, until: int) -> None:
    """The newest view is flushed and installed, and steps are committed in it."""
    flush_all(fleet, job, committed=first)
    reconcile_job(job.id)
    install_all(fleet, job)
    for step in range(first, until):
        commit_step(fleet, job, step)


def resolved(job: Job) -> Incident:
    """The job's incident as if all of it had happened half a minute ago and was resolved since."""
    StepRecord.objects.filter(job=job, step__lt=2).update(at=ago(50.0))
    StepRecord.objects.filter(job=job, step__gte=2).update(at=ago(30.0))
    views = ViewRow.objects.filter(job=job)
    views.update(announced_at=ago(40.0))
    views.filter(epoch=min(views.values_list("epoch", flat=True))).update(announced_at=ago(60.0))
    ViewRow.objects.filter(job=job, resumed_at__isnull=False).update(resumed_at=ago(30.0))
    Decision.objects.filter(job=job).update(at=ago(40.0))
    Replica.objects.filter(attempt__job=job).update(state_since=ago(40.0))
    marks = {"began": course.mark(job, ago(45.0)), "ended": course.mark(job, ago(20.0))}
    Incident.objects.filter(job=job).update(opened_at=ago(45.0), resolved_at=ago(20.0), **marks)
    return Incident.objects.filter(job=job).order_by("opened_at", "id")[0]


def kill_replica(fleet: Fleet, job: Job, index: int) -> None:
    for row in live_ranks(job):
        if row.replica.index == index:
            kill_rank(fleet, row)


def verdicts(certificate: dict[str, object]) -> dict[str, Check]:
    return {check["name"]: check["ok"] for check in certificate["checks"]}  # type: ignore[index, attr-defined]


def test_a_second_failure_inside_an_open_incident_does_not_turn_it_red() -> None:
    fleet = make_fleet(5)
    job = run_job(fleet)
    kill_replica(fleet, job, 1)
    reconcile_job(job.id)
    between = Job.objects.get(pk=job.id).epoch
    kill_replica(fleet, job, 2)
    reconcile_job(job.id)
    job.refresh_from_db()
    second = next(view for view in ViewRow.objects.filter(job=job).order_by("epoch") if view.epoch == between)
    assert 2 in {member["replica"] for member in second.view["members"]}, "it was rightly a member between the two"
    go_on(fleet, job, first=2, until=6)
    certificate = certify(resolved(job))
    told = next(check for check in certificate["checks"] if check["name"] == "old_incarnation_fenced")
    assert told["ok"] is True, told
    assert "1.1 from view" in told["detail"] and "2.1 from view" in told["detail"]
    assert certificate["state"] != "red"


def test_a_view_that_takes_an_evicted_incarnation_back_is_red() -> None:
    fleet = make_fleet(5)
    job = run_job(fleet)
    kill_replica(fleet, job, 1)
    reconcile_job(job.id)
    job.refresh_from_db()
    out = ViewRow.objects.get(job=job, epoch=job.epoch)
    before = ViewRow.objects.filter(job=job, epoch__lt=job.epoch).order_by("-epoch").first()
    assert before is not None
    ViewRow.objects.create(
        job=job, attempt=out.attempt, epoch=out.epoch + 1, view=before.view, announced_at=out.announced_at
    )
    certificate = certify(resolved(job))
    told = next(check for check in certificate["checks"] if check["name"] == "old_incarnation_fenced")
    assert certificate["state"] == "red"
    assert told["detail"] == f"accepted from an old incarnation: view {out.epoch + 1} has 1.1 as a member"


def test_each_incarnation_is_judged_from_its_own_view_with_a_thousand_replicas() -> None:
    everyone = frozenset((replica, 1) for replica in range(1000))
    views = [
        Seen(epoch=1 + gone, attempt=1, members=everyone - {(replica, 1) for replica in range(gone)})
        for gone in range(1000)
    ]
    for replica in range(0, 999, 37):
        found = judge((replica, 1), views, decided_in=replica + 1)
        assert (found.epoch, found.back) == (replica + 2, ())
        assert judge((replica, 1), views, decided_in=None) == found


def test_one_that_left_and_came_back_is_judged_from_the_view_after_its_eviction() -> None:
    with_it, without = frozenset({(0, 1), (1, 1)}), frozenset({(0, 1)})
    members = (with_it, without, with_it, without)
    views = [Seen(epoch=n, attempt=1, members=found) for n, found in enumerate(members, 1)]
    assert judge((1, 1), views, decided_in=3).back == ()
    assert judge((1, 1), views, decided_in=1).back == (3,)
    never = judge((1, 1), views[:3], decided_in=3)
    assert (never.epoch, never.back) == (None, ()), "no view leaves it out: nothing is claimed"


def test_one_that_was_left_out_first_and_ended_later_is_judged_from_the_view_that_left_it_out() -> None:
    with_it, without = frozenset({(0, 1), (1, 1)}), frozenset({(0, 1)})
    members = (with_it, without, with_it, without, without)
    views = [Seen(epoch=n, attempt=1, members=found) for n, found in enumerate(members, 1)]
    found = judge((1, 1), views[:4], decided_in=4)
    assert (found.epoch, found.back) == (4, ()), "no view follows its end, for nothing is started"
    assert judge((1, 1), views, decided_in=5).epoch == 4
    late = Seen(epoch=6, attempt=1, members=with_it)
    assert judge((1, 1), [*views, late], decided_in=5).back == (6,)


def test_a_certificate_that_could_not_judge_all_is_incomplete_and_never_green(settings: Settings) -> None:
    settings.REFERENCE_RUNS = False
    fleet = make_fleet(5)
    job = run_job(fleet)
    kill_replica(fleet, job, 1)
    reconcile_job(job.id)
    go_on(fleet, job, first=2, until=6)
    certificate = certify(resolved(job))
    assert verdicts(certificate)["loss_matches_reference"] is None, "no reference run is made here"
    assert certificate["state"] == "incomplete"
    assert (certificate["judged"], certificate["of"]) == (4, 5)
    assert words_of(certificate) == "incomplete: 4 of 5 judged"


def test_one_that_gives_up_waiting_is_incomplete_too(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.REFERENCE_RUNS = False
    fleet = make_fleet(5)
    job = run_job(fleet)
    kill_replica(fleet, job, 1)
    reconcile_job(job.id)
    incident = resolved(job)
    assert certify(incident)["state"] == "pending", "no step was made after the recovery yet"
    monkeypatch.setattr(certificates, "GIVE_UP_S", 0.0)
    certificate = certify(Incident.objects.get(job=job))
    assert certificate["state"] == "incomplete"
    assert certificate["judged"] < certificate["of"]
    assert Incident.objects.get(job=job).certificate_due_at is None


@pytest.mark.parametrize("comes", [True, False])
@pytest.mark.parametrize("held", [True, False, None])
@pytest.mark.parametrize("losses", [True, False, None])
def test_green_means_that_each_check_holds(held: bool | None, losses: bool | None, comes: bool) -> None:
    checks = [
        Check(name="no_step_lost", ok=held, detail=""),
        Check(name="loss_matches_reference", ok=losses, detail=""),
    ]
    state = certificates.state_of(checks, reference_comes=comes)
    assert (state == "green") == (held is True and losses is True)
    assert (state == "red") == (held is False or losses is False)


def test_steps_from_before_the_recovery_alone_prove_nothing_of_it() -> None:
    fleet = make_fleet(5)
    job = run_job(fleet)
    kill_replica(fleet, job, 1)
    reconcile_job(job.id)
    flush_all(fleet, job, committed=2)
    reconcile_job(job.id)
    install_all(fleet, job)
    commit_step(fleet, job, 2)
    StepRecord.objects.filter(job=job, step=2).update(parameter_hashes={})
    told = verdicts(certify(resolved(job)))
    assert told["state_hashes_equal"] is None, "the steps that two replicas told came before the fault"


def test_an_attempt_that_ended_is_fenced_by_the_views_of_the_next() -> None:
    fleet = make_fleet(5)
    job = run_job(fleet)
    kill_replica(fleet, job, 1)
    reconcile_job(job.id)
    resolved(job)
    view = ViewRow.objects.filter(job=job).order_by("-epoch").first()
    assert view is not None
    old = Attempt.objects.get(job=job)
    Attempt.objects.filter(pk=old.pk).update(state=AttemptState.ENDED, ended_at=ago(40.0))
    again = Attempt.objects.create(
        job=job, number=2, layout=old.layout, replicas=old.replicas, checkpoint_dir=old.checkpoint_dir
    )
    members = [{"replica": 0, "incarnation": 7}]
    next_view = ViewRow.objects.create(
        job=job, attempt=again.number, epoch=view.epoch + 1, view={"members": members}, announced_at=ago(35.0)
    )
    Incident.objects.filter(job=job).update(ended=course.mark(job, ago(20.0)))
    told = next(c for c in certify(Incident.objects.get(job=job))["checks"] if c["name"] == "old_incarnation_fenced")
    assert told["ok"] is True, told
    assert f"0.1 from view {next_view.epoch}" in told["detail"], "what was in no eviction is out with its attempt"
    members = [{"replica": 0, "incarnation": 1}]
    ViewRow.objects.create(
        job=job, attempt=again.number, epoch=view.epoch + 2, view={"members": members}, announced_at=ago(34.0)
    )
    assert certify(Incident.objects.get(job=job))["state"] == "red"


def test_what_a_restart_trained_again_is_shown_with_how_far_it_came_out_alike() -> None:
    fleet = make_fleet(5)
    job = run_job(fleet, steps=8)
    kill_replica(fleet, job, 1)
    reconcile_job(job.id)
    incident = resolved(job)
    assert certify(incident)["repeated"] is None, "no attempt has begun in it"
    old = Attempt.objects.get(job=job)
    Attempt.objects.filter(pk=old.pk).update(state=AttemptState.ENDED, ended_at=ago(40.0))
    again = Attempt.objects.create(
        job=job, number=2, layout=old.layout, replicas=3, checkpoint_dir=old.checkpoint_dir, resume_step=5
    )
    Attempt.objects.filter(pk=again.pk).update(started_at=ago(39.0))
    for step, loss in ((5, 4.0), (6, 4.0 + 3e-7)):
        StepRecord.objects.create(job=job, attempt=2, step=step, epoch=9, at=ago(30.0), loss=loss)
    Incident.objects.filter(job=job).update(ended=course.mark(job, ago(20.0)))
    told = certify(Incident.objects.get(job=job))["repeated"]
    assert (told["first"], told["last"], told["steps"]) == (5, 7, 3)
    assert (told["again"], told["compared"]) == (2, 2)
    assert told["largest_difference"] == pytest.approx(3e-7)


def resolved_with_a_run(settings: Settings, tmp_path: Path) -> tuple[Job, Incident, Path]:
    """A recovered job that went on to step 6; its incident, and the folder of its undisturbed run."""
    settings.REFERENCE_RUNS, settings.REFERENCE_DIR = True, tmp_path
    fleet = make_fleet(5)
    job = run_job(fleet)
    kill_replica(fleet, job, 1)
    reconcile_job(job.id)
    go_on(fleet, job, first=2, until=6)
    incident = resolved(job)
    folder = tmp_path / "incidents" / incident.id
    folder.mkdir(parents=True)
    return job, incident, folder


@pytest.mark.parametrize(("trained", "told"), [(2, None), (5, True), (6, True)])
def test_a_reference_run_that_came_part_of_the_way_proves_that_part_and_says_so(
    trained: int, told: bool | None, settings: Settings, tmp_path: Path
) -> None:
    _, incident, folder = resolved_with_a_run(settings, tmp_path)
    losses = {"losses": [4.0] * (trained - 1) + [4.0 + 2e-6], "tolerance": 1e-5, "first_step": 0}
    (folder / "losses.json").write_text(json.dumps(losses))
    check = next(check for check in certify(incident)["checks"] if check["name"] == "loss_matches_reference")
    assert check["ok"] is told, check
    if told:
        assert (
            f"compared {trained} of 6 steps (0 to {trained - 1}) with an undisturbed run from step 0" in check["detail"]
        )
        assert "largest difference 2.0e-06" in check["detail"]
        assert "1e-05 for each step since the run began, at most 1e-03" in check["detail"]
    else:
        assert check["detail"] == "the undisturbed run ends at step 2, not beyond the recovery"


def test_a_run_that_has_begun_is_waited_for_however_far_the_job_has_come_since(
    settings: Settings, tmp_path: Path
) -> None:
    job, _, folder = resolved_with_a_run(settings, tmp_path)
    (folder / proof.RUNNING).touch()
    Job.objects.filter(pk=job.pk).update(committed_step=proof.MAX_STEPS_ALONE + 1)
    assert certify(Incident.objects.get(job=job))["state"] == "pending"


def test_a_recovery_with_more_steps_than_are_compared_has_lost_none_and_says_what_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(certificates, "MAX_STEPS", 3)
    fleet = make_fleet(5)
    job = run_job(fleet)
    kill_replica(fleet, job, 1)
    reconcile_job(job.id)
    go_on(fleet, job, first=2, until=12)
    incident = resolved(job)
    checks = {check["name"]: check for check in certify(incident)["checks"]}
    assert checks["no_step_lost"] == {
        "name": "no_step_lost", "ok": True, "detail": "steps 2 to 11 are all there", "value": 0, "limit": 0,
    }  # fmt: skip
    assert checks["sample_ledger_exact"]["detail"].endswith("in each of 3 steps; its first 7 steps are not compared")
    StepRecord.objects.filter(job=job, step=4).delete()
    untold = {check["name"]: check for check in certify(incident)["checks"]}["no_step_lost"]
    said = "no report of step 4 is there; the steps after it count it as committed"
    assert (untold["ok"], untold["detail"]) == (None, said)
    again = job.attempts.get(number=1)
    job.attempts.update(state=AttemptState.ENDED, ended_at=ago(30.0))
    again.pk, again.number, again.resume_step = None, 2, 5
    again.save()
    StepRecord.objects.filter(job=job, step__gt=4).update(attempt=2)
    lost = {check["name"]: check for check in certify(incident)["checks"]}["no_step_lost"]
    assert (lost["ok"], lost["detail"]) == (False, "step 4 was never committed")


def test_a_rank_whose_state_one_replica_alone_has_told_is_not_called_equal() -> None:
    fleet = make_fleet(5)
    job = run_job(fleet)
    kill_replica(fleet, job, 1)
    reconcile_job(job.id)
    go_on(fleet, job, first=2, until=6)
    incident = resolved(job)
    whole = {check["name"]: check for check in certify(incident)["checks"]}["state_hashes_equal"]
    assert whole["ok"] is True and "on all 2 ranks of each replica" in whole["detail"]
    for row in StepRecord.objects.filter(job=job):
        row.parameter_hashes["1"] = dict([next(iter(row.parameter_hashes["1"].items()))])
        row.save(update_fields=["parameter_hashes"])
    part = {check["name"]: check for check in certify(incident)["checks"]}["state_hashes_equal"]
    assert (part["ok"], part["detail"]) == (None, "no step after the recovery was reported by all 2 ranks of each")


def test_a_fault_that_was_found_many_steps_ago_begins_there_and_not_with_the_jobs_first_step() -> None:
    fleet = make_fleet(5)
    job = run_job(fleet)
    kill_replica(fleet, job, 1)
    reconcile_job(job.id)
    go_on(fleet, job, first=2, until=4)
    StepRecord.objects.filter(job=job).update(at=ago(200.0))
    for step in range(4, 130):
        StepRecord.objects.create(job=job, attempt=1, step=step, epoch=3, at=ago(150.0 - step))
    assert course.mark(job, ago(120.5))["step"] == 29
