"""A job yields its devices: it saves first, waits without them, and continues where it stopped."""

from datetime import timedelta

import pytest

from controlplane.checkpoints.models import Checkpoint
from controlplane.dispatch.models import Command
from controlplane.jobs.models import Attempt, Job, Rank
from controlplane.jobs.numbers import numbers_of
from controlplane.jobs.services import cancel_job
from controlplane.protocol import frames
from controlplane.protocol import spec as specs
from controlplane.protocol.rank import CheckpointReport
from controlplane.recovery import gauges, project_use, requests
from controlplane.recovery.models import Decision, Incident, Request, Restart
from controlplane.recovery.reconcile import reconcile_job
from controlplane.recovery.selectors import waits_for
from controlplane.runtime import metrics
from controlplane.runtime.errors import Conflict
from tests.integration.backend.builders import (
    Fleet,
    commit_step,
    flush_all,
    install_all,
    join_all,
    kill_rank,
    live_ranks,
    make_fleet,
    ref_of,
    run_job,
)

pytestmark = pytest.mark.django_db(transaction=True)
ADA = "user:ada"
TWO = {"resources": specs.Resources(nodes=2, gpus_per_node=2), "parallelism": specs.Parallelism(tp=1, pp=2)}


def fresh(row: Request) -> Request:
    return Request.objects.get(pk=row.pk)


def job_of(job: Job) -> Job:
    return Job.objects.get(pk=job.pk)


def save(fleet: Fleet, job: Job, step: int) -> None:
    """A checkpoint of this step is committed, and one of its ranks reports it."""
    rank = live_ranks(job)[0]
    path = f"{rank.replica.attempt.checkpoint_dir}/step_{step}"
    said = CheckpointReport(step, path, "complete", "emergency", job_of(job).epoch, digest="d")
    fleet.tell(rank.node.name, frames.RankSaid(ref_of(rank), said))


def leave(fleet: Fleet, job: Job) -> None:
    """Its ranks end as they were commanded to."""
    rows = list(Rank.objects.filter(replica__attempt__job=job, released_at=None).select_related("node", "replica"))
    fleet.tell_all((row.node.name, frames.RankExited(ref_of(row), 15, None, True)) for row in rows)


def train(fleet: Fleet, job: Job, step: int) -> None:
    """Its newest attempt joins, has a view and commits this step."""
    join_all(fleet, job)
    reconcile_job(job.id)
    flush_all(fleet, job, committed=step)
    reconcile_job(job.id)
    install_all(fleet, job)
    commit_step(fleet, job, step)
    reconcile_job(job.id)


def grace_is_over(request: Request) -> None:
    """It was begun an hour ago."""
    row = fresh(request)
    assert row.taken_at is not None
    Checkpoint.objects.update(committed_at=row.taken_at - timedelta(hours=2))
    Request.objects.filter(pk=row.pk).update(taken_at=row.taken_at - timedelta(hours=1))


def test_a_person_has_a_job_save_yield_its_devices_and_resume_where_it_stopped() -> None:
    fleet = make_fleet(3)
    job = run_job(fleet, steps=5, **TWO)
    request = requests.preempt(job, reason="demo at noon", actor=ADA)
    reconcile_job(job.id)
    assert (job_of(job).state, fresh(request).state) == ("running", "taken")
    assert Command.objects.filter(job=job, kind="request_save").exists()
    assert not Command.objects.filter(job=job, kind="stop_ranks").exists(), "nothing ends before it is saved"
    save(fleet, job, 5)
    reconcile_job(job.id)
    done = fresh(request)
    assert (job_of(job).state, done.state) == ("preempted", "done")
    decision = Decision.objects.get(job=job, choice="preempt")
    assert decision.evidence["lost_steps"] == 0 and decision.evidence["resumes_at_step"] == 5
    assert "the step in hand is trained again, no other is lost" in decision.sentence
    assert "demo at noon" in decision.sentence
    leave(fleet, job)
    reconcile_job(job.id)
    assert Attempt.objects.get(job=job).state == "ended"
    assert not Rank.objects.filter(released_at=None).exists() and not Incident.objects.exists()
    assert (job_of(job).state, "holdfast job resume" in waits_for(job_of(job))) == ("preempted", True)
    gauges.refresh()
    exported = metrics.FLEET.get_sample_value("holdfast_checkpoint_age_seconds", {"job_id": job.id})
    waits = project_use.use_of_projects()[job.project]
    assert (exported, waits.waiting_jobs, waits.waiting_gpus) == (None, 0, 0), "a person's pause is no alarm, no demand"
    again = requests.resume(job_of(job), reason="demo is over", actor=ADA)
    reconcile_job(job.id)
    assert (job_of(job).state, fresh(again).state, job_of(job).parked_by) == ("resuming", "done", "")
    attempt = Attempt.objects.get(job=job, number=2)
    assert attempt.resume_step == 5 and attempt.resume_path.endswith("step_5")
    train(fleet, job, 5)
    assert (job_of(job).state, job_of(job).committed_step) == ("running", 6)
    assert not Restart.objects.filter(job=job, charged=True).exists(), "the restart budget pays for none of it"


def test_what_is_saved_already_is_not_saved_again() -> None:
    fleet = make_fleet(3)
    job = run_job(fleet, steps=5, **TWO)
    save(fleet, job, 5)
    requests.preempt(job, reason="r", actor=ADA)
    reconcile_job(job.id)
    assert job_of(job).state == "preempted"
    assert not Command.objects.filter(job=job, kind="request_save").exists()


