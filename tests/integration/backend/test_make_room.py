"""An urgent job on a full fleet: who loses the least saves and yields, and resumes with nothing lost."""

from datetime import timedelta
from pathlib import Path

import pytest

from controlplane.jobs.models import Attempt, Job, JobPace, Rank
from controlplane.jobs.services import cancel_job, submit_job
from controlplane.protocol.spec_lint import lint
from controlplane.protocol.spec_text import parse_yaml
from controlplane.recovery import load_queue, queue_view, requests
from controlplane.recovery.models import Decision, Request, Restart, ViewRow
from controlplane.recovery.reconcile import reconcile_job
from controlplane.runtime.clock import now
from tests.integration.backend.builders import (
    Fleet,
    commit_step,
    flush_all,
    install_all,
    join_all,
    kill_rank,
    live_ranks,
    make_fleet,
)
from tests.integration.backend.test_preemption import job_of, leave, save, train
from tests.integration.backend.test_queue import submitted

pytestmark = pytest.mark.django_db(transaction=True)
STEP_S, START_S = 2.0, 10.0
EXAMPLES = Path(__file__).parents[3] / "examples"


def runs(fleet: Fleet, name: str, *, priority: int = 500, steps: int = 5, preemptible: bool = True) -> Job:
    """A job of one node that has trained for an hour, at STEP_S a step; START_S after it was placed all had joined."""
    job = submitted(name, priority=priority, nodes=1)
    spec = {**job.spec, "spec": {**job.spec["spec"]}}
    spec["spec"]["scheduling"] |= {"preemptible": preemptible}
    Job.objects.filter(pk=job.pk).update(spec=spec)
    reconcile_job(job.id)
    join_all(fleet, job)
    reconcile_job(job.id)
    flush_all(fleet, job)
    reconcile_job(job.id)
    install_all(fleet, job)
    for step in range(steps):
        commit_step(fleet, job, step)
    began = now() - timedelta(hours=1)
    Attempt.objects.filter(job=job).update(started_at=began)
    ViewRow.objects.filter(job=job).update(announced_at=began + timedelta(seconds=START_S))
    row = JobPace.objects.get(job=job)
    row.pace |= {"recent": [STEP_S] * 3}
    row.save()
    return job_of(job)


def state(job: Job) -> str:
    return job_of(job).state


def asked() -> list[tuple[str, str]]:
    """Who is asked to yield, and how far that has come."""
    return list(Request.objects.filter(kind="preempt").order_by("id").values_list("job__name", "state"))


def two_on_a_full_fleet() -> tuple[Fleet, Job, Job]:
    """`fresh` has just saved, `stale` never has."""
    fleet = make_fleet(2)
    stale, fresh = runs(fleet, "stale"), runs(fleet, "fresh")
    save(fleet, fresh, 5)
    return fleet, stale, fresh


def test_the_job_that_just_saved_yields_and_resumes_at_its_step_when_the_urgent_one_has_ended() -> None:
    fleet, stale, fresh = two_on_a_full_fleet()
    commit_step(fleet, fresh, 5)
    urgent = submitted("urgent", priority=900, nodes=1)
    reconcile_job(urgent.id)
    assert asked() == [("fresh", "open")]
    made = Decision.objects.get(job=urgent, rule="make_room")
    assert made.cost_gpu_s == pytest.approx(2 * (STEP_S + START_S)), "one step on two devices, and a start"
    assert "fresh (priority 500)" in made.sentence
    reconcile_job(urgent.id)
    assert Request.objects.filter(kind="preempt").count() == 1, "asked once"
    reconcile_job(fresh.id)
    assert (state(fresh), asked()) == ("running", [("fresh", "taken")])
    save(fleet, fresh, 6)
    reconcile_job(fresh.id)
    assert (state(fresh), state(urgent)) == ("preempted", "pending")
    ended = Decision.objects.get(job=fresh, choice="preempt")
    assert "urgent needs its devices" in ended.sentence and ended.evidence["lost_steps"] == 0
    assert ended.evidence["expected_gpu_s"] == made.cost_gpu_s
    leave(fleet, fresh)
    for job in (fresh, urgent, fresh):
        reconcile_job(job.id)
    assert (state(fresh), state(urgent), state(stale)) == ("preempted", "starting", "running")
    train(fleet, urgent, 0)
    assert state(urgent) == "running"
    cancel_job(urgent.id, reason="done", actor="ada")
    reconcile_job(urgent.id)
    leave(fleet, urgent)
    for job in (urgent, fresh):
        reconcile_job(job.id)
    attempt = Attempt.objects.get(job=fresh, number=2)
    assert (state(fresh), attempt.resume_step) == ("resuming", 6)
    train(fleet, fresh, 6)
    assert (state(fresh), job_of(fresh).committed_step) == ("running", 7)
    assert not Restart.objects.filter(job=fresh, charged=True).exists()


