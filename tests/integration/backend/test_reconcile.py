"""One decision however many ask; guarded rows; snapshot + events == fresh snapshot."""

import re
import threading
from typing import Any

import pytest
from django.db import IntegrityError, connection, connections, transaction
from django.test.utils import CaptureQueriesContext

from controlplane.dispatch import services as dispatch
from controlplane.dispatch.models import Command
from controlplane.fleet import services as fleet_services
from controlplane.fleet.models import Device, Node
from controlplane.fleet.present import node_summary
from controlplane.jobs.models import Attempt, Job, Rank, Replica
from controlplane.jobs.present import VOLATILE_JOB_FIELDS, job_summary, replica_id, replica_summary
from controlplane.jobs.services import cancel_job, transition_job
from controlplane.policy.errors import IllegalTransition
from controlplane.protocol import frames
from controlplane.protocol.commands import WarmHost
from controlplane.protocol.states import UNFIT
from controlplane.recovery import selectors
from controlplane.recovery.ledger import job_budget
from controlplane.recovery.models import Decision, Incident, Signal, ViewRow
from controlplane.recovery.present import incident_summary, signal_summary
from controlplane.recovery.reconcile import reconcile_job
from controlplane.recovery.requests import evict
from controlplane.recovery.sweep import expire_commands
from controlplane.runtime.clock import ago, now
from controlplane.runtime.errors import LostRace
from controlplane.runtime.events import newest_seq, without_volatile
from controlplane.runtime.models import Event, EventStream
from tests.integration.backend.builders import (
    bodies,
    flush_all,
    job_that_lost_a_rank,
    join_all,
    kill_rank,
    live_ranks,
    make_fleet,
    make_job,
    ref_of,
    run_job,
)

pytestmark = pytest.mark.django_db(transaction=True)


def in_threads(*works: Any) -> list[BaseException]:
    """Run all at once, each with a connection of its own; what they raised."""
    errors: list[BaseException] = []

    def run(work: Any) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def test_two_reconcilers_make_one_decision() -> None:
    make_fleet()
    job = make_job()
    errors = in_threads(*[lambda: reconcile_job(job.id)] * 3)
    assert errors == []
    assert Decision.objects.filter(job=job).count() == 1
    assert Attempt.objects.filter(job=job).count() == 1
    assert Command.objects.filter(job=job, kind="start_ranks").count() == 3


def test_two_jobs_never_take_the_same_device() -> None:
    make_fleet(4)
    jobs = [make_job(), make_job_named("other")]
    assert in_threads(*[lambda job=job: reconcile_job(job.id) for job in jobs]) == []
    held = list(Rank.objects.filter(released_at=None).values_list("device_id", flat=True))
    assert len(held) == len(set(held)) == 6
    assert sorted(Job.objects.values_list("state", flat=True)) == ["pending", "starting"]


def make_job_named(name: str) -> Job:
    """Another job of the same shape."""
    from controlplane.jobs.services import submit_job
    from tests.integration.backend.conftest import job_spec

    spec = job_spec()
    import msgspec

    return submit_job(
        msgspec.structs.replace(spec, metadata=msgspec.structs.replace(spec.metadata, name=name)), owner="b", actor="b"
    )


def test_a_view_is_a_row_before_its_order_is_and_the_epoch_moves_with_it() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    view = ViewRow.objects.get(job=job)
    orders = Command.objects.filter(job=job, kind="deliver_view")
    assert view.announced_at <= min(orders.values_list("created_at", flat=True))
    assert view.epoch == Job.objects.get(pk=job.pk).epoch
    assert {order.epoch for order in orders} == {view.epoch}


def test_a_dead_rank_costs_one_eviction_at_the_next_epoch_with_alternatives_and_evidence() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    row = live_ranks(job)[0]
    kill_rank(fleet, row)
    before = Job.objects.get(pk=job.pk).epoch
    reconcile_job(job.id)
    reconcile_job(job.id)
    decision = Decision.objects.get(job=job, rule="replica_failure")
    assert (decision.epoch_before, decision.epoch_after) == (before, before + 1)
    assert decision.alternatives
    assert decision.incident == Incident.objects.get(job=job)
    assert selectors.snapshot_of(decision).job.epoch == before
    assert Replica.objects.get(attempt__job=job, index=row.replica.index, incarnation=1).state == "evicted"
    assert not Signal.objects.filter(job=job, settled_at=None).exists()


