"""Looks at ranks become rows and findings; a job's own faults are ordered once each."""

import json
from pathlib import Path

import pytest

from controlplane.access.models import AuditEntry
from controlplane.dispatch.models import Command
from controlplane.jobs.models import Attempt, Job, Rank
from controlplane.protocol import frames
from controlplane.protocol.rank import CaughtUp
from controlplane.protocol.rest import IncidentDetail
from controlplane.protocol.spec import FaultSchedule, Resiliency
from controlplane.protocol.states import Phase, Section
from controlplane.recovery import selectors, sweep
from controlplane.recovery.diagnostics import forget_scheduled
from controlplane.recovery.incident_evidence import Count
from controlplane.recovery.load import load_snapshot
from controlplane.recovery.models import Decision, Incident, RankLook
from controlplane.recovery.reconcile import reconcile_job
from controlplane.runtime.clock import ago
from controlplane.runtime.errors import NotFound
from controlplane.runtime.models import Event
from tests.integration.backend.builders import (
    Fleet,
    commit_step,
    flush_all,
    install_all,
    join_all,
    live_ranks,
    make_fleet,
    ref_of,
    run_job,
)

pytestmark = pytest.mark.django_db(transaction=True)
TRACES = Path(__file__).parents[2] / "unit" / "policy" / "traces"


@pytest.fixture(autouse=True)
def _our_own_side_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no sentinel here to say so, and a blind control plane believes no hang."""
    monkeypatch.setattr("controlplane.recovery.health_gate.is_blind", lambda: False)


def hang(fleet: Fleet, job: Job, replica: int) -> tuple[Command, list[Rank]]:
    """One rank of the replica is overdue; the order to look at it, and the replica's ranks."""
    ranks = [row for row in live_ranks(job) if row.replica.index == replica]
    overdue = frames.RankOverdue(ref_of(ranks[1]), Section.STEP, Phase.COMPUTE, 2, 30.0, 5.0, 0.3)
    fleet.tell(ranks[1].node.name, overdue)
    reconcile_job(job.id)
    orders = [o for o in Command.objects.filter(job=job, kind="collect_stacks") if o.body["look"] == "hang"]
    assert len(orders) == 1
    return orders[0], ranks


def dump(case: str, rank: int) -> str:
    """A recorded trace of this rank."""
    return json.dumps(json.loads((TRACES / f"{case}.json").read_text())[rank])


def look(rank: Rank, command: Command, what: str, text: str, method: str = "debug server") -> frames.StacksCollected:
    return frames.StacksCollected(ref_of(rank), text, method, command.id, what)


def test_a_hang_is_looked_at_before_the_view_leaves_it_out() -> None:
    fleet = make_fleet()
    command, _ = hang(fleet, run_job(fleet), 1)
    assert command.body["look"] == "hang"
    here = Command.objects.filter(node=command.node, decision_id=command.decision_id).order_by("id")
    kinds = ["collect_stacks", "collect_stacks", "deliver_view", "stop_ranks"]
    assert list(here.values_list("kind", flat=True)) == kinds, "the hung one, then the whole job"


def test_the_recorders_of_a_hung_replica_name_the_culprit_on_its_incident() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    command, ranks = hang(fleet, job, 1)
    name = ranks[0].node.name
    fleet.tell(name, look(ranks[0], command, "flight_recorder", dump("pair", 0)))
    assert Incident.objects.get(job=job).findings[0]["state"] == "UNDECIDED"
    fleet.tell(name, look(ranks[1], command, "flight_recorder", dump("pair", 1)))
    fleet.tell(name, look(ranks[1], command, "stacks", "engine.py line 1", "faulthandler"))
    finding = Incident.objects.get(job=job).findings
    assert [(f["replica"], f["state"], f["culprits"]) for f in finding] == [(1, "COLLECTIVE_STATE_MISMATCH", [1])]
    detail = selectors.incident_detail(Incident.objects.get(job=job).id)
    assert "rank 1 never joined all_reduce" in detail["stacks"][0]["text"]
    assert any("never joined" in event["sentence"] for event in detail["events"])
    assert {entry["diagnostic"] for entry in detail["stacks"]} == {"finding", "flight_recorder", "stacks"}
    assert set(IncidentDetail.__struct_fields__) >= set(detail), "everything shown has a type"


