"""Evidence from events to decisions: late once, out of reach, and ends that nobody saw."""

import re
from datetime import datetime, timedelta

import msgspec
import pytest

from controlplane.api.why import why
from controlplane.dispatch.statements import is_genuine, signed
from controlplane.fleet.models import Node
from controlplane.jobs.models import Job, Rank, Replica
from controlplane.protocol import frames
from controlplane.protocol.membership import MemberRole, View
from controlplane.protocol.rank import CaughtUp
from controlplane.protocol.states import JobState, Phase, RankState, ReplicaState, Section
from controlplane.recovery import health_gate, ingest, unheard
from controlplane.recovery.models import Decision, Signal, ViewRow
from controlplane.recovery.reconcile import reconcile_job
from controlplane.runtime.clock import ago, now
from tests.integration.backend.builders import (
    Fleet,
    commit_step,
    flush_all,
    hello,
    install_all,
    live_ranks,
    make_fleet,
    ref_of,
    run_job,
)

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def sees(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no sentinel here to say so, and a blind control plane believes no silence."""
    monkeypatch.setattr(health_gate, "is_blind", lambda: False)


def overdue(row: Rank) -> frames.RankOverdue:
    """Its agent tells that it was stopped for 7 s in mid-step."""
    return frames.RankOverdue(ref_of(row), Section.STEP, Phase.COMPUTE, 1, 7.0, 5.0, 7.0)


def evictions(job: Job) -> list[str]:
    return list(Decision.objects.filter(job=job, rule="replica_failure").values_list("reason_code", flat=True))


def test_a_rank_that_is_late_before_it_trains_is_a_kind_of_its_own() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    row = live_ranks(job)[0]
    fleet.tell(row.node.name, frames.RankOverdue(ref_of(row), Section.SETUP, Phase.COMPUTE, 0, 700.0, 600.0, 700.0))
    (found,) = Signal.objects.filter(job=job)
    assert (found.kind, found.value, found.threshold) == ("setup_timeout", 700.0, 600.0)


# --- late once --------------------------------------------------------------------------------


@pytest.mark.parametrize("held", [True, False], ids=["told while blind", "told while it sees"])
def test_a_rank_that_was_late_and_trains_again_is_not_evicted_later(
    held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    row = live_ranks(job)[0]
    fleet.tell(row.node.name, overdue(row))
    if held:
        monkeypatch.setattr(health_gate, "is_blind", lambda: True)
        reconcile_job(job.id)
        monkeypatch.setattr(health_gate, "is_blind", lambda: False)
    for step in range(2, 6):
        commit_step(fleet, job, step)
    reconcile_job(job.id)
    assert evictions(job) == []
    assert not Signal.objects.filter(kind="rank_overdue", settled_at=None).exists()
    assert Rank.objects.get(pk=row.pk).state == RankState.TRAINING


def test_a_rank_that_is_late_and_does_not_move_is_evicted() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    row = live_ranks(job)[0]
    fleet.tell(row.node.name, overdue(row))
    reconcile_job(job.id)
    assert evictions(job) == ["hang"]


# --- out of reach -----------------------------------------------------------------------------


def silence(job: Job, row: Rank, monkeypatch: pytest.MonkeyPatch, *, silent_s: float) -> None:
    """The sentinel finds the node of this rank silent; all other ranks wait for it."""
    Signal.objects.update_or_create(
        key=f"node_silent:{row.node_id}:{job.id}",
        defaults={
            "id": "sig_silent", "kind": "node_silent", "job": job, "node": row.node, "value": silent_s,
            "threshold": 2.0, "seen_at": ago(silent_s - 2.0),
        },
    )  # fmt: skip
    Node.objects.filter(pk=row.node_id).update(connected=False, disconnected_at=ago(silent_s))
    heard = dict.fromkeys(Node.objects.values_list("id", flat=True), 0.1)
    monkeypatch.setattr(health_gate, "silent_by_node", lambda: heard | {row.node_id: silent_s})


def cut_off(monkeypatch: pytest.MonkeyPatch, fleet: Fleet | None = None) -> tuple[Fleet, Job, Rank]:
    """A job of which one replica was left out and the others go on."""
    fleet = fleet or make_fleet()
    job = run_job(fleet)
    row = live_ranks(job)[0]
    job.steps.update(at=ago(20.0))
    ViewRow.objects.filter(job=job).update(announced_at=ago(30.0), ordered_at=ago(29.0))
    silence(job, row, monkeypatch, silent_s=3.0)
    waiting = {
        f"{rank.replica.index}.{rank.replica.incarnation}.{rank.rank}": {"phase": "exchange", "silent_s": 0.2}
        for rank in live_ranks(job)
        if rank.node_id != row.node_id
    }
    monkeypatch.setattr("controlplane.runtime.bus.read_live", lambda key: waiting if key.startswith("job:") else None)
    reconcile_job(job.id)
    return fleet, job, row


def test_one_out_of_reach_is_left_out_and_nothing_of_it_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    _, job, row = cut_off(monkeypatch)
    assert Decision.objects.get(job=job, rule="leave_out").incident is not None
    replica = Replica.objects.get(pk=row.replica_id)
    assert (replica.state, replica.contributing, replica.stop_requested) == (ReplicaState.SUSPECT, False, False)
    assert not job.commands.filter(kind="stop_ranks").exists()
    assert Job.objects.get(pk=job.pk).state == JobState.RECOVERING
    view = ViewRow.objects.filter(job=job).latest("epoch").view
    assert [member["replica"] for member in view["left_out"]] == [replica.index]


def test_an_agent_of_an_older_release_is_told_the_view_in_the_words_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = make_fleet()
    older = fleet.nodes["n2"]
    said = msgspec.structs.replace(hello("n2"), protocol_max=frames.PROTOCOL_MIN)
    ingest.open_session(older.id, "web.n2", said)
    _, job, row = cut_off(monkeypatch, fleet)
    orders = {order.node_id: order for order in job.commands.filter(kind="deliver_view", epoch=job.epoch + 1)}
    words = {node_id: msgspec.msgpack.decode(signed(order).statement)["body"] for node_id, order in orders.items()}
    assert "left_out" not in words[older.id]["view"]
    assert [out["replica"] for out in words[row.node_id]["view"]["left_out"]] == [row.replica.index]
    assert all(is_genuine(order) for order in orders.values())


def test_one_that_comes_back_in_time_rejoins_and_counts_after_it_has_caught_up_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet, job, row = cut_off(monkeypatch)
    before = ViewRow.objects.filter(job=job).latest("epoch").epoch - 1
    flush_all(fleet, job, committed=2)
    reconcile_job(job.id)
    install_all(fleet, job)
    ViewRow.objects.filter(job=job).update(ordered_at=ago(5.0))
    name = fleet.name_of(row.node_id)
    ingest.open_session(row.node_id, f"web.{name}", hello(name))
    monkeypatch.setattr(
        health_gate, "silent_by_node", lambda: dict.fromkeys(Node.objects.values_list("id", flat=True), 0.1)
    )
    waits = {
        f"{rank.replica.index}.{rank.replica.incarnation}.{rank.rank}": {"phase": "exchange", "silent_s": 0.2}
        for rank in live_ranks(job)
    }
    monkeypatch.setattr("controlplane.runtime.bus.read_live", lambda key: waits if key.startswith("job:") else None)
    old = CaughtUp(before, 1, 0, 0.1, 1, 0)
    fleet.tell(name, frames.RankSaid(ref_of(row), old))
    reconcile_job(job.id)
    replica = Replica.objects.get(pk=row.replica_id)
    assert (replica.state, replica.contributing, replica.caught_up) == (ReplicaState.CATCHING_UP, False, None)
    view = ViewRow.objects.filter(job=job).latest("epoch")
    announced = msgspec.convert(view.view, View)
    assert (announced.returning, announced.left_out) == ((replica.index,), ())
    flush_all(fleet, job, committed=2)
    reconcile_job(job.id)
    fleet.tell(name, frames.RankSaid(ref_of(row), CaughtUp(view.epoch, 3, 1, 0.1, 1, 0, role=MemberRole.CONTRIBUTOR)))
    reconcile_job(job.id)
    replica.refresh_from_db()
    assert (replica.state, replica.contributing, replica.incarnation) == (ReplicaState.ACTIVE, True, 1)
    assert evictions(job) == []


def test_one_whose_lease_is_over_is_ended_and_started_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    _, job, row = cut_off(monkeypatch)
    silence(job, row, monkeypatch, silent_s=90.0)
    reconcile_job(job.id)
    assert evictions(job) == ["node_silent"]
    newest = Replica.objects.filter(attempt__job=job, index=row.replica.index).latest("incarnation")
    assert newest.incarnation == 2
    assert row.node_id not in newest.ranks.values_list("node_id", flat=True)


# --- what people are told -----------------------------------------------------------------------


def test_a_node_that_is_cut_off_while_its_ranks_commit_is_told_on_job_and_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    row = live_ranks(job)[0]
    silence(job, row, monkeypatch, silent_s=12.0)
    monkeypatch.setattr("controlplane.runtime.bus.read_live", lambda key: None)
    commit_step(fleet, job, 2)
    reconcile_job(job.id)
    (told,) = unheard.of_job(Job.objects.get(pk=job.pk))
    assert (told["node_name"], told["commits"], told["left_out"]) == ("n1", True, False)
    assert told["silent_s"] >= 12.0
    assert "; its ranks still commit; at the earliest, if they stop, they are started" in told["sentence"]
    assert datetime.fromisoformat(told["acts_at"]) > now() + timedelta(seconds=5)
    (of_node,) = unheard.of_node(row.node_id)
    # It is asked a moment later, which may be the next second.
    later = {"silent_s": 0.0, "sentence": re.sub(r"\d+", "N", of_node["sentence"])}
    assert of_node | later == told | later
    assert later["sentence"] == re.sub(r"\d+", "N", told["sentence"])
    assert told["sentence"] in why("running", "", cancel_requested=False, unheard=[told["sentence"]])
    assert evictions(job) == []


def test_of_a_node_that_is_heard_nothing_is_told() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    assert unheard.of_job(job) == []
    assert unheard.of_node(live_ranks(job)[0].node_id) == []


def test_of_one_that_is_left_out_it_is_told_that_it_may_rejoin(monkeypatch: pytest.MonkeyPatch) -> None:
    _, job, _ = cut_off(monkeypatch)
    (told,) = unheard.of_job(Job.objects.get(pk=job.pk))
    assert (told["commits"], told["left_out"]) == (False, True)
    assert "which rejoin when it is heard; else they are started elsewhere in " in told["sentence"]


# --- ends that nobody saw -----------------------------------------------------------------------


def test_an_end_that_nobody_saw_has_no_code_anywhere() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    row = live_ranks(job)[0]
    gone = frames.RankExited(
        ref_of(row), None, None, False, cause="unobserved", hint="exit not observed; gone when the agent came back"
    )
    fleet.tell(row.node.name, gone)
    reconcile_job(job.id)
    row.refresh_from_db()
    assert (row.exit_code, row.exit_signal) == (None, None)
    decision = Decision.objects.get(job=job, rule="replica_failure")
    assert decision.evidence["exit_code"] is None
    assert decision.evidence["cause"] == "unobserved"
    assert "gone when the agent came back" in decision.sentence
    assert "code 0" not in decision.sentence


@pytest.mark.parametrize(
    ("changes", "cause"), [({"boot": "second"}, "node_restarted"), ({"journal": "second"}, "unobserved")]
)
def test_what_a_node_came_back_without_ended_by_no_signal(changes: dict[str, str], cause: str) -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    row = live_ranks(job)[0]
    ingest.open_session(row.node_id, f"web2.{row.node.name}", hello(row.node.name, **changes))
    reconcile_job(job.id)
    decision = Decision.objects.filter(job=job, rule__in=("replica_failure", "restart")).earliest("at")
    assert "signal 1" not in decision.sentence
    assert "exit not observed" in decision.sentence
    found = Signal.objects.filter(kind="rank_exit", node=row.node)
    assert {signal.evidence["cause"] for signal in found} == {cause}
    assert "SIGHUP" not in decision.incident.title, "-1 stands for no code, not for signal 1"


# --- the server's clock ---------------------------------------------------------------------------


def test_the_age_of_a_closed_connection_does_not_follow_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = make_fleet(1)
    node = fleet.nodes["n1"]
    node.connected, node.disconnected_at = False, ago(5.0)
    assert health_gate.silent_s(node, None) == pytest.approx(5.0, abs=1.0)
    hour = timedelta(hours=1)
    set_s = now().timestamp() - 2.0
    monkeypatch.setattr(health_gate, "clock_step", lambda: (set_s, 3600.0))
    node.disconnected_at -= hour
    assert health_gate.silent_s(node, None) == pytest.approx(5.0, abs=1.0)
    monkeypatch.setattr(health_gate, "clock_step", lambda: (set_s, -3600.0))
    node.disconnected_at += 2 * hour
    assert health_gate.silent_s(node, None) == pytest.approx(5.0, abs=1.0)
    monkeypatch.setattr(health_gate, "clock_step", lambda: (None, 0.0))
    assert health_gate.silent_s(node, None) is None