def test_an_eviction_a_person_orders_is_carried_out_and_no_budget_pays_for_it() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    evict(job, 1, reason="slow", actor="ada")
    evict(job, 1, reason="slow", actor="ada")
    for row in [row for row in live_ranks(job) if row.replica.index == 1]:
        # The first dies of its killed peer, as it would on another node.
        fleet.tell(row.node.name, frames.RankExited(ref_of(row), None, 6, row.rank == 1))
    reconcile_job(job.id)
    decision = Decision.objects.get(job=job, rule="ordered_eviction")
    assert (decision.reason_code, decision.choice) == ("ordered", "evict_and_replace")
    assert "ada: slow" in decision.sentence
    spent = job_budget(job)
    assert (spent["restarts_total"], spent["rungs"]["replica"], spent["rungs"]["view_change"]) == (0, 1, 1)


@pytest.mark.parametrize("expires", [True, False])
def test_an_order_to_evict_of_which_nothing_came_excuses_no_later_crash(expires: bool) -> None:
    """All of the job were ordered out, so no view could leave them out: their processes were to end first."""
    fleet = make_fleet()
    job = run_job(fleet)
    for index in (0, 1, 2) * 2:
        evict(job, index, reason="slow", actor="ada")
    reconcile_job(job.id)
    orders = Command.objects.filter(job=job, kind="stop_ranks")
    assert Decision.objects.get(job=job, rule="ordered_eviction").choice == "stop" and orders.count() == 3
    if expires:
        orders.update(due_at=ago(1.0))
        expire_commands()
    else:
        for order in orders.select_related("node"):
            fleet.tell(order.node.name, frames.CommandAnswer(order.pk, "failed", "no permission"))
    for row in [row for row in live_ranks(job) if row.replica.index == 1]:
        kill_rank(fleet, row)
    reconcile_job(job.id)
    assert Decision.objects.get(job=job, rule="replica_failure").reason_code == "rank_exit"
    assert job_budget(job)["restarts_total"] == 1


def test_an_undone_decision_leaves_neither_rows_nor_events_nor_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    make_fleet()
    job = make_job()
    blocker = Device.objects.order_by("id").first()
    assert blocker is not None
    seq = newest_seq()
    # Every device is taken between the look and the write, by a constraint nobody can talk round.
    from controlplane.recovery import holding

    def taken(*args: object, **kwargs: object) -> None:
        raise IntegrityError("device_held_once")

    monkeypatch.setattr(holding, "_hold_devices", taken)
    assert reconcile_job(job.id) == 0
    fresh = Job.objects.get(pk=job.pk)
    assert (fresh.state, fresh.epoch) == ("pending", 0)
    assert fresh.due_at is not None
    assert newest_seq() == seq
    assert not Decision.objects.exists()


def test_a_transition_the_table_forbids_is_refused_and_a_lost_race_is_said() -> None:
    make_fleet(1)
    job = make_job()
    with pytest.raises(IllegalTransition):
        transition_job(job, "succeeded", "no")
    Job.objects.filter(pk=job.pk).update(state="starting")
    with pytest.raises(LostRace):
        transition_job(job, "cancelled", "too late")


def test_a_cancelled_job_stops_its_ranks_and_frees_its_devices() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    cancel_job(job.id, reason="enough", actor="ada")
    reconcile_job(job.id)
    assert Job.objects.get(pk=job.pk).state == "cancelled"
    assert Command.objects.filter(job=job, kind="stop_ranks").count() == 3
    for command in Command.objects.filter(job=job, kind="stop_ranks").select_related("node"):
        fleet.tell(command.node.name, frames.CommandAnswer(command.id, "succeeded"))
    assert not Rank.objects.filter(released_at=None).exists()


def test_a_newer_view_makes_an_unsent_older_one_void() -> None:
    fleet = make_fleet()
    job = make_job()
    reconcile_job(job.id)
    join_all(fleet, job)
    reconcile_job(job.id)
    row = live_ranks(job)[0]
    kill_rank(fleet, row)
    reconcile_job(job.id)
    states = dict(Command.objects.filter(job=job, kind="deliver_view").values_list("id", "state"))
    newest = max(Command.objects.filter(job=job, kind="deliver_view").values_list("epoch", flat=True))
    old = Command.objects.filter(job=job, kind="deliver_view", epoch__lt=newest, state="queued")
    assert not old.filter(node__in=Node.objects.filter(commands__epoch=newest)).exists(), states