def test_the_stacks_of_the_whole_job_are_told_in_groups_over_all_its_nodes() -> None:
    """The others are asked for stacks alone; each rank counts, and the first of a place keep their texts."""
    fleet = make_fleet()
    job = run_job(fleet)
    command, ranks = hang(fleet, job, 1)
    orders = Command.objects.filter(decision_id=command.decision_id, kind="collect_stacks")
    assert {(order.body["replica"], order.body["look"]) for order in orders} == {(1, "hang"), (-1, "stacks")}
    homes = {rank.node_id for rank in live_ranks(job)}
    assert sorted(order.node_id for order in orders if order.body["replica"] == -1) == sorted(homes), "one a node"
    reduce = '  File "/site-packages/torch/distributed/distributed_c10d.py", line 2 in all_reduce\n'
    data = '  File "/site-packages/torch/utils/data/dataloader.py", line 7 in __next__\n'
    for rank in live_ranks(job):
        if rank.replica.index == 1:
            continue
        order = next(o for o in orders if o.body["replica"] == -1 and o.node_id == rank.node_id)
        fleet.tell(rank.node.name, look(rank, order, "stacks", reduce, "faulthandler"))
    before = Event.objects.filter(kind="rank.looked").count()
    assert before == 0, "thousands that merely wait are no thousands of events"
    fleet.tell(ranks[0].node.name, look(ranks[0], command, "stacks", reduce, "faulthandler"))
    fleet.tell(ranks[1].node.name, look(ranks[1], command, "stacks", data, "faulthandler"))
    detail = selectors.incident_detail(Incident.objects.get(job=job).id)
    told = detail["stack_groups"]
    waiting = len([rank for rank in live_ranks(job) if rank.replica.index != 1]) + 1
    assert told["sentence"] == f"{waiting} in all_reduce, 1 in the data loader"
    assert told["groups"][1]["ranks"] == (f"1.{ranks[1].replica.incarnation}/{ranks[1].rank}",)
    assert told["note"] == f"Taken from all {waiting + 1} ranks while they lived."
    assert len({rank.node_id for rank in live_ranks(job)}) > 1, "over several nodes"
    assert len([entry for entry in detail["stacks"] if "all_reduce" in entry["text"]]) == 3


REDUCE = '  File "/site-packages/torch/distributed/distributed_c10d.py", line 2 in all_reduce\n'


def groups_of(job: Job) -> dict[str, object]:
    return selectors.incident_detail(Incident.objects.get(job=job).id)["stack_groups"]


def one_is_heard(fleet: Fleet, job: Job) -> list[Command]:
    """A rank hangs; of all that are asked one says where it stands. The orders to the other nodes."""
    command, _ = hang(fleet, job, 1)
    orders = list(Command.objects.filter(decision_id=command.decision_id, kind="collect_stacks"))
    rank = next(row for row in live_ranks(job) if row.replica.index != 1)
    order = next(o for o in orders if o.body["replica"] == -1 and o.node_id == rank.node_id)
    fleet.tell(rank.node.name, look(rank, order, "stacks", REDUCE, "faulthandler"))
    return [order for order in orders if order.node_id != rank.node_id]


def test_of_ranks_that_were_asked_and_not_heard_nothing_is_claimed() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    ranks = len(live_ranks(job))
    silent = one_is_heard(fleet, job)
    groups = groups_of(job)
    assert groups["sentence"] == f"1 in all_reduce, {ranks - 1} not heard"
    assert groups["note"] == f"Taken from 1 of {ranks} ranks while they lived; {ranks - 1} may still answer."
    Command.objects.filter(pk__in=[order.pk for order in silent]).update(state="expired")
    Command.objects.filter(decision_id=silent[0].decision_id, kind="collect_stacks", state="queued").update(
        state="succeeded"
    )
    assert groups_of(job)["note"] == f"Taken from 1 of {ranks} ranks while they lived; of {ranks - 1} nothing came."
    assert groups_of(job)["ranks"] == ranks


def test_of_a_thousand_ranks_those_of_a_dead_node_are_counted_apart() -> None:
    said = Count(heard=992, late=0, awaited=0, silent=8, known=True)
    assert said.note(by_decision=True) == "Taken from 992 of 1,000 ranks while they lived; of 8 nothing came."
    mixed = Count(heard=990, late=1, awaited=1, silent=8, known=True)
    assert mixed.note(by_decision=True) == (
        "Taken from 990 of 1,000 ranks while they lived; for 1 it was too late: not taken; 1 may still answer;"
        " of 8 nothing came."
    )


def test_when_the_last_order_is_given_up_it_is_said_of_how_many_nothing_came() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    silent = one_is_heard(fleet, job)
    Command.objects.filter(decision_id=silent[0].decision_id, kind="collect_stacks").update(due_at=ago(1.0))
    sweep.sweep()
    assert groups_of(job)["note"] == "Taken from 1 of 6 ranks while they lived; of 5 nothing came."


