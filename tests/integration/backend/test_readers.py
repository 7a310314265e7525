"""Whoever has the bytes reads a checkpoint back: a node that wrote it first, this machine last."""

import hashlib
import json
import shutil
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from django.conf import settings

from controlplane.checkpoints.models import Checkpoint
from controlplane.dispatch.models import Command
from controlplane.fleet.models import Node
from controlplane.jobs.models import Job
from controlplane.protocol import frames
from controlplane.protocol import spec as specs
from controlplane.protocol.commands import Body
from controlplane.protocol.rank import CheckpointReport
from controlplane.recovery import ingest
from controlplane.recovery.models import DeadLetter
from controlplane.recovery.reconcile import reconcile_job
from controlplane.recovery.sweep import expire_commands, verify_due
from controlplane.runtime.clock import ago, now
from controlplane.runtime.models import Event
from tests.integration.backend.builders import Fleet, hello, live_ranks, make_fleet, ref_of, run_job

pytestmark = pytest.mark.django_db(transaction=True)
SOUND = {"ok": True, "detail": "2 files read back equal", "absent": False}
UNSEEN = {"ok": None, "detail": "it is not visible from here", "absent": False}
HARMED = {"ok": False, "detail": "shard has another digest than was committed", "absent": False}
MISSING = {"ok": False, "detail": "shard is missing", "absent": True}


def commit(fleet: Fleet, job: Job, step: int, *, bytes_: int = 4, by: int = 0, oldest: int = 0) -> Checkpoint:
    """A save that rank number `by` of the job told of, on a file system that all see."""
    path = Path(job.attempts.order_by("number").first().checkpoint_dir) / f"step_{step}"
    path.mkdir(parents=True)
    (path / "shard").write_bytes(b"good")
    digest = hashlib.blake2b(b"good", digest_size=16).hexdigest()
    marker = {"job_id": job.id, "step": step, "epoch": 2, "files": [{"name": "shard", "bytes": 4, "blake2b": digest}]}
    (path / "COMMITTED.json").write_text(json.dumps(marker))
    row = live_ranks(job)[by]
    said = CheckpointReport(
        step, str(path), "complete", "scheduled", 2, bytes=bytes_, digest="d", oldest_kept=(2, oldest)
    )
    fleet.tell(row.node.name, frames.RankSaid(ref_of(row), said))
    return job.checkpoints.get(step=step)


def look(row: Checkpoint) -> Checkpoint:
    """The sweep comes by."""
    Checkpoint.objects.filter(pk=row.pk, verify_due_at__isnull=False).update(verify_due_at=now())
    verify_due()
    return Checkpoint.objects.get(pk=row.pk)


def orders(kind: str = "verify_checkpoint") -> list[Command]:
    return list(Command.objects.filter(kind=kind).select_related("node").order_by("id"))


def answer(fleet: Fleet, order: Command, state: str, *, detail: str = "", data: object = None) -> None:
    said = frames.CommandAnswer(order.id, state, detail, "" if data is None else json.dumps(data))
    fleet.tell(order.node.name, said)


def told(row: Checkpoint, kind: str) -> int:
    return Event.objects.filter(entity_id=row.id, kind=f"checkpoint.{kind}").count()


def this_machine_has_read(row: Checkpoint) -> bool:
    return (Path(settings.REFERENCE_DIR) / "examinations" / row.id).exists()


def silent_for(row: Checkpoint, seconds: float) -> Checkpoint:
    Checkpoint.objects.filter(pk=row.pk).update(heard_at=ago(seconds))
    return look(row)


def look_until_settled(row: Checkpoint) -> Checkpoint:
    """This machine looks too, by a process of its own."""
    for _ in range(2000):
        row = look(row)
        if row.round_at is None:
            return row
    raise AssertionError(row.state_reason)


def world(**changes: object) -> tuple[Fleet, Job]:
    fleet = make_fleet()
    return fleet, run_job(fleet, **changes)


