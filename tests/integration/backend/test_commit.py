"""Changes become rows, commands and events, all of a decision or none; both stores answer an act alike."""

from typing import Any

import pytest

from controlplane.changes import kinds
from controlplane.changes.acts import carry_out
from controlplane.changes.due import kinds as due
from controlplane.changes.kinds import AttemptKey, Change, JobKey, NodeKey, ReplicaKey, ViewKey
from controlplane.changes.rows import Rows
from controlplane.changes.turn import Turn
from controlplane.dispatch.models import Command
from controlplane.fleet.models import Node
from controlplane.jobs.models import Attempt, Job, Rank, Replica
from controlplane.policy import plan
from controlplane.policy.errors import IllegalTransition
from controlplane.policy.snapshot import Placement
from controlplane.protocol.commands import RequestSave, StopRanks, WarmHost
from controlplane.protocol.membership import Install
from controlplane.protocol.states import JobState, NodeState, ReplicaState
from controlplane.recovery.commit import HANDLERS, commit
from controlplane.recovery.models import ViewRow
from controlplane.recovery.rows import JobRows
from controlplane.runtime import events, keys
from controlplane.runtime.errors import Conflict, LostRace
from controlplane.runtime.events import newest_seq
from tests.integration.backend.builders import make_fleet, run_job
from tests.unit.changes.builders import training

pytestmark = pytest.mark.django_db(transaction=True)


def trained() -> tuple[Job, JobRows]:
    """A job of three replicas that trains; its row as it is."""
    job = Job.objects.get(pk=run_job(make_fleet()).pk)
    return job, JobRows(job, "dec_1")


def on_device(index: int) -> kinds.CreateReplica:
    """A replica more: 0 is held by another, 7 is not there."""
    return kinds.CreateReplica(ReplicaKey(1, 9, 1), (Placement(rank=0, node_id="node_1", device_index=index),))


def test_every_change_is_committed() -> None:
    assert set(HANDLERS) == {*kinds.Change.__args__, *due.Deadline.__args__}


@pytest.mark.parametrize(
    ("last", "error"),
    [
        (kinds.Transition(JobKey(), JobState.PENDING, "no"), None),
        (kinds.Transition(JobKey(), JobState.STARTING, "placed anew"), None),
        (kinds.Transition(ReplicaKey(1, 0, 1), ReplicaState.FORMING, "no"), IllegalTransition),
        (kinds.Fence(0), AssertionError),
        (
            kinds.CreateReplica(ReplicaKey(1, 9, 1), (plan.Placement(rank=0, node_id="node_1", device_index=0),)),
            Conflict,
        ),
        (
            kinds.CreateReplica(ReplicaKey(1, 9, 1), (plan.Placement(rank=0, node_id="node_1", device_index=7),)),
            Conflict,
        ),
    ],
)
def test_a_change_that_is_refused_undoes_those_before_it(last: Change, error: type[Exception] | None) -> None:
    job, rows = trained()
    rows.replica(0, 1)
    seq, epoch = newest_seq(), job.epoch
    changes: list[Change] = [kinds.Fence(epoch + 1), kinds.Publish("job.refreshed", "It changes."), last]
    if error is None:
        with events.unit_of_work():
            commit(changes, rows)
        assert Job.objects.get(pk=job.pk).epoch == epoch + 1
        return
    with pytest.raises(error), events.unit_of_work():
        commit(changes, rows)
    assert (newest_seq(), Job.objects.get(pk=job.pk).epoch) == (seq, epoch)


def test_a_row_that_moved_since_it_was_read_is_a_lost_race() -> None:
    _, rows = trained()
    rows.replica(1, 1)
    Replica.objects.filter(index=1).update(state=ReplicaState.SUSPECT)
    with pytest.raises(LostRace), events.unit_of_work():
        commit([kinds.Transition(ReplicaKey(1, 1, 1), ReplicaState.EVICTED, "it failed")], rows)
    assert Replica.objects.get(index=1).state == ReplicaState.SUSPECT


def test_moments_and_structs_rest_as_the_tables_hold_them() -> None:
    job, rows = trained()
    epoch = job.epoch
    install = Install(job.id, 1, epoch, 9, (0, 1))
    with events.unit_of_work():
        commit(
            [
                kinds.Observe(ViewKey(epoch), {"install": install, "ordered_s": 1_700_000_000.5}),
                kinds.Observe(JobKey(), {"looks_taken": 3, "looked_s": 1_700_000_001.0}),
                kinds.Observe(AttemptKey(1), {"end_code": "rank_exit"}),
            ],
            rows,
        )
    view, fresh = ViewRow.objects.get(job=job, epoch=epoch), Job.objects.get(pk=job.pk)
    assert view.install["contributors"] == [0, 1]
    assert view.ordered_at is not None and view.ordered_at.timestamp() == 1_700_000_000.5
    assert (fresh.looks_taken, fresh.looked_at is not None) == (3, True)
    assert Attempt.objects.get(job=job).end_code == "rank_exit"