def test_when_nobody_answers_the_panel_says_that_too_and_of_forgotten_orders_nothing_is_claimed() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    command, _ = hang(fleet, job, 1)
    orders = Command.objects.filter(decision_id=command.decision_id, kind="collect_stacks")
    orders.update(state="expired")
    assert groups_of(job)["note"] == "Taken from 0 of 6 ranks while they lived; of 6 nothing came."
    rank = live_ranks(job)[0]
    fleet.tell(rank.node.name, look(rank, orders.get(node=rank.node), "stacks", REDUCE, "faulthandler"))
    assert groups_of(job)["sentence"] == "1 in all_reduce, 5 not heard"
    orders.delete()
    assert groups_of(job)["note"] == "Taken from 1 rank while they lived. How many were asked is not kept any more."


def test_a_missing_dump_leaves_the_finding_undecided_and_says_whose() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    command, ranks = hang(fleet, job, 1)
    fleet.tell(
        ranks[0].node.name,
        look(ranks[0], command, "flight_recorder", dump("pair", 0)),
        look(ranks[1], command, "flight_recorder", "the process is stopped (SIGSTOP)", "none"),
    )
    (finding,) = Incident.objects.get(job=job).findings
    assert (finding["state"], finding["missing_dumps"], finding["culprits"]) == ("UNDECIDED", [1], [])


def test_garbage_for_a_dump_is_a_missing_dump() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    command, ranks = hang(fleet, job, 1)
    for rank, text in zip(ranks, ('{"rank": 0}', dump("pair", 1)), strict=True):
        fleet.tell(rank.node.name, look(rank, command, "flight_recorder", text))
    assert Incident.objects.get(job=job).findings[0]["missing_dumps"] == [0]


def test_a_persons_look_is_kept_without_an_incident() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    rank = live_ranks(job)[0]
    fleet.tell(rank.node.name, frames.StacksCollected(ref_of(rank), "pong", "debug server", "cmd_1", "ping"))
    (row,) = selectors.diagnostics(job.id, command_id="cmd_1")
    assert (row.look, row.text, row.incident) == ("ping", "pong", None)


