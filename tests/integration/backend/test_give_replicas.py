"""An urgent job needs less than a whole job has: one replica leaves by a view, others train on, and it comes back."""

from datetime import timedelta

import msgspec
import pytest

from controlplane.access.rights import EVERYTHING
from controlplane.jobs.models import Attempt, Job, JobPace, Replica
from controlplane.jobs.services import cancel_job, submit_job
from controlplane.protocol import frames
from controlplane.protocol import spec as specs
from controlplane.recovery import capacity_view, queue_view
from controlplane.recovery.models import Decision, Incident, Request, Restart
from controlplane.recovery.reconcile import reconcile_job
from controlplane.runtime.clock import now
from tests.integration.backend.builders import (
    Fleet,
    commit_step,
    flush_all,
    install_all,
    live_ranks,
    make_fleet,
    ref_of,
    run_job,
)
from tests.integration.backend.conftest import job_spec
from tests.integration.backend.test_make_room import asked, state
from tests.integration.backend.test_preemption import job_of, leave, train
from tests.integration.backend.test_queue import submitted

pytestmark = pytest.mark.django_db(transaction=True)


def elastic(fleet: Fleet, *, min_replicas: int = 1) -> Job:
    """Two replicas on two nodes of two devices each, which train for an hour."""
    job = run_job(
        fleet,
        resources=specs.Resources(nodes=2, gpus_per_node=2, min_replicas=min_replicas),
        parallelism=specs.Parallelism(tp=1, pp=2),
    )
    for step in range(3):
        commit_step(fleet, job, step)
    Attempt.objects.filter(job=job).update(started_at=now() - timedelta(hours=1))
    return job_of(job)


def attempt_of(job: Job) -> Attempt:
    return Attempt.objects.get(job=job)


def states(job: Job) -> list[tuple[int, int, str]]:
    """Of each replica's newest life: index, incarnation, state."""
    rows = Replica.objects.filter(attempt__job=job).order_by("index", "incarnation")
    newest = {row.index: row for row in rows}
    return [(row.index, row.incarnation, row.state) for row in newest.values()]


def change_view(fleet: Fleet, job: Job, step: int) -> None:
    """The members of the newest view flush, install it and commit this step."""
    flush_all(fleet, job, committed=step)
    reconcile_job(job.id)
    install_all(fleet, job)
    commit_step(fleet, job, step)
    reconcile_job(job.id)


def ends(fleet: Fleet, job: Job, index: int) -> None:
    """The processes of this replica are proved gone."""
    for rank in live_ranks(job):
        if rank.replica.index == index:
            fleet.tell(rank.node.name, frames.RankExited(ref_of(rank), 15, None, True))


def test_one_replica_leaves_for_the_urgent_job_and_comes_back_when_that_has_ended() -> None:
    fleet = make_fleet(2)
    long = elastic(fleet)
    urgent = submitted("urgent", priority=900, nodes=1)
    reconcile_job(urgent.id)
    (request,) = Request.objects.filter(kind="preempt")
    assert (request.job_id, len(request.gives), request.urgent_id) == (long.id, 1, urgent.id)
    (named,) = queue_view.job_queue(job_of(urgent))["preempts"]
    assert (named["name"], named["asked"]) == (long.name, True)
    ((index, _),) = request.gives
    reconcile_job(long.id)
    assert (asked(), attempt_of(long).yielded) == ([(long.name, "taken")], 1)
    shown = capacity_view.capacity(EVERYTHING)
    (given,) = shown["yields"]
    assert (given["name"], given["devices"], given["trains_on"], given["to"]["name"]) == (long.name, 2, True, "urgent")
    JobPace.objects.all().delete()
    shown = capacity_view.capacity(EVERYTHING)
    assert (shown["ends_count"], shown["ends_unknown"]) == (1, 1), "what leaves, and nobody knows when the rest ends"
    change_view(fleet, long, 3)
    reconcile_job(long.id)
    ends(fleet, long, index)
    for job in (long, urgent):
        reconcile_job(job.id)
    assert (state(long), state(urgent), asked()) == ("running", "starting", [(long.name, "done")])
    assert (attempt_of(long).number, job_of(long).committed_step) == (1, 4), "the others train on"
    assert not Incident.objects.filter(job=long).exists()
    assert not Restart.objects.filter(job=long, charged=True).exists()
    train(fleet, urgent, 0)
    reconcile_job(long.id)
    assert states(long)[index][2] == "evicted", "there is no room to grow"
    cancel_job(urgent.id, reason="done", actor="ada")
    reconcile_job(urgent.id)
    leave(fleet, urgent)
    for job in (urgent, long):
        reconcile_job(job.id)
    grown = Decision.objects.get(job=long, rule="grow")
    assert grown.evidence["asked"] == 2
    assert (states(long)[index][1:], attempt_of(long).yielded) == ((2, "forming"), 0)
    assert attempt_of(long).grown_at is not None
    assert not Restart.objects.filter(job=long, charged=True).exists(), "growth is charged to nothing"


