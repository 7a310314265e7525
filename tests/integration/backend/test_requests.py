"""What people ask for, over rows and commands: asked, answered by a decision, taken back."""

from datetime import timedelta

import pytest

from controlplane.dispatch.models import Command
from controlplane.fleet import enrolment
from controlplane.fleet import services as fleet_services
from controlplane.fleet.models import Node
from controlplane.jobs.models import Job, Rank, Replica
from controlplane.policy.snapshot import JobSnapshot
from controlplane.protocol import frames
from controlplane.protocol.rank import CheckpointReport
from controlplane.protocol.spec import Resiliency, Resources
from controlplane.recovery import asked, reconcile, requests
from controlplane.recovery.fleet_pass import reconcile_fleet
from controlplane.recovery.load import load_snapshot
from controlplane.recovery.models import Decision, Incident, Request
from controlplane.recovery.reconcile import reconcile_job
from controlplane.runtime.clock import ago, now
from controlplane.runtime.errors import Conflict, NotFound
from tests.integration.backend.builders import (
    Fleet,
    bodies,
    kill_rank,
    live_ranks,
    make_fleet,
    make_job,
    ref_of,
    run_job,
)

pytestmark = pytest.mark.django_db(transaction=True)
ADA = "user:ada"


def fresh(row: Request) -> Request:
    return Request.objects.get(pk=row.pk)


def home_of(job: Job, index: int) -> Node:
    return next(row.node for row in live_ranks(job) if row.replica.index == index)


def gone(fleet: Fleet, job: Job, index: int) -> None:
    """Its processes have ended as they were told."""
    for row in [row for row in live_ranks(job) if row.replica.index == index]:
        fleet.tell(row.node.name, frames.RankExited(ref_of(row), None, 9, True))


def test_a_checkpoint_is_asked_for_taken_and_done_when_a_newer_one_is_committed() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    row = requests.checkpoint(job, reason="before lunch", actor=ADA)
    assert not Command.objects.filter(kind="request_save").exists()
    reconcile_job(job.id)
    saves = Command.objects.filter(job=job, kind="request_save")
    assert {save.node_id for save in saves} == {rank.node_id for rank in live_ranks(job)}
    taken = fresh(row)
    decision = Decision.objects.get(pk=taken.decision_id)
    assert (taken.state, taken.answer, decision.rule) == ("taken", decision.sentence, "checkpoint_request")
    assert "user:ada: before lunch" in taken.answer
    said = CheckpointReport(7, f"{job.attempts.get().checkpoint_dir}/step_7", "complete", "manual", 2, digest="d")
    rank = live_ranks(job)[0]
    fleet.tell(rank.node.name, frames.RankSaid(ref_of(rank), said))
    reconcile_job(job.id)
    done = fresh(row)
    assert (done.state, done.ended_at is not None) == ("done", True)
    assert "The checkpoint of step 7 is committed" in done.answer
    assert not Incident.objects.exists() and Job.objects.get(pk=job.pk).state == "running"


def test_a_checkpoint_that_no_agent_could_order_is_refused_with_its_words() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    row = requests.checkpoint(job, reason="r", actor=ADA)
    reconcile_job(job.id)
    for order in Command.objects.filter(job=job, kind="request_save").select_related("node"):
        fleet.tell(order.node.name, frames.CommandAnswer(order.pk, "failed", "the disk is full"))
    reconcile_job(job.id)
    assert (fresh(row).state, "the disk is full" in fresh(row).answer) == ("refused", True)


def test_what_was_not_begun_in_its_time_lapses_and_asks_nothing_of_anybody() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    row = requests.checkpoint(job, reason="r", actor=ADA)
    Request.objects.update(asked_at=ago(900.0), valid_until=ago(300.0))
    reconcile_job(job.id)
    assert fresh(row).state == "lapsed"
    assert not Command.objects.filter(job=job, kind="request_save").exists()


def test_an_eviction_is_taken_as_an_order_and_done_when_its_processes_have_ended() -> None:
    fleet = make_fleet(4)
    job = run_job(fleet)
    row, at_once = requests.evict(job, 1, reason="rack 7", actor=ADA)
    assert not at_once and not Replica.objects.exclude(ordered_out="").exists()
    reconcile_job(job.id)
    replica = Replica.objects.get(attempt__job=job, index=1)
    assert (fresh(row).state, replica.ordered_out, replica.relieved) == (
        "taken",
        "user:ada: rack 7",
        "user:ada: rack 7",
    )
    assert replica.ordered_at == row.asked_at
    gone(fleet, job, 1)
    reconcile_job(job.id)
    assert (fresh(row).state, "Its processes have ended" in fresh(row).answer) == ("done", True)


def test_an_eviction_taken_back_in_time_lets_the_replica_stay() -> None:
    fleet = make_fleet(4)
    job = run_job(fleet)
    row, _ = requests.evict(job, 1, reason="rack 7", actor=ADA)
    reconcile_job(job.id)
    requests.withdraw(row, reason="wrong rack", actor=ADA)
    reconcile_job(job.id)
    replica = Replica.objects.get(attempt__job=job, index=1)
    assert (fresh(row).state, replica.ordered_out, replica.relieved) == ("withdrawn", "", "")
    assert "user:ada (wrong rack) has taken it back" in fresh(row).answer
    with pytest.raises(Conflict, match="has ended: withdrawn"):
        requests.withdraw(fresh(row), reason="again", actor=ADA)


