"""A start that its node holds to be void is no start: the slot does not stand empty until its time is over. One whose
replica is stopped before it was received is never sent."""

import pytest

from controlplane.changes import outbox
from controlplane.dispatch import services as dispatch
from controlplane.dispatch.models import Command
from controlplane.fleet.models import Node
from controlplane.jobs.models import Rank
from controlplane.jobs.services import cancel_job
from controlplane.protocol import frames
from controlplane.protocol.commands import StartRanks, StopRanks, WarmHost
from controlplane.protocol.states import CommandState
from controlplane.recovery import ingest
from controlplane.recovery.models import Signal
from controlplane.recovery.reconcile import reconcile_job
from controlplane.runtime.clock import after, now
from controlplane.runtime.models import Event
from tests.integration.backend.builders import bodies, hello, job_that_lost_a_rank, make_fleet, make_job

pytestmark = pytest.mark.django_db(transaction=True)
VOID = "incarnation 2 of replica 0 was started here before"


def test_a_start_that_is_void_to_its_node_and_wanted_here_is_followed_by_another() -> None:
    fleet, job = job_that_lost_a_rank()
    first, body = bodies(job, "start_ranks")[-1]
    assert isinstance(body, StartRanks)
    fleet.tell(first.node.name, frames.CommandAnswer(first.id, "superseded", VOID))
    reconcile_job(job.id)
    again, newer = bodies(job, "start_ranks")[-1]
    assert isinstance(newer, StartRanks) and again.id != first.id
    assert (newer.launch.replica, newer.launch.incarnation) == (body.launch.replica, body.launch.incarnation + 1)


def test_one_that_a_newer_start_has_replaced_says_nothing_about_the_newer_one() -> None:
    fleet, job = job_that_lost_a_rank()
    first, _ = bodies(job, "start_ranks")[-1]
    fleet.tell(first.node.name, frames.CommandAnswer(first.id, "failed", "no memory"))
    reconcile_job(job.id)
    second, _ = bodies(job, "start_ranks")[-1]
    old = bodies(job, "start_ranks")[0][0]
    type(old).objects.filter(pk=old.pk).update(state="delivered", finished_at=None)
    fleet.tell(old.node.name, frames.CommandAnswer(old.pk, "superseded", "a newer start replaced it"))
    reconcile_job(job.id)
    assert bodies(job, "start_ranks")[-1][0].id == second.id
    assert not Signal.objects.filter(job=job, settled_at=None).exists()


def test_a_start_that_nobody_has_received_is_void_when_its_attempt_is_stopped() -> None:
    make_fleet()
    job = make_job()
    reconcile_job(job.id)
    cancel_job(job.id, reason="drill", actor="ada")
    reconcile_job(job.id)
    waiting = Command.objects.filter(job=job, state="queued").values_list("kind", flat=True)
    assert sorted(waiting) == ["stop_ranks"] * 3 + ["warm_host"]
    assert {(row.state, row.detail) for row, _ in bodies(job, "start_ranks")} == {
        ("superseded", "what it starts is stopped")
    }
    nodes = list(Node.objects.values_list("id", flat=True))
    assert "start_ranks" not in {row.kind for row in dispatch.deliverable(nodes)}
    told = Event.objects.filter(kind="command.superseded", job_id=job.id).get()
    assert told.sentence == "Older commands are void, what it starts is stopped (3 nodes)."


def test_a_stop_of_one_replica_voids_its_own_start_alone() -> None:
    make_fleet()
    job = make_job()
    reconcile_job(job.id)
    mine, *others = bodies(job, "start_ranks")
    launch = mine[1].launch
    body = StopRanks(
        job_id=job.id, attempt=launch.attempt, replica=launch.replica, incarnation=launch.incarnation, grace_s=0.0,
        reason="drill",
    )  # fmt: skip
    nodes = [row.node_id for row, _ in bodies(job, "start_ranks")]
    for decision_id, state in (("", "queued"), ("dec_1", "superseded")):
        dispatch.enqueue_all(body, node_ids=nodes, job_id=job.id, epoch=1, decision_id=decision_id)
        assert Command.objects.get(pk=mine[0].pk).state == state, "what a node claims to run takes no start back"
    assert {Command.objects.get(pk=row.pk).state for row, _ in others} == {"queued"}


def test_a_start_that_was_under_way_when_the_machine_went_down_is_over_at_its_hello() -> None:
    fleet = make_fleet()
    job = make_job()
    reconcile_job(job.id)
    first, body = bodies(job, "start_ranks")[0]
    name, launch = first.node.name, body.launch
    fleet.tell(name, frames.CommandAnswer(first.id, "acknowledged"))
    ingest.open_session(first.node_id, "web.again", hello(name, journal="another"))
    assert Command.objects.get(pk=first.pk).state == "acknowledged", "its agent alone began again, and may answer"
    ingest.open_session(first.node_id, "web.booted", hello(name, boot="another", journal="third"))
    assert Command.objects.get(pk=first.pk).state == "failed"
    assert Signal.objects.get(job=job, settled_at=None).key == f"start_failed:{first.id}"
    mine = Rank.objects.filter(replica__index=launch.replica, replica__incarnation=launch.incarnation)
    assert {rank.state for rank in mine} == {"exited"}


def test_a_host_that_was_being_warmed_when_the_machine_went_down_is_over_at_its_hello() -> None:
    node = make_fleet().nodes["n4"]
    job = make_job()
    reconcile_job(job.id)
    assert not Rank.objects.filter(node=node), "no word of it names the job"
    body = WarmHost(job_id=job.id, attempt=1, user="ada")
    order = dispatch.enqueue(body, node_id=node.id, job_id=job.id, epoch=1, decision_id="dec_x")
    mine = Command.objects.filter(pk=order.pk)
    mine.update(state=CommandState.ACKNOWLEDGED)
    ingest.open_session(node.id, "web.again", hello("n4", journal="another"))
    assert mine.get().state == "acknowledged"
    ingest.open_session(node.id, "web.booted", hello("n4", boot="another", journal="third"))
    assert mine.get().state == "failed"


@pytest.mark.parametrize("state", CommandState)
@pytest.mark.parametrize("again_s", [-1.0, 1.0])
def test_the_outbox_reads_what_its_table_says_is_sent_now(state: CommandState, again_s: float) -> None:
    fleet = make_fleet(1)
    node = fleet.nodes["n1"].id
    row = dispatch.enqueue(WarmHost(job_id="job_x", attempt=1), node_id=node)
    Command.objects.filter(pk=row.pk).update(state=state, send_due_at=after(again_s))
    now_s, due_s = now().timestamp(), row.due_at.timestamp()
    wanted = outbox.is_sent_now(state, now_s + again_s, due_s, now_s)
    assert [each.pk for each in dispatch.deliverable([node])] == [row.pk] * wanted