def test_below_its_least_no_replica_leaves_and_the_whole_job_yields() -> None:
    fleet = make_fleet(2)
    long = elastic(fleet, min_replicas=2)
    urgent = submitted("urgent", priority=900, nodes=1)
    reconcile_job(urgent.id)
    assert Request.objects.get(kind="preempt").gives == []
    assert asked() == [(long.name, "open")]


def test_cancelled_before_the_view_the_urgent_job_takes_nothing() -> None:
    fleet = make_fleet(2)
    long = elastic(fleet)
    urgent = submitted("urgent", priority=900, nodes=1)
    reconcile_job(urgent.id)
    cancel_job(urgent.id, reason="not needed", actor="ada")
    reconcile_job(urgent.id)
    reconcile_job(long.id)
    assert (asked(), attempt_of(long).yielded) == ([(long.name, "withdrawn")], 0)
    assert not Replica.objects.filter(attempt__job=long).exclude(ordered_out="").exists()


def test_a_job_that_took_a_replica_back_a_short_time_ago_is_left_alone() -> None:
    fleet = make_fleet(2)
    long = elastic(fleet)
    Attempt.objects.filter(job=long).update(grown_at=now() - timedelta(seconds=60))
    urgent = submitted("urgent", priority=900, nodes=1)
    reconcile_job(urgent.id)
    assert asked() == []
    assert "began less than" in queue_view.job_queue(job_of(urgent))["spared"][0]["why"]


def test_while_it_waits_for_room_to_grow_it_looks_again_by_its_own_timer() -> None:
    fleet = make_fleet(2)
    long = elastic(fleet)
    Attempt.objects.filter(job=long).update(yielded=1)
    reconcile_job(long.id)
    assert job_of(long).due_at is not None


def test_an_elastic_job_starts_with_one_replica_and_takes_the_other_when_there_is_room() -> None:
    fleet = make_fleet(2)
    first = submitted("first", nodes=1)
    reconcile_job(first.id)
    train(fleet, first, 0)
    spec = job_spec(
        resources=specs.Resources(nodes=2, gpus_per_node=2),
        parallelism=specs.Parallelism(tp=1, pp=2),
        scheduling=specs.Scheduling(elastic=True),
    )
    named = msgspec.structs.replace(spec, metadata=specs.Metadata(name="elastic"))
    job = submit_job(named, owner="ada", actor="ada")
    reconcile_job(job.id)
    attempt = attempt_of(job)
    assert (attempt.replicas, attempt.yielded, attempt.max_contributors) == (2, 1, 2)
    train(fleet, job, 0)
    reconcile_job(job.id)
    assert (state(job), attempt_of(job).yielded) == ("running", 1), "there is no room"
    cancel_job(first.id, reason="done", actor="ada")
    reconcile_job(first.id)
    leave(fleet, first)
    reconcile_job(job.id)
    assert (states(job), attempt_of(job).yielded) == ([(0, 1, "active"), (1, 1, "forming")], 0)