def test_a_fault_is_given_by_the_rank_s_agent_and_told_when_it_was() -> None:
    fleet = make_fleet()
    job = run_job(fleet, resiliency=Resiliency(allow_faults=True))
    rank = live_ranks(job)[0]
    row = requests.fault(rank, code="hang", value=0.0, reason="a rehearsal", actor=ADA)
    reconcile_job(job.id)
    (order,) = Command.objects.filter(kind="inject_rank_fault").select_related("node")
    assert (fresh(row).state, order.decision_id) == ("taken", fresh(row).done_by)
    fleet.tell(order.node.name, frames.CommandAnswer(order.pk, "succeeded", ""))
    reconcile_job(job.id)
    assert fresh(row).state == "done"


def test_a_job_that_ends_ends_what_was_asked_of_it() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    save = requests.checkpoint(job, reason="r", actor=ADA)
    Job.objects.filter(pk=job.pk).update(cancel_requested=True)
    for _ in range(3):
        reconcile_job(job.id)
        for rank in live_ranks(job):
            fleet.tell(rank.node.name, frames.RankExited(ref_of(rank), 0, None, True))
    assert Job.objects.get(pk=job.pk).state == "cancelled"
    assert fresh(save).state == "refused"
    assert not Request.objects.filter(state__in=("open", "taken")).exists()


def test_a_drain_moves_what_runs_there_and_leaves_the_node_cordoned() -> None:
    fleet = make_fleet(5)
    job = run_job(fleet)
    node = home_of(job, 1)
    there = {rank.replica.index for rank in live_ranks(job) if rank.node_id == node.id}
    row = requests.drain(node.id, reason="new fans", actor=ADA)
    assert requests.drain(node.id, reason="again", actor=ADA) == row
    assert (Node.objects.get(pk=node.id).state, row.before) == ("draining", "ready")
    reconcile_fleet()
    assert fresh(row).state == "taken"
    reconcile_job(job.id)
    part = Request.objects.get(kind="evict")
    assert (part.drain_id, part.who, part.state, part.replica) == (row.pk, ADA, "taken", min(there))
    # Another starts beside it, elsewhere, before anything of it ends.
    start = bodies(job, "start_ranks")[-1]
    assert start[0].node_id != node.id
    assert not Command.objects.filter(job=job, kind="stop_ranks").exists()
    for index in sorted(there):
        Replica.objects.filter(attempt__job=job, index=index).update(ordered_out="ada", relieved="")
        gone(fleet, job, index)
    reconcile_fleet()
    assert (fresh(row).state, Node.objects.get(pk=node.id).state) == ("done", "cordoned")
    assert not Incident.objects.filter(node=node).exists()


def test_a_drain_taken_back_returns_the_node_to_what_it_was_and_what_was_not_moved_stays() -> None:
    fleet = make_fleet(5)
    job = run_job(fleet)
    node = home_of(job, 1)
    Node.objects.filter(pk=node.id).update(state="degraded")
    row = requests.drain(node.id, reason="new fans", actor=ADA)
    reconcile_fleet()
    reconcile_job(job.id)
    requests.withdraw(row, reason="not today", actor=ADA)
    reconcile_fleet()
    assert (fresh(row).state, Node.objects.get(pk=node.id).state) == ("withdrawn", "degraded")
    reconcile_job(job.id)
    assert Request.objects.get(kind="evict").state == "withdrawn"
    assert not Replica.objects.filter(attempt__job=job).exclude(ordered_out="").exists()


def test_a_drain_costs_no_job_the_replicas_that_it_must_have() -> None:
    fleet = make_fleet(3)
    job = run_job(fleet, resources=Resources(nodes=3, gpus_per_node=2, min_replicas=3))
    node = home_of(job, 1)
    row = requests.drain(node.id, reason="new fans", actor=ADA)
    reconcile_fleet()
    reconcile_job(job.id)
    decision = Decision.objects.get(job=job, rule="drain_request")
    assert (decision.choice, decision.reason_code) == ("wait", "cannot_be_spared")
    assert "without it too few would train" in decision.sentence
    assert not Request.objects.filter(kind="evict").exists()
    Request.objects.update(asked_at=ago(90_000.0), valid_until=ago(1.0))
    reconcile_fleet()
    assert (fresh(row).state, Node.objects.get(pk=node.id).state) == ("lapsed", "cordoned")


def test_a_node_on_which_nothing_runs_is_empty_at_once() -> None:
    make_fleet(1)
    node = Node.objects.get()
    row = requests.drain(node.id, reason="new fans", actor=ADA)
    reconcile_fleet()
    assert (fresh(row).state, Node.objects.get().state) == ("done", "cordoned")
    assert row.pk in {each.pk for each in asked.requests(node_id=node.id)}


