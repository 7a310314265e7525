"""Facts are applied once, in order, and only by whom they concern."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from django.db import connection

from agents.link.older import OlderServer
from controlplane.access.models import AuditEntry
from controlplane.dispatch.models import Command
from controlplane.fleet.models import Node
from controlplane.fleet.present import node_summary
from controlplane.jobs.models import Job, Rank, Replica, StepRecord
from controlplane.protocol import frames
from controlplane.protocol.keeping import CheckpointsPruned
from controlplane.protocol.launch import RankRef
from controlplane.protocol.rank import CheckpointReport, StepReport, TrainingDone
from controlplane.protocol.samples import XidEvent
from controlplane.protocol.states import Phase, RankState, Section
from controlplane.recovery import ingest, sweep
from controlplane.recovery.load_nodes import node_facts
from controlplane.recovery.models import MarkedLines, Signal
from controlplane.recovery.reconcile import reconcile_job
from controlplane.runtime.clock import ago
from controlplane.runtime.models import Event, FrameCounter
from tests.integration.backend.builders import (
    commit_step,
    hello,
    kill_rank,
    live_ranks,
    make_fleet,
    make_job,
    read_all_back,
    ref_of,
    run_job,
)

pytestmark = pytest.mark.django_db(transaction=True)


def counted(reason: str) -> int:
    """How often input was refused for that reason."""
    return sum(FrameCounter.objects.filter(reason=reason).values_list("count", flat=True))


def event(seq: int, body: frames.EventBody) -> frames.AgentEvent:
    """A journal entry."""
    return frames.AgentEvent(seq, 0.0, body)


def xid(number: int) -> frames.XidSeen:
    """A finding about device 0."""
    return frames.XidSeen(XidEvent(index=0, xid=number))


def test_a_repeated_event_is_acknowledged_and_changes_nothing() -> None:
    fleet = make_fleet(1)
    node = fleet.nodes["n1"]
    first = ingest.apply_events(node.id, "web.n1", (event(1, xid(79)),))
    again = ingest.apply_events(node.id, "web.n1", (event(1, xid(79)), event(2, xid(48))))
    assert (first.acked_seq, again.acked_seq, again.resend) == (1, 2, False)
    assert sorted(Signal.objects.values_list("value", flat=True)) == [48.0, 79.0]
    assert counted("duplicate") == 1


def test_a_gap_stops_the_batch_and_asks_for_the_rest_again() -> None:
    fleet = make_fleet(1)
    outcome = ingest.apply_events(fleet.nodes["n1"].id, "web.n1", (event(1, xid(79)), event(3, xid(48))))
    assert (outcome.acked_seq, outcome.resend) == (1, True)
    assert Signal.objects.count() == 1
    assert counted("gap") == 1


def test_a_node_that_speaks_for_another_nodes_rank_is_refused_and_its_own_events_are_applied() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    foreign = next(row for row in live_ranks(job) if row.node.name != "n1")
    fleet.seqs["n1"] += 2
    batch = (
        event(fleet.seqs["n1"] - 1, frames.RankExited(ref_of(foreign), None, 9, False)),
        event(fleet.seqs["n1"], xid(79)),
    )
    outcome = ingest.apply_events(fleet.nodes["n1"].id, "web.n1", batch)
    assert (outcome.acked_seq, outcome.refused) == (fleet.seqs["n1"], 1)
    assert [signal.kind for signal in Signal.objects.all()] == ["xid"]
    assert Rank.objects.get(pk=foreign.pk).state == "training"
    assert AuditEntry.objects.filter(action="agent.identity_mismatch").count() == 1
    assert counted("identity_mismatch") == 1


def test_events_of_a_replaced_session_are_not_applied() -> None:
    fleet = make_fleet(1)
    ingest.open_session(fleet.nodes["n1"].id, "web.newer", hello("n1"))
    with pytest.raises(ingest.StaleSession):
        fleet.tell("n1", xid(79))
    assert Signal.objects.count() == 0


def test_a_new_boot_means_that_ranks_it_does_not_list_are_gone() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    here = [row.pk for row in live_ranks(job) if row.node.name == "n1"]
    acked = ingest.open_session(fleet.nodes["n1"].id, "web.n1", hello("n1", boot="other", journal="other"))
    assert acked == 0
    assert set(Rank.objects.filter(pk__in=here).values_list("state", flat=True)) == {"exited"}
    assert Signal.objects.filter(kind="rank_exit", node=fleet.nodes["n1"]).count() == len(here)


def test_a_reconnect_with_the_same_journal_concludes_nothing_about_ranks() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    ingest.open_session(fleet.nodes["n1"].id, "web.n1", hello("n1"))
    assert {row.state for row in live_ranks(job)} == {"training"}
    assert not Signal.objects.exists()


def test_the_segment_that_a_node_names_last_is_shown_and_known_to_placement() -> None:
    fleet = make_fleet(2)
    job = make_job()
    for segment in ("block-a", "block-b", ""):
        ingest.open_session(fleet.nodes["n1"].id, "web.n1", msgspec.structs.replace(hello("n1"), segment=segment))
        fleet.nodes["n1"].refresh_from_db()
        assert node_summary(fleet.nodes["n1"])["segment"] == segment
        assert Event.objects.filter(entity="node").order_by("-seq")[0].patch["segment"] == segment
        assert {node.name: node.segment for node in node_facts(job)} == {"n1": segment, "n2": ""}


def test_the_reports_of_all_ranks_become_one_row_a_step() -> None:
    fleet = make_fleet()
    job = run_job(fleet, steps=3)
    assert StepRecord.objects.filter(job=job).count() == 3
    row = StepRecord.objects.get(job=job, step=2)
    assert sorted(m for ids in row.micro_batches.values() for m in ids) == list(range(12))
    assert set(row.parameter_hashes) == {"0", "1"}
    assert row.contributors == 3
    assert Job.objects.get(pk=job.pk).committed_step == 3


def test_a_step_told_twice_is_counted_once() -> None:
    fleet = make_fleet()
    job = run_job(fleet, steps=1)
    commit_step(fleet, job, 0)
    row = StepRecord.objects.get(job=job, step=0)
    assert sorted(m for ids in row.micro_batches.values() for m in ids) == list(range(12))


def test_of_a_step_that_is_reported_again_nothing_is_written_again() -> None:
    fleet = make_fleet()
    job = run_job(fleet, steps=2)
    kept = list(StepRecord.objects.order_by("pk").values())
    written: list[str] = []

    def watch(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
        written.extend([sql] if sql.startswith(("UPDATE", "INSERT", "DELETE")) else [])
        return execute(sql, *rest)

    with connection.execute_wrapper(watch):
        commit_step(fleet, job, 1)
    assert list(StepRecord.objects.order_by("pk").values()) == kept
    assert {sql.split()[1] for sql in written} == {f'"{Node._meta.db_table}"'}, "how far the journal is taken in"


def test_a_step_of_an_evicted_incarnation_in_a_later_epoch_is_refused() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    row = live_ranks(job)[0]
    ref = ref_of(row)
    fleet.tell(row.node.name, frames.RankExited(ref, None, 9, False))
    reconcile_job(job.id)
    epoch = Job.objects.get(pk=job.pk).epoch
    fleet.tell(row.node.name, frames.RankSaid(ref, StepReport(99, epoch, 0.1, 1, (0,), 1.0, 1.0, "zombie")))
    assert not StepRecord.objects.filter(job=job, step=99).exists()
    assert counted("stale_step") == 1


def test_a_checkpoint_completed_by_an_evicted_incarnation_is_not_trusted() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    row = live_ranks(job)[0]
    ref, path = ref_of(row), f"{job.attempts.get().checkpoint_dir}/step_5"
    fleet.tell(row.node.name, frames.RankSaid(ref, CheckpointReport(5, path, "writing", "scheduled", 2)))
    fleet.tell(row.node.name, frames.RankExited(ref, None, 9, False))
    reconcile_job(job.id)
    fleet.tell(row.node.name, frames.RankSaid(ref, CheckpointReport(5, path, "complete", "scheduled", 2)))
    assert job.checkpoints.get().state == "corrupt"


def test_a_loss_that_is_no_number_is_a_finding_and_no_json() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    row = live_ranks(job)[0]
    said = StepReport(2, 2, 0.1, 1, (), float("nan"), 1.0, None)
    fleet.tell(row.node.name, frames.RankSaid(ref_of(row), said))
    assert Signal.objects.get().kind == "nan_loss"
    assert StepRecord.objects.get(job=job, step=2).loss is None


def test_stopping_proves_the_processes_gone_and_frees_their_devices() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    row = live_ranks(job)[0]
    kill_rank(fleet, row)
    reconcile_job(job.id)
    stop = Command.objects.filter(job=job, kind="stop_ranks").select_related("node").first()
    assert stop is not None
    fleet.tell(
        stop.node.name, frames.CommandAnswer(stop.id, "acknowledged"), frames.CommandAnswer(stop.id, "succeeded")
    )
    old = Replica.objects.get(attempt__job=job, index=row.replica.index, incarnation=1)
    assert set(old.ranks.values_list("state", flat=True)) == {"exited"}
    assert not old.ranks.filter(released_at=None).exists()


def test_an_answer_to_another_nodes_command_changes_nothing() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    command = Command.objects.filter(job=job, kind="start_ranks").exclude(node=fleet.nodes["n1"]).first()
    assert command is not None
    before = command.state
    fleet.tell("n1", frames.CommandAnswer(command.id, "succeeded"))
    command.refresh_from_db()
    assert command.state == before


def test_done_ends_the_job_and_releases_everything() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    row = live_ranks(job)[0]
    fleet.tell(row.node.name, frames.RankSaid(ref_of(row), TrainingDone(10_000)))
    reconcile_job(job.id)
    for rank in live_ranks(job):
        fleet.tell(rank.node.name, frames.RankExited(ref_of(rank), 0, None, False))
    reconcile_job(job.id)
    fresh = Job.objects.get(pk=job.pk)
    assert fresh.state == "succeeded"
    assert fresh.due_at is None
    assert not Signal.objects.filter(settled_at=None).exists()
    assert not fresh.spares.exists()


def test_a_rank_that_was_never_placed_here_is_refused_even_for_an_unknown_job() -> None:
    fleet = make_fleet(1)
    assert fleet.tell("n1", frames.RankJoined(RankRef("job_x", 1, 0, 1, 0))).refused == 1


def test_what_an_agent_says_in_place_of_news_holds_nothing_up_and_is_told_once() -> None:
    """As to a server of the first revision, of which this one still has all kinds."""
    fleet, older = make_fleet(1), OlderServer(lambda text, **facts: None)
    news = frames.RankSaid(RankRef("job_x", 1, 0, 1, 0), CheckpointsPruned((1, 5)))
    told = (*(event(seq, news) for seq in range(1, 21)), event(21, xid(79)))
    frame = older.fit(frames.AgentFrame(seq=1, uptime_s=1.0, events=told), frames.PROTOCOL_MIN)
    outcome = ingest.apply_events(fleet.nodes["n1"].id, "web.n1", frame.events)
    assert (outcome.acked_seq, outcome.aside, outcome.resend) == (21, 0, False)
    assert Signal.objects.get().kind == "xid"
    (said,) = Event.objects.filter(kind="node.refused")
    assert "does not know CheckpointsPruned: upgrade it" in said.sentence
    assert older.left_out == {"CheckpointsPruned": 20}


def status(row: Rank) -> frames.RankStatus:
    """What a hello lists of a rank that lives."""
    return frames.RankStatus(
        ref=ref_of(row), state=RankState.TRAINING, pid=1, device_index=row.device.index, section=Section.STEP,
        phase=Phase.COMPUTE, step=1, phase_age_s=0.0, silent_s=0.0,
    )  # fmt: skip


def test_a_rank_that_outlived_its_eviction_out_of_reach_is_stopped_when_its_node_is_back() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    dead, survivor = [row for row in live_ranks(job) if row.node.name == "n1"]
    fleet.tell("n1", frames.RankExited(ref_of(dead), None, 9, False))
    reconcile_job(job.id)
    orders = Command.objects.filter(job=job, kind="stop_ranks", node=fleet.nodes["n1"])
    orders.update(state="expired")
    said = msgspec.structs.replace(hello("n1"), ranks=(status(survivor),))
    ingest.open_session(fleet.nodes["n1"].id, "web.n1", said)
    ingest.open_session(fleet.nodes["n1"].id, "web.n1", said)
    assert orders.filter(state="queued").count() == 1


def test_a_checkpoint_that_does_not_read_back_is_never_resumed_from() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    row = live_ranks(job)[0]
    home = Path(job.attempts.get().checkpoint_dir)
    for step in (5, 9):
        path = home / f"step_{step}"
        path.mkdir(parents=True)
        (path / "shard").write_bytes(b"good")
        digest = hashlib.blake2b(b"good", digest_size=16).hexdigest()
        files = [{"name": "shard", "bytes": 4, "blake2b": digest}]
        marker = {"job_id": job.id, "attempt": 1, "step": step, "epoch": 2, "files": files}
        (path / "COMMITTED.json").write_text(json.dumps(marker))
        report = CheckpointReport(step, str(path), "complete", "scheduled", 2, digest="d")
        fleet.tell(row.node.name, frames.RankSaid(ref_of(row), report))
    (home / "step_9" / "shard").write_bytes(b"evil")
    read_all_back()
    for rank in live_ranks(job):
        kill_rank(fleet, rank)
    reconcile_job(job.id)
    attempt = job.attempts.get(number=2)
    assert (attempt.resume_step, attempt.resume_path) == (5, str(home / "step_5"))
    assert job.checkpoints.get(step=9).state == "corrupt"


def test_a_marked_line_of_a_ranks_log_is_on_the_timeline_with_its_rank_and_node_and_decides_nothing() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    row = live_ranks(job)[1]
    before = job.decisions.count()
    line = "[Rank 1] Watchdog caught collective operation timeout: " + "x" * 400
    fleet.tell(row.node.name, frames.LogMarked(ref_of(row), "collective_timeout", line, 3))
    told = Event.objects.get(kind="rank.log")
    where = f"Rank {row.rank} of replica {row.replica.index} on {row.node.name}"
    assert told.sentence == f'{where} (collective timeout, 3 such lines): "{line[:300]}"'
    assert (told.job_id, told.node_id, told.data["count"]) == (job.id, row.node_id, 3)
    reconcile_job(job.id)
    assert job.decisions.count() == before


def test_a_line_that_every_rank_prints_is_told_at_once_and_then_as_one_event_a_minute() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    rows = live_ranks(job)
    for row in rows:
        fleet.tell(row.node.name, frames.LogMarked(ref_of(row), "nccl_error", f"NCCL error in rank {row.rank}", 2))
    fleet.tell(rows[0].node.name, frames.LogMarked(ref_of(rows[0]), "out_of_memory", "CUDA out of memory", 1))
    told = Event.objects.filter(kind="rank.log").order_by("seq")
    assert list(told.values_list("data__marker", "data__count")) == [("nccl_error", 2), ("out_of_memory", 1)]
    sweep.sweep()
    assert told.count() == 2
    MarkedLines.objects.update(told_at=ago(61.0))
    for _ in range(2):
        sweep.sweep()
    last = told.last()
    where = f"rank {rows[-1].rank} of replica {rows[-1].replica.index} on {rows[-1].node.name}"
    assert (
        last.sentence
        == f'10 more lines, reported 5 times (NCCL error), the last of {where}: "NCCL error in rank {rows[-1].rank}"'
    )
    assert told.count() == 3
    MarkedLines.objects.update(told_at=ago(61.0))
    fleet.tell(rows[1].node.name, frames.LogMarked(ref_of(rows[1]), "nccl_error", "NCCL error again", 1))
    assert told.last().sentence.startswith(f"Rank {rows[1].rank} of replica"), "a rank alone is told as ever"