def test_old_looks_make_room_but_not_those_of_an_incident(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controlplane.recovery.diagnostics.MAX_LOOKS_PER_JOB", 3)
    fleet = make_fleet()
    job = run_job(fleet)
    command, ranks = hang(fleet, job, 1)
    fleet.tell(ranks[0].node.name, look(ranks[0], command, "stacks", "engine.py line 1"))
    Incident.objects.filter(job=job).update(state="resolved")
    rank = live_ranks(job)[0]
    for number in range(5):
        fleet.tell(rank.node.name, frames.StacksCollected(ref_of(rank), str(number), "debug server", "", "ping"))
    assert sorted(RankLook.objects.values_list("text", flat=True)) == ["2", "3", "4", "engine.py line 1"]


@pytest.mark.parametrize(("traces", "odd"), [("pair", False), ("size", True)])
def test_a_look_on_schedule_is_ordered_once_kept_and_told_when_something_does_not_fit(traces: str, odd: bool) -> None:
    fleet = make_fleet()
    job = run_job(fleet, resiliency=Resiliency(look_every_s=60.0))
    Attempt.objects.filter(job=job).update(started_at=ago(61.0))
    for _ in range(2):
        reconcile_job(job.id)
    job.refresh_from_db()
    decision = Decision.objects.get(job=job, rule="look")
    assert (job.looks_taken, bytes(decision.snapshot)) == (1, b"")
    assert job.looked_at is not None
    with pytest.raises(NotFound, match="keeps no snapshot"):
        selectors.snapshot_of(decision)
    orders = Command.objects.filter(job=job, kind="collect_stacks").order_by("id")
    assert [(o.body["replica"], o.body["rank"], o.body["look"]) for o in orders] == [(0, 0, "hang"), (0, 1, "hang")]
    for rank, order in zip([row for row in live_ranks(job) if row.replica.index == 0], orders, strict=True):
        fleet.tell(rank.node.name, look(rank, order, "flight_recorder", dump(traces, rank.rank)))
    told = Event.objects.get(job_id=job.id, kind="job.looked")
    assert told.data["odd"] is odd
    assert told.sentence.startswith("Scheduled diagnostic of replica 0: 2 of 2 recorders read")
    assert not Incident.objects.exists()
    assert RankLook.objects.filter(job_id=job.id).count() == 2
    Decision.objects.filter(job=job).update(at=ago(60.0))
    forget_scheduled(30.0)
    assert set(Decision.objects.values_list("rule", flat=True)) == {"lifecycle", "membership_install"}
    assert load_snapshot(job).job.looks_taken == 1, "what is forgotten stays counted"


def scheduled_look(fleet: Fleet, look_ranks: int = 8) -> tuple[Job, list[tuple[Rank, Command]]]:
    """A look on schedule into replica 0: its ranks and the order to each."""
    job = run_job(fleet, resiliency=Resiliency(look_every_s=60.0, look_ranks=look_ranks))
    Attempt.objects.filter(job=job).update(started_at=ago(61.0))
    reconcile_job(job.id)
    ranks = [row for row in live_ranks(job) if row.replica.index == 0][:look_ranks]
    return job, list(zip(ranks, Command.objects.filter(job=job, kind="collect_stacks").order_by("id"), strict=True))


@pytest.mark.parametrize(("look_first", "expires"), [(True, True), (True, False), (False, True)])
def test_a_look_on_schedule_is_told_once_though_one_order_comes_to_nothing(look_first: bool, expires: bool) -> None:
    fleet = make_fleet()
    job, ((rank, order), (other, lost)) = scheduled_look(fleet)
    if not look_first:
        _comes_to_nothing(fleet, other, lost, expires=expires)
        assert not Event.objects.filter(kind="job.looked").exists()
    fleet.tell(rank.node.name, look(rank, order, "flight_recorder", dump("pair", 0)))
    if look_first:
        _comes_to_nothing(fleet, other, lost, expires=expires)
    fleet.tell(other.node.name, look(other, lost, "flight_recorder", dump("pair", 1)))
    told = Event.objects.get(job_id=job.id, kind="job.looked")
    assert told.sentence.endswith("1 of 2 recorders read; not compared in full: 1 of its 2 ranks gave one.")


def _comes_to_nothing(fleet: Fleet, rank: Rank, order: Command, *, expires: bool) -> None:
    if expires:
        Command.objects.filter(pk=order.pk).update(due_at=ago(1.0))
        sweep.expire_commands()
    else:
        fleet.tell(rank.node.name, frames.CommandAnswer(order.id, "failed", "no such rank is running here"))


@pytest.mark.parametrize(
    ("look_ranks", "method", "said"),
    [
        (8, "none", "0 of 2 recorders read; not compared in full: 0"),
        (1, "debug server", "1 of 1 recorders read; not compared in full: 1"),
    ],
)
def test_what_was_not_looked_at_is_not_said_to_fit(look_ranks: int, method: str, said: str) -> None:
    fleet = make_fleet()
    job, orders = scheduled_look(fleet, look_ranks)
    for rank, order in orders:
        fleet.tell(rank.node.name, look(rank, order, "flight_recorder", dump("pair", rank.rank), method))
    told = Event.objects.get(job_id=job.id, kind="job.looked")
    assert told.sentence.endswith(f"{said} of its 2 ranks gave one.")


def test_a_scheduled_fault_is_ordered_once_with_its_audit_and_the_next_when_it_is_due() -> None:
    faults = FaultSchedule(kind="rank_killed", delay_s=0.1, rank=3, times=2)
    fleet = make_fleet()
    job = run_job(fleet, steps=4, resiliency=Resiliency(allow_faults=True, faults=faults))
    for _ in range(3):
        reconcile_job(job.id)
    command = Command.objects.get(job=job, kind="inject_rank_fault")
    assert {k: command.body[k] for k in ("fault", "replica", "rank")} == {"fault": "sigkill", "replica": 1, "rank": 1}
    assert AuditEntry.objects.get(action="job.fault").actor == "schedule"
    decision = Decision.objects.get(job=job, rule="rehearsal")
    assert decision.sentence.startswith("Rehearsal 1 of 2: rank_killed for rank 1 of replica 1")
    _die_and_come_back(fleet, job)
    for step in range(4, 8):
        commit_step(fleet, job, step)
    for _ in range(3):
        reconcile_job(job.id)
    assert Command.objects.filter(job=job, kind="inject_rank_fault").count() == 2
    assert Decision.objects.filter(job=job, rule="rehearsal").count() == 2


def _die_and_come_back(fleet: Fleet, job: Job) -> None:
    """The killed rank ends; its replica is replaced and contributes again."""
    for row in [row for row in live_ranks(job) if row.replica.index == 1]:
        fleet.tell(row.node.name, frames.RankExited(ref_of(row), None, 9, row.rank == 0))
    reconcile_job(job.id)
    flush_all(fleet, job, committed=4)
    reconcile_job(job.id)
    install_all(fleet, job)
    join_all(fleet, job)
    reconcile_job(job.id)
    flush_all(fleet, job, committed=4)
    reconcile_job(job.id)
    install_all(fleet, job)
    epoch = Job.objects.get(pk=job.pk).epoch
    for row in [row for row in live_ranks(job) if row.replica.index == 1]:
        fleet.tell(row.node.name, frames.RankSaid(ref_of(row), CaughtUp(epoch, 4, 0, 0.1, 10, 0)))
    reconcile_job(job.id)