def test_a_start_that_was_decided_before_its_node_was_drained_is_not_committed_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the drain would have found the node empty, and be done with a job on it."""
    make_fleet(5)
    job = make_job()
    node = Node.objects.order_by("pk")[0]

    def loaded_before(row: Job) -> JobSnapshot:
        snapshot = load_snapshot(row)
        if node.state == "ready":
            requests.drain(node.pk, reason="new fans", actor=ADA)
            reconcile_fleet()
            node.refresh_from_db()
        return snapshot

    monkeypatch.setattr(reconcile, "load_snapshot", loaded_before)
    reconcile.reconcile_job(job.pk)
    assert node.state == "cordoned"
    assert not Rank.objects.filter(node=node).exists()
    reconcile.reconcile_job(job.pk)
    assert Rank.objects.count() > 0, [row.sentence for row in Decision.objects.all()]
    assert not Rank.objects.filter(node=node).exists()


def test_a_node_that_is_returned_and_drained_again_has_one_drain() -> None:
    fleet = make_fleet(4)
    node = home_of(run_job(fleet), 0)
    first = requests.drain(node.id, reason="new fans", actor=ADA)
    fleet_services.uncordon(node.id, reason="not needed", actor=ADA)
    second = requests.drain(node.id, reason="needed", actor=ADA)
    reconcile_fleet()
    assert (fresh(first).state, fresh(second).state) == ("withdrawn", "taken")
    assert Node.objects.get(pk=node.id).state == "draining"


def test_a_drained_node_that_is_revoked_stays_out_of_work_when_it_is_restored() -> None:
    fleet = make_fleet(4)
    node = home_of(run_job(fleet), 0)
    row = requests.drain(node.id, reason="new fans", actor=ADA)
    enrolment.revoke(node.id, actor=ADA, reason="stolen")
    reconcile_fleet()
    enrolment.restore(node.id, actor=ADA, reason="found")
    assert (fresh(row).state, Node.objects.get(pk=node.id).state) == ("refused", "cordoned")


def test_a_part_of_a_drain_that_is_taken_back_is_known_to_the_next_pass() -> None:
    fleet = make_fleet(5)
    job = run_job(fleet)
    row = requests.drain(home_of(job, 1).id, reason="new fans", actor=ADA)
    reconcile_fleet()
    reconcile_job(job.id)
    part = Request.objects.get(kind="evict")
    requests.withdraw(part, reason="not this one", actor=ADA)
    reconcile_job(job.id)
    assert fresh(part).state == "withdrawn"
    (drain,) = asked.of_job(fresh_job(job))
    assert (drain.id, drain.kept) == (row.pk, ((part.attempt, part.replica, part.incarnation),))


def test_a_node_that_is_returned_is_drained_no_more() -> None:
    fleet = make_fleet(4)
    node = home_of(run_job(fleet), 0)
    row = requests.drain(node.id, reason="new fans", actor=ADA)
    fleet_services.uncordon(node.id, reason="not needed", actor=ADA)
    reconcile_fleet()
    assert (fresh(row).state, Node.objects.get(pk=node.id).state) == ("withdrawn", "ready")


def test_what_cannot_be_asked_for_is_told_at_once() -> None:
    fleet = make_fleet()
    job = run_job(fleet, resiliency=Resiliency(allow_faults=False))
    with pytest.raises(NotFound):
        requests.evict(job, 9, reason="r", actor=ADA)
    with pytest.raises(NotFound):
        requests.drain("node_none", reason="r", actor=ADA)
    with pytest.raises(Conflict, match="does not allow faults"):
        requests.fault(live_ranks(job)[0], code="hang", value=0.0, reason="r", actor=ADA)
    node = home_of(job, 0)
    Node.objects.filter(pk=node.id).update(state="quarantined", state_reason="two of it")
    with pytest.raises(Conflict, match="is quarantined"):
        requests.drain(node.id, reason="r", actor=ADA)
    Job.objects.filter(pk=job.pk).update(state="pending")
    for ask in (lambda: requests.evict(fresh_job(job), 0, reason="r", actor=ADA),
                lambda: requests.checkpoint(fresh_job(job), reason="r", actor=ADA)):  # fmt: skip
        with pytest.raises(Conflict):
            ask()
    assert not Request.objects.exists()


def fresh_job(job: Job) -> Job:
    return Job.objects.get(pk=job.pk)


def test_a_replica_that_died_before_its_order_was_looked_at_is_no_order() -> None:
    fleet = make_fleet(4)
    job = run_job(fleet)
    row, _ = requests.evict(job, 1, reason="r", actor=ADA)
    Request.objects.update(incarnation=7)
    kill_rank(fleet, next(rank for rank in live_ranks(job) if rank.replica.index == 1))
    reconcile_job(job.id)
    assert fresh(row).state == "refused"
    assert Decision.objects.filter(job=job, rule="replica_failure").exists()


def test_the_time_for_which_it_is_valid_is_its_kind_s() -> None:
    make_fleet(1)
    row = requests.drain(Node.objects.get().id, reason="r", actor=ADA)
    assert row.valid_until - row.asked_at == timedelta(days=1) and row.asked_at <= now()