def test_the_page_of_each_shows_the_price() -> None:
    _, _, fresh = two_on_a_full_fleet()
    urgent = submitted("urgent", priority=900, nodes=1)
    (named,) = queue_view.job_queue(job_of(urgent))["preempts"]
    assert (named["name"], named["asked"], named["devices"]) == ("fresh", False, 2) and named["lost_gpu_s"] > 0.0
    reconcile_job(urgent.id)
    (saves,) = queue_view.job_queue(job_of(urgent))["preempts"]
    assert (saves["name"], saves["asked"], saves["lost_gpu_s"]) == ("fresh", True, named["lost_gpu_s"])
    assert Request.objects.get(job=fresh).urgent_id == urgent.id


def test_cancelled_during_the_grace_the_urgent_job_lets_its_victim_train_on() -> None:
    fleet, stale, fresh = two_on_a_full_fleet()
    commit_step(fleet, fresh, 5)
    urgent = submitted("urgent", priority=900, nodes=1)
    reconcile_job(urgent.id)
    reconcile_job(fresh.id)
    cancel_job(urgent.id, reason="not needed", actor="ada")
    reconcile_job(urgent.id)
    save(fleet, fresh, 6)
    reconcile_job(fresh.id)
    assert (state(fresh), state(stale), asked()) == ("running", "running", [("fresh", "withdrawn")])
    again = submitted("again", priority=900, nodes=1)
    reconcile_job(again.id)
    assert asked()[1:] == [("stale", "open")], "the one that was asked a moment ago is left alone"


def test_a_victim_whose_rank_dies_during_its_grace_yields_at_once_and_says_what_is_lost() -> None:
    fleet, _, fresh = two_on_a_full_fleet()
    commit_step(fleet, fresh, 5)
    urgent = submitted("urgent", priority=900, nodes=1)
    reconcile_job(urgent.id)
    reconcile_job(fresh.id)
    kill_rank(fleet, live_ranks(fresh)[0])
    reconcile_job(fresh.id)
    assert state(fresh) == "preempted"
    assert "1 step since the checkpoint of step 5 is lost" in Decision.objects.get(job=fresh, choice="preempt").sentence
    leave(fleet, fresh)
    for job in (fresh, urgent):
        reconcile_job(job.id)
    assert state(urgent) == "starting"


def test_of_equal_or_higher_priority_nobody_yields() -> None:
    fleet = make_fleet(2)
    runs(fleet, "equal", priority=900)
    runs(fleet, "higher", priority=950)
    urgent = submitted("urgent", priority=900, nodes=1)
    reconcile_job(urgent.id)
    assert asked() == []


def test_a_job_that_is_not_preemptible_keeps_its_devices() -> None:
    fleet = make_fleet(1)
    runs(fleet, "fixed", preemptible=False)
    urgent = submitted("urgent", priority=900, nodes=1)
    reconcile_job(urgent.id)
    assert asked() == []


def test_a_job_that_began_or_came_back_a_short_time_ago_is_left_alone() -> None:
    fleet = make_fleet(1)
    young = runs(fleet, "young")
    urgent = submitted("urgent", priority=900, nodes=1)
    attempts = Attempt.objects.filter(job=young)
    attempts.update(started_at=now() - timedelta(seconds=load_queue.config().preempt_min_runtime_s - 60.0))
    reconcile_job(urgent.id)
    assert asked() == []
    attempts.update(started_at=now() - timedelta(seconds=load_queue.config().preempt_min_runtime_s + 60.0))
    row = requests.preempt(young, reason="r", actor="user:ada")
    Request.objects.filter(pk=row.pk).update(state="done", ended_at=now() - timedelta(hours=1))
    reconcile_job(urgent.id)
    assert len(asked()) == 1, "it came back from a preemption, and trains for minutes since"
    attempts.update(started_at=now() - timedelta(seconds=load_queue.config().preempt_again_s + 60.0))
    Request.objects.filter(pk=row.pk).update(ended_at=now() - timedelta(hours=2))
    reconcile_job(urgent.id)
    assert len(asked()) == 2


def test_where_even_all_of_them_make_no_room_nobody_yields() -> None:
    fleet = make_fleet(3)
    runs(fleet, "a")
    runs(fleet, "fixed", preemptible=False)
    runs(fleet, "c")
    urgent = submitted("urgent", priority=900, nodes=3)
    reconcile_job(urgent.id)
    assert asked() == []


def test_the_example_of_a_high_priority_gets_the_devices_of_a_job_that_has_less() -> None:
    fleet = make_fleet(1)
    victim = runs(fleet, "victim")
    save(fleet, victim, 5)
    linted = lint(parse_yaml((EXAMPLES / "high-priority.yaml").read_bytes()))
    assert linted.spec is not None, linted.faults
    urgent = submit_job(linted.spec, owner="ada", actor="ada")
    for job in (urgent, victim):
        reconcile_job(job.id)
    leave(fleet, victim)
    for job in (victim, urgent):
        reconcile_job(job.id)
    assert (state(victim), state(urgent)) == ("preempted", "starting")
    assert Rank.objects.filter(replica__attempt__job=urgent, released_at=None).exists()