def test_an_order_is_sent_once_a_turn_and_again_until_it_is_journaled() -> None:
    fleet = make_fleet(1)
    node = fleet.nodes["n1"]
    job = make_job()
    command = dispatch.enqueue(WarmHost(job_id=job.id, attempt=1), node_id=node.id, job_id=job.id)
    rows = dispatch.deliverable([node.id])
    assert [row.id for row in rows] == [command.id]
    dispatch.delivered(rows)
    assert dispatch.deliverable([node.id]) == []
    dispatch.requeue_of_node(node.id)
    assert [row.id for row in dispatch.deliverable([node.id])] == [command.id]
    fleet.tell("n1", frames.CommandAnswer(command.id, "acknowledged"))
    dispatch.requeue_of_node(node.id)
    assert dispatch.deliverable([node.id]) == []


def test_an_order_that_was_sent_but_not_marked_is_sent_again() -> None:
    fleet = make_fleet(1)
    node = fleet.nodes["n1"]
    command = dispatch.enqueue(WarmHost(job_id="job_x", attempt=1), node_id=node.id)
    assert [row.id for row in dispatch.deliverable([node.id])] == [command.id]
    assert [row.id for row in dispatch.deliverable([node.id])] == [command.id]


def test_an_answer_that_overtakes_the_mark_stands() -> None:
    fleet = make_fleet(1)
    node = fleet.nodes["n1"]
    job = make_job()
    command = dispatch.enqueue(WarmHost(job_id=job.id, attempt=1), node_id=node.id, job_id=job.id)
    rows = dispatch.deliverable([node.id])
    sent_at = {command.id: now()}
    fleet.tell("n1", frames.CommandAnswer(command.id, "succeeded"))
    dispatch.delivered(rows, sent_at)
    command.refresh_from_db()
    assert command.created_at <= command.delivered_at <= command.acknowledged_at
    assert command.state == "succeeded"
    assert command.deliveries == 1
    assert command.delivered_at is not None


def test_an_order_nobody_answers_expires_once() -> None:
    fleet = make_fleet(1)
    dispatch.enqueue(WarmHost(job_id="job_x", attempt=1), node_id=fleet.nodes["n1"].id, ttl_s=0.0)
    assert len(dispatch.expire_overdue()) == 1
    assert dispatch.expire_overdue() == []


def test_events_are_numbered_without_a_gap_whoever_writes() -> None:
    fleet = make_fleet()
    names = sorted(fleet.nodes)
    works = [
        lambda name=name: [
            fleet_services.cordon(fleet.nodes[name].id, reason="t", actor="t"),
            fleet_services.uncordon(fleet.nodes[name].id, reason="t", actor="t"),
        ]
        for name in names
    ]
    assert in_threads(*works) == []
    seqs = list(Event.objects.order_by("seq").values_list("seq", flat=True))
    assert seqs == list(range(1, len(seqs) + 1))
    assert EventStream.objects.get(name="all").seq == seqs[-1]


def test_a_unit_that_fails_leaves_no_event_and_no_number() -> None:
    fleet = make_fleet(1)
    seq = newest_seq()
    with pytest.raises(RuntimeError), transaction.atomic():
        fleet_services.cordon(fleet.nodes["n1"].id, reason="t", actor="t")
        raise RuntimeError
    assert newest_seq() == seq
    assert not Event.objects.filter(seq__gt=seq).exists()


def test_snapshot_and_events_equal_a_fresh_snapshot() -> None:
    fleet = make_fleet()
    job = make_job()
    pictures: dict[tuple[str, str], Any] = {}
    start = newest_seq()
    for row in Node.objects.all():
        pictures["node", row.id] = without_volatile(node_summary(row))
    reconcile_job(job.id)
    join_all(fleet, job)
    reconcile_job(job.id)
    flush_all(fleet, job)
    reconcile_job(job.id)
    dead = live_ranks(job)[0]
    kill_rank(fleet, dead)
    reconcile_job(job.id)
    join_all(fleet, job)
    reconcile_job(job.id)
    fleet_services.cordon(fleet.nodes["n2"].id, reason="t", actor="t")
    for event in Event.objects.filter(seq__gt=start).order_by("seq"):
        if event.patch is not None:
            pictures[event.entity, event.entity_id] = event.patch
            # A node's summary has its devices as they are by then.
            pictures |= {("device", device["id"]): device for device in event.patch.get("devices", ())}
    assert steady(pictures["job", job.id]) == steady(without_volatile(job_summary(Job.objects.get(pk=job.pk))))
    for row in Replica.objects.filter(attempt__job=job).select_related("attempt"):
        assert own(pictures["replica", replica_id(row)]) == own(without_volatile(replica_summary(row)))
    for row in Incident.objects.filter(job=job):
        assert pictures["incident", row.id] == without_volatile(incident_summary(row))
    for row in Signal.objects.filter(job=job):
        assert pictures["signal", row.id] == without_volatile(signal_summary(row))
    for row in Node.objects.all():
        fresh = without_volatile(node_summary(row))
        assert [pictures.get(("device", device["id"]), device) for device in fresh["devices"]] == fresh["devices"]
        assert pictures["node", row.id]["state"] == fresh["state"]