def test_the_node_whose_rank_wrote_it_reads_it_and_this_machine_does_not() -> None:
    fleet, job = world()
    row = look(commit(fleet, job, 7, bytes_=85_000_000_000, by=2))
    (order,) = orders()
    assert order.node == live_ranks(job)[2].node
    assert order.body["path"] == row.path
    assert {key: order.body[key] for key in ("job_id", "step", "epoch", "user")} == {
        "job_id": job.id, "step": 7, "epoch": 2, "user": "ada",
    }  # fmt: skip
    assert order.body["limit_s"] == 300 + 8500, "85 GB may take their time"
    assert bytes(order.signature)
    assert look(row).reader == order.id
    assert len(orders()) == 1, "asked once"
    answer(fleet, order, "acknowledged")
    answer(fleet, order, "succeeded", data=SOUND)
    row = Checkpoint.objects.get(pk=row.pk)
    assert (row.state, row.verify_due_at, row.reader, row.round_at) == ("verified", None, "", None)
    assert row.state_reason == f"2 files read back equal, on node {order.node.name}"
    assert not this_machine_has_read(row)


def test_a_fault_that_a_node_has_found_takes_it_off_the_ladder_and_is_named() -> None:
    fleet, job = world()
    row = look(commit(fleet, job, 7))
    answer(fleet, orders()[0], "succeeded", data=HARMED)
    row = Checkpoint.objects.get(pk=row.pk)
    assert (row.state, row.verify_due_at) == ("corrupt", None)
    assert row.state_reason.startswith("shard has another digest than was committed, on node n")


def test_nobody_who_is_connected_has_the_bytes_and_that_is_said() -> None:
    """Each node once, three at most, then this machine; nothing is burnt."""
    fleet, job = world()
    row = commit(fleet, job, 7)
    shutil.rmtree(row.path)
    asked = []
    while len(row_orders := orders()) == len(asked) and len(asked) < 4:
        row = look(row)
        if len(row_orders := orders()) == len(asked):
            break
        asked.append(row_orders[-1].node.name)
        answer(fleet, row_orders[-1], "succeeded", data=UNSEEN)
    row = look_until_settled(row)
    assert len(asked) == len(set(asked)) == 3
    assert (row.state, row.verify_due_at) == ("complete", None)
    assert row.state_reason.startswith("not verified: nobody who is connected has the bytes")
    assert all(f"node {name}: it is not visible from here" in row.state_reason for name in asked)
    assert "the control plane: " in row.state_reason


def test_a_holder_that_was_away_is_asked_when_it_is_back() -> None:
    fleet, job = world()
    row = commit(fleet, job, 7)
    kept = shutil.move(row.path, f"{row.path}.away")
    Node.objects.update(connected=False)
    row = look_until_settled(row)
    assert not orders()
    assert row.state_reason.startswith("not verified: nobody who is connected has the bytes")
    assert row.verify_due_at > now() + timedelta(seconds=60), "it is looked at again, later"
    shutil.move(kept, row.path)
    for name, node in fleet.nodes.items():
        ingest.open_session(node.id, f"web.{name}", hello(name))
    row = look(row)
    (order,) = orders()
    answer(fleet, order, "succeeded", data=SOUND)
    assert Checkpoint.objects.get(pk=row.pk).state == "verified"


def test_a_node_that_dies_over_it_is_replaced_and_what_it_says_later_changes_nothing() -> None:
    fleet, job = world()
    row = look(commit(fleet, job, 7))
    first = orders()[0]
    answer(fleet, first, "acknowledged")
    answer(fleet, first, "acknowledged", detail="1 bytes are read", data={"read_bytes": 1})
    row = silent_for(row, 80.0)
    assert (row.reader, len(orders())) == (first.id, 1), "it may only be slow"
    assert "1 bytes are read" in row.state_reason
    row = silent_for(row, 100.0)
    second = orders()[1]
    assert row.reader == second.id
    assert second.node != first.node
    assert [order.body["order"] for order in orders("end_verification")] == [first.id], "the first is called off"
    answer(fleet, first, "succeeded", data=HARMED)
    assert Checkpoint.objects.get(pk=row.pk).state == "complete"
    answer(fleet, second, "succeeded", data=SOUND)
    answer(fleet, second, "succeeded", data=SOUND)
    assert Checkpoint.objects.get(pk=row.pk).state == "verified"
    assert told(row, "verified") == 1, "the same verdict twice is one effect"