def test_commands_carry_the_epoch_and_the_decision_and_the_last_stop_is_signed() -> None:
    job, rows = trained()
    stop = StopRanks(job.id, 1, -1, -1, 0.0, "It is over.", final="failed")
    save = RequestSave(job_id=job.id, attempt=1, save_kind="manual", reason="asked")
    Command.objects.all().delete()
    with events.unit_of_work():
        commit(
            [
                kinds.Fence(job.epoch + 1),
                kinds.Enqueue((("node_1", stop), ("node_2", stop)), 1, 60.0),
                kinds.Enqueue((("node_1", save),), 1, 30.0),
                kinds.Enqueue((), 1, 30.0),
            ],
            rows,
        )
    sent = list(Command.objects.order_by("id"))
    assert [(row.node_id, row.kind, row.ttl_s) for row in sent] == [
        ("node_1", "stop_ranks", 60.0),
        ("node_2", "stop_ranks", 60.0),
        ("node_1", "request_save", 30.0),
    ]
    assert {(row.epoch, row.attempt, row.decision_id) for row in sent} == {(job.epoch, 1, "dec_1")}
    assert {row.body.get("end_signature") for row in sent[:2]} == {keys.sign_end(job.id, 1, "failed")}


def test_what_is_of_no_job_needs_none() -> None:
    make_fleet(2)
    rows = JobRows(None, "dec_2")
    warm = WarmHost(job_id="job_1", attempt=1, user="ada")
    with events.unit_of_work():
        commit(
            [
                kinds.Transition(NodeKey("node_1"), NodeState.CORDONED, "its device failed"),
                kinds.Transition(NodeKey("node_9"), NodeState.CORDONED, "it is gone"),
                kinds.Enqueue((("node_2", warm),), None, 60.0),
            ],
            rows,
        )
    assert Node.objects.get(pk="node_1").state == NodeState.CORDONED
    assert Command.objects.get().job_id is None


ACTS: tuple[plan.Action, ...] = (
    plan.StopReplica(replica=1, incarnation=1, grace_s=2.0),
    plan.SetReplicaState(replica=1, incarnation=1, to=ReplicaState.SUSPECT),
    plan.SetReplicaState(replica=1, incarnation=1, to=ReplicaState.EVICTED),
    plan.SetReplicaState(replica=1, incarnation=1, to=ReplicaState.ACTIVE),
    plan.Relieve(replica=1, incarnation=1, reason="slow"),
    plan.OrderOut(replica=1, incarnation=1, by="user:ada", asked_s=5.0),
    plan.RequestCheckpoint(kind="manual"),
    plan.GatherStacks(replica=-1, incarnation=-1),
    plan.LookAtRanks(replica=1, incarnation=1, ranks=(0, 1)),
    plan.InjectFault(replica=1, incarnation=1, rank=1, fault="hang"),
    plan.EndAttempt(number=1, grace_s=2.0),
    plan.SetJobState(to=JobState.FAILED),
)


@pytest.mark.parametrize("act", ACTS, ids=lambda act: type(act).__name__)
def test_rows_in_the_database_and_in_memory_answer_an_act_alike(act: plan.Action) -> None:
    """Which changes, of which rows, to which columns, and commands to the nodes of which replicas."""
    _, rows = trained()
    homes: dict[str, int] = dict(Rank.objects.values_list("node_id", "replica__index"))
    memory = training()
    near = {place.node_id: index for index, row in memory.rows.replicas.items() for place in row.placements}
    assert _shape(rows, act, homes) == _shape(memory.store, act, near)


def _shape(rows: Rows, act: plan.Action, homes: dict[str, int]) -> list[Any]:
    decision = plan.Decision(
        rule="replica_failure", choice="evict", reason_code="rank_exit", sentence="It failed.", key="k", actions=(act,)
    )
    found: list[Any] = []
    for change in carry_out(Turn(decision, rows), act):
        subject, columns = getattr(change, "subject", None), sorted(getattr(change, "columns", ()))
        sent = sorted(homes[node] for node, _ in getattr(change, "commands", ()))
        found.append((type(change).__name__, subject, columns, sent))
    return found