def steady(summary: dict[str, Any]) -> dict[str, Any]:
    """Without what moves between events."""
    return {name: value for name, value in summary.items() if name not in VOLATILE_JOB_FIELDS}


def own(summary: dict[str, Any]) -> dict[str, Any]:
    """Without the ranks, which have events of their own."""
    return {name: value for name, value in summary.items() if name not in ("ranks", "committed_step")}


OLD = frames.NodeCheck("driver", "version 535.104 is older than 570: install 570 or newer")


def test_a_node_that_fails_its_checks_is_not_started_on_until_they_pass_and_the_decision_says_why() -> None:
    fleet = make_fleet()
    fleet.tell("n1", frames.NodeChecked((OLD,)))
    fleet.tell("n1", frames.NodeChecked((OLD,)))
    job = make_job()
    reconcile_job(job.id)
    waits = Decision.objects.get(job=job)
    assert waits.choice == "wait"
    assert "n1 (driver: version 535.104 is older than 570" in waits.sentence
    (finding,) = Signal.objects.filter(kind="node_check")
    assert (finding.node_id, finding.settled_at) == (fleet.nodes["n1"].id, None)
    fleet.tell("n1", frames.NodeChecked(()))
    reconcile_job(job.id)
    assert len(bodies(job, "start_ranks")) == 3
    assert Signal.objects.get(kind="node_check").settled_at is not None


def test_what_a_failing_check_says_may_change_and_only_the_end_of_all_failures_rings_who_waits() -> None:
    fleet = make_fleet(2)
    job = make_job()
    reconcile_job(job.id)
    Job.objects.filter(pk=job.pk).update(due_at=None)
    full = [frames.NodeCheck("storage", f"/ck is nearly full: {free} MiB are free") for free in (9, 8)]
    for failed in ((full[0],), (full[1],), (full[1], OLD)):
        fleet.tell("n1", frames.NodeChecked(failed))
        assert Signal.objects.get(kind="node_check").evidence["detail"].startswith(f"storage: {failed[0].detail}")
    told = [event.sentence for event in Event.objects.filter(kind="signal.node_check").order_by("seq")]
    assert ["9 MiB" in told[0], "8 MiB are free; driver" in told[1], len(told)] == [True, True, 2]
    assert not Event.objects.filter(kind="signal.settled").exists()
    assert Job.objects.get(pk=job.pk).due_at is None
    with CaptureQueriesContext(connection) as seen:
        fleet.tell("n1", frames.NodeChecked(()))
    read = [query["sql"] for query in seen if 'FROM "recovery_signal"' in query["sql"]]
    assert all(re.search(r'"(key|id)" (=|IN) ', sql) for sql in read), "the fleet's are not read"
    assert Signal.objects.get(kind="node_check").settled_at is not None
    assert Job.objects.get(pk=job.pk).due_at is not None


def test_a_start_that_its_node_is_not_fit_for_goes_to_another_node() -> None:
    fleet, job = job_that_lost_a_rank()
    first, _ = bodies(job, "start_ranks")[-1]
    why = "the node is not fit: storage: /ck cannot be written: Read-only file system"
    fleet.tell(first.node.name, frames.CommandAnswer(first.id, "failed", why, UNFIT))
    reconcile_job(job.id)
    again, _ = bodies(job, "start_ranks")[-1]
    assert again.id != first.id
    assert again.node_id != first.node_id
    said = Decision.objects.filter(job=job, rule="replica_failure").order_by("at").last()
    assert f"on {first.node.name} failed: {why}" in said.sentence