def test_steps_committed_since_the_save_are_saved_as_the_ranks_leave() -> None:
    fleet = make_fleet(3)
    job = run_job(fleet, steps=5, **TWO)
    requests.preempt(job, reason="r", actor=ADA)
    reconcile_job(job.id)
    commit_step(fleet, job, 5)
    save(fleet, job, 5)
    reconcile_job(job.id)
    stop = Command.objects.filter(job=job, kind="stop_ranks").first()
    assert stop is not None and stop.body["grace_s"] >= 60.0
    assert "1 newer step as they leave" in Decision.objects.get(job=job, choice="preempt").sentence
    save(fleet, job, 6)
    requests.resume(job_of(job), reason="r", actor=ADA)
    reconcile_job(job.id)
    assert job_of(job).state == "preempted", "the next attempt would fence ranks that still save"
    leave(fleet, job)
    reconcile_job(job.id)
    assert Attempt.objects.get(job=job, number=2).resume_step == 6


def test_a_save_that_does_not_come_within_the_grace_ends_the_attempt_all_the_same() -> None:
    fleet = make_fleet(3)
    job = run_job(fleet, steps=5, **TWO)
    save(fleet, job, 2)
    request = requests.preempt(job, reason="r", actor=ADA)
    reconcile_job(job.id)
    reconcile_job(job.id)
    assert job_of(job).state == "running"
    grace_is_over(request)
    reconcile_job(job.id)
    assert (job_of(job).state, fresh(request).state) == ("preempted", "done")
    decision = Decision.objects.get(job=job, choice="preempt")
    assert decision.evidence["lost_steps"] == 3
    assert "3 steps since the checkpoint of step 2 are lost" in decision.sentence
    assert decision.cost_gpu_s is not None and decision.cost_gpu_s > 0.0


def test_a_save_that_the_agents_refuse_is_not_waited_for() -> None:
    fleet = make_fleet(3)
    job = run_job(fleet, steps=5, **TWO)
    requests.preempt(job, reason="r", actor=ADA)
    reconcile_job(job.id)
    for command in Command.objects.filter(job=job, kind="request_save").select_related("node"):
        fleet.tell(command.node.name, frames.CommandAnswer(command.pk, "failed", "the disk is full"))
    reconcile_job(job.id)
    assert job_of(job).state == "preempted"
    assert "the disk is full" in Decision.objects.get(job=job, choice="preempt").sentence


def test_when_nobody_is_left_who_could_save_the_attempt_ends_at_once() -> None:
    fleet = make_fleet(2)
    job = run_job(fleet, steps=5, **TWO)
    save(fleet, job, 2)
    requests.preempt(job, reason="r", actor=ADA)
    reconcile_job(job.id)
    for row in live_ranks(job):
        kill_rank(fleet, row)
    reconcile_job(job.id)
    assert job_of(job).state == "preempted", "a restart would take its devices again"
    assert "Nobody is left who could save" in Decision.objects.get(job=job, choice="preempt").sentence
    assert Incident.objects.filter(job=job).count() == 1, "what ended its ranks is a fault all the same"


def test_a_preemption_is_withdrawn_before_the_attempt_ends_and_the_job_trains_on() -> None:
    fleet = make_fleet(3)
    job = run_job(fleet, steps=5, **TWO)
    request = requests.preempt(job, reason="r", actor=ADA)
    reconcile_job(job.id)
    requests.withdraw(fresh(request), reason="not today", actor=ADA)
    reconcile_job(job.id)
    save(fleet, job, 5)
    reconcile_job(job.id)
    assert (job_of(job).state, fresh(request).state) == ("running", "withdrawn")
    assert not Command.objects.filter(job=job, kind="stop_ranks").exists()


@pytest.mark.parametrize("gone", [False, True])
def test_a_preempted_job_is_cancelled_while_its_ranks_leave_or_while_it_waits(gone: bool) -> None:
    fleet = make_fleet(3)
    job = run_job(fleet, steps=5, **TWO)
    save(fleet, job, 5)
    requests.preempt(job, reason="r", actor=ADA)
    reconcile_job(job.id)
    if gone:
        leave(fleet, job)
        reconcile_job(job.id)
    cancel_job(job.id, reason="enough", actor=ADA)
    reconcile_job(job.id)
    assert job_of(job).state == "cancelled"


def test_only_a_job_with_devices_is_preempted_and_only_one_that_a_person_parked_resumed() -> None:
    fleet = make_fleet(3)
    job = run_job(fleet, steps=5, **TWO)
    with pytest.raises(Conflict, match="only a preempted job can be resumed"):
        requests.resume(job, reason="r", actor=ADA)
    save(fleet, job, 5)
    requests.preempt(job, reason="r", actor=ADA)
    reconcile_job(job.id)
    with pytest.raises(Conflict, match="is preempted already"):
        requests.preempt(job_of(job), reason="r", actor=ADA)
    assert Checkpoint.objects.filter(job=job).count() == 1


def test_an_attempt_that_resumes_a_preempted_job_is_no_restart_and_the_preemption_is_counted() -> None:
    fleet = make_fleet(3)
    job = run_job(fleet, steps=5, **TWO)
    counted = lambda: (numbers_of(job_of(job)).restarts, numbers_of(job_of(job)).preemptions)  # noqa: E731
    assert counted() == (0, 0)
    save(fleet, job, 5)
    requests.preempt(job, reason="r", actor=ADA)
    reconcile_job(job.id)
    leave(fleet, job)
    reconcile_job(job.id)
    assert counted() == (0, 1)
    requests.resume(job_of(job), reason="r", actor=ADA)
    reconcile_job(job.id)
    train(fleet, job, 5)
    assert counted() == (0, 1)
    for row in live_ranks(job):
        kill_rank(fleet, row)
    reconcile_job(job.id)
    assert counted() == (1, 1), "everybody failed: what follows is a restart"