def test_an_agent_that_was_restarted_over_it_is_replaced_at_once() -> None:
    fleet, job = world()
    row = look(commit(fleet, job, 7))
    answer(fleet, orders()[0], "acknowledged")
    answer(fleet, orders()[0], "failed", detail="interrupted by a restart of the agent")
    assert look(row).reader == orders()[1].id
    assert orders()[1].node != orders()[0].node


def test_an_order_that_reached_nobody_is_replaced() -> None:
    fleet, job = world()
    row = look(commit(fleet, job, 7))
    Command.objects.filter(pk=orders()[0].pk).update(due_at=ago(1.0))
    expire_commands()
    assert look(row).reader == orders()[1].id


def test_one_that_takes_an_hour_to_read_is_read_to_its_end_and_a_restart_waits_for_none_of_it() -> None:
    fleet, job = world()
    row = look(commit(fleet, job, 7, bytes_=40_000_000_000))
    (order,) = orders()
    answer(fleet, order, "acknowledged")
    for minute in range(60):
        Command.objects.filter(pk=order.pk).update(due_at=now() + timedelta(seconds=5))
        said = {"read_bytes": minute * 600_000_000}
        answer(fleet, order, "acknowledged", detail=f"{said['read_bytes']} bytes are read", data=said)
        order.refresh_from_db()
        assert order.due_at > now() + timedelta(seconds=60), "an order at work does not expire"
        row = silent_for(row, 60.0)
        assert (row.reader, row.state) == (order.id, "complete")
    for rank in live_ranks(job):
        fleet.tell(rank.node.name, frames.RankExited(ref_of(rank), None, 9, False))
    reconcile_job(job.id)
    assert job.attempts.get(number=2).resume_step == 7
    assert len(orders()) == 1
    answer(fleet, order, "succeeded", data=SOUND)
    assert Checkpoint.objects.get(pk=row.pk).state == "verified"


def test_what_retention_removes_meanwhile_is_not_read_to_its_end() -> None:
    fleet, job = world()
    row = look(commit(fleet, job, 7))
    (order,) = orders()
    answer(fleet, order, "acknowledged")
    commit(fleet, job, 8, oldest=8)
    row = look(Checkpoint.objects.get(pk=row.pk))
    assert (row.state, row.reader, row.verify_due_at) == ("pruned", "", None)
    (end,) = orders("end_verification")
    assert (end.node, end.body["order"]) == (order.node, order.id)
    answer(fleet, order, "failed", detail="it was called off")
    assert Checkpoint.objects.get(pk=row.pk).state == "pruned"


@pytest.mark.parametrize("verdict", [SOUND, HARMED, MISSING, UNSEEN])
def test_a_verdict_on_what_retention_has_removed_meanwhile_is_answered_and_done_with(
    verdict: dict[str, object],
) -> None:
    """Its node had found the files gone before it was called off."""
    fleet, job = world()
    row = look(commit(fleet, job, 7))
    (order,) = orders()
    answer(fleet, order, "acknowledged")
    commit(fleet, job, 8, oldest=8)
    assert Checkpoint.objects.get(pk=row.pk).reader == order.id, "nobody has looked since"
    answer(fleet, order, "succeeded", data=verdict)
    assert not DeadLetter.objects.exists()
    row = Checkpoint.objects.get(pk=row.pk)
    assert (row.state, row.reader, row.round_at, row.verify_due_at) == ("pruned", "", None, None)
    assert row.state_reason == "retention removed it"
    order.refresh_from_db()
    assert order.state == "succeeded"


def test_a_word_of_a_reader_whose_checkpoint_is_settled_changes_nothing_and_calls_it_off() -> None:
    fleet, job = world()
    row = look(commit(fleet, job, 7))
    (order,) = orders()
    commit(fleet, job, 8, oldest=8)
    answer(fleet, order, "acknowledged", detail="1 bytes are read", data={"read_bytes": 1})
    row = Checkpoint.objects.get(pk=row.pk)
    assert (row.state, row.state_reason, row.reader) == ("pruned", "retention removed it", "")
    assert [end.body["order"] for end in orders("end_verification")] == [order.id]
    answer(fleet, order, "failed", detail="it was called off")
    assert not DeadLetter.objects.exists()


def test_a_verdict_on_a_checkpoint_whose_row_is_gone_is_answered() -> None:
    fleet, job = world()
    row = look(commit(fleet, job, 7))
    (order,) = orders()
    Checkpoint.objects.filter(pk=row.pk).delete()
    answer(fleet, order, "succeeded", data=HARMED)
    order.refresh_from_db()
    assert (order.state, DeadLetter.objects.exists()) == ("succeeded", False)


def test_a_node_reads_one_at_a_time() -> None:
    fleet, job = world()
    Node.objects.exclude(pk=live_ranks(job)[0].node_id).update(connected=False)
    first, second = (look(commit(fleet, job, step)) for step in (7, 8))
    assert [order.body["step"] for order in orders()] == [7]
    answer(fleet, orders()[0], "succeeded", data=SOUND)
    look(second)
    assert [order.body["step"] for order in orders()] == [7, 8]
    assert Checkpoint.objects.get(pk=first.pk).state == "verified"


def test_an_older_agent_is_not_asked_and_this_machine_reads_what_it_sees() -> None:
    fleet, job = world()
    Node.objects.update(revision=2)
    row = look_until_settled(commit(fleet, job, 7))
    assert (row.state, orders()) == ("verified", [])


def test_what_is_missing_on_a_node_that_did_not_write_it_says_nothing_of_it() -> None:
    """A directory of the same name on a disk of its own; from the node that wrote it, it is a fault."""
    fleet, job = world()
    row = commit(fleet, job, 7)
    writer = row.written_on
    Node.objects.filter(pk=writer).update(connected=False)
    row = look(row)
    answer(fleet, orders()[0], "succeeded", data=MISSING)
    assert Checkpoint.objects.get(pk=row.pk).state == "complete"
    Node.objects.filter(pk=writer).update(connected=True)
    row = look(row)
    assert orders()[1].node_id == writer
    answer(fleet, orders()[1], "succeeded", data=MISSING)
    assert Checkpoint.objects.get(pk=row.pk).state == "corrupt"


def test_what_ranks_could_not_load_is_doubted_until_a_node_has_read_it() -> None:
    fleet, job = world()
    row = look(commit(fleet, job, 7))
    answer(fleet, orders()[0], "succeeded", data=SOUND)
    for rank in live_ranks(job):
        fleet.tell(rank.node.name, frames.RankExited(ref_of(rank), None, 9, False))
    reconcile_job(job.id)
    assert job.attempts.get(number=2).resume_step == 7
    Checkpoint.objects.filter(pk=row.pk).update(doubt="ResumeFailed", verify_due_at=now())
    row = look(row)
    assert len(orders()) == 2, "a round of its own"
    answer(fleet, orders()[1], "succeeded", data=SOUND)
    row = Checkpoint.objects.get(pk=row.pk)
    assert (row.state, row.doubt) == ("verified", "")


def test_a_verdict_that_is_none_is_nobodys_word() -> None:
    fleet, job = world()
    row = look(commit(fleet, job, 7))
    fleet.tell(orders()[0].node.name, frames.CommandAnswer(orders()[0].id, "succeeded", "", '{"ok": "yes"}'))
    assert Checkpoint.objects.get(pk=row.pk).state == "complete"
    assert look(row).reader == orders()[1].id


def test_what_lies_in_an_object_store_is_no_nodes_affair() -> None:
    fleet, job = world(checkpoint=specs.Checkpoint(dir="s3://bucket/runs"))
    rank = live_ranks(job)[0]
    path = f"s3://bucket/runs/{job.id}/step_00000003-e2"
    said = CheckpointReport(3, path, "complete", "scheduled", 2, digest="d")
    fleet.tell(rank.node.name, frames.RankSaid(ref_of(rank), said))
    look(job.checkpoints.get(step=3))
    assert not orders()


def test_the_order_is_one_that_agents_decode() -> None:
    fleet, job = world()
    look(commit(fleet, job, 7))
    (order,) = orders()
    assert msgspec.to_builtins(msgspec.convert(order.body, Body)) == order.body
