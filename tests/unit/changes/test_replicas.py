"""Replicas and ranks: started, stopped, moved, relieved, ordered out, looked at, given faults."""

import pytest

from controlplane.changes import kinds
from controlplane.changes.kinds import JobKey, ReplicaKey
from controlplane.policy.plan import (
    GatherStacks,
    InjectFault,
    LookAtRanks,
    OrderOut,
    Relieve,
    SetReplicaState,
    StartReplica,
    StopReplica,
)
from controlplane.protocol.commands import CollectStacks, InjectRankFault, StartRanks, StopRanks
from controlplane.protocol.states import ReplicaState
from controlplane.simulator.load import load

from .builders import SENTENCE, World, home, training

ONE = {"replica": 1, "incarnation": 1}


def evicted(world: World) -> None:
    """Replica 1, whose processes are gone."""
    world.rows.replicas[1].exited = {0, 1}
    world.rows.replicas[1].stopped = True
    world.do(SetReplicaState(**ONE, to=ReplicaState.EVICTED))


def test_a_stop_goes_to_the_nodes_of_that_incarnation_and_is_remembered() -> None:
    world = training()
    world.do(StopReplica(**ONE, grace_s=3.0))
    ((node, body),) = world.commands(StopRanks)
    assert (node, body.attempt, body.replica, body.incarnation) == ("node-1", 1, 1, 1)
    assert (body.grace_s, body.reason) == (3.0, SENTENCE)
    assert world.rows.replicas[1].stop_requested


def test_a_stop_of_what_is_gone_sends_nothing() -> None:
    world = training()
    world.rows.replicas[1].exited = {0, 1}
    world.do(StopReplica(**ONE, grace_s=3.0))
    assert world.commands(StopRanks) == []


def test_a_stop_goes_only_where_processes_are_left() -> None:
    world = training()
    world.rows.replicas[1].placements = (home(1)[0], home(3)[1])
    world.rows.replicas[1].exited = {0}
    world.do(StopReplica(**ONE, grace_s=3.0))
    assert [node for node, _ in world.commands(StopRanks)] == ["node-3"]


def test_who_is_evicted_contributes_no_more() -> None:
    world = training()
    evicted(world)
    row = world.rows.replicas[1]
    assert (row.state, row.contributing, row.state_since_s) == (ReplicaState.EVICTED, False, 1000.0)
    assert world.checkers.violations == []


def test_a_healthy_replica_that_is_evicted_is_a_violation() -> None:
    world = training()
    world.store._sick = lambda *replica: None
    evicted(world)
    assert len(world.checkers.violations) == 1 and "healthy r1.1" in world.checkers.violations[0]


def test_who_is_suspected_is_left_out_and_catches_up_anew() -> None:
    world = training()
    changes = world.told(SetReplicaState(**ONE, to=ReplicaState.SUSPECT))
    observed = [change for change in changes if isinstance(change, kinds.Observe)]
    assert observed[0].columns == {"contributing": False, "caught_up": None, "times_out": 1, "out_s": 1000.0}
    world.do(SetReplicaState(**ONE, to=ReplicaState.SUSPECT))
    row = world.rows.replicas[1]
    assert (row.state, row.contributing, row.caught_up, row.times_out) == (ReplicaState.SUSPECT, False, "", 1)


def test_a_replica_that_flaps_is_counted_until_it_was_quiet() -> None:
    world = training()
    for again in (1, 2):
        world.do(SetReplicaState(**ONE, to=ReplicaState.SUSPECT))
        assert world.rows.replicas[1].times_out == again
        world.do(SetReplicaState(**ONE, to=ReplicaState.ACTIVE))
        world.kernel.now_s += 10.0
    world.kernel.now_s += 1e6
    world.do(SetReplicaState(**ONE, to=ReplicaState.SUSPECT))
    assert world.rows.replicas[1].times_out == 1


def test_who_is_active_counts_and_has_not_failed_to_start() -> None:
    world = training()
    world.do(SetReplicaState(**ONE, to=ReplicaState.SUSPECT))
    world.do(SetReplicaState(**ONE, to=ReplicaState.ACTIVE))
    row = world.rows.replicas[1]
    assert (row.contributing, row.contributed) == (True, True)


def test_a_state_that_it_has_is_no_transition() -> None:
    world = training()
    assert world.told(SetReplicaState(**ONE, to=ReplicaState.ACTIVE)) == []


def test_a_move_that_the_table_forbids_is_a_violation() -> None:
    world = training()
    world.do(SetReplicaState(**ONE, to=ReplicaState.FORMING))
    assert len(world.checkers.violations) == 1 and "I-state" in world.checkers.violations[0]


def test_the_next_incarnation_starts_without_the_checkpoint_of_the_first() -> None:
    world = training()
    evicted(world)
    world.do(StartReplica(replica=1, incarnation=2, placements=home(3)))
    ((node, body),) = world.commands(StartRanks)
    assert (node, body.launch.incarnation, body.launch.config.resume) == ("node-3", 2, None)
    assert body.launch.epoch == world.rows.epoch
    row = world.rows.replicas[1]
    assert (row.incarnation, row.state, row.attempt) == (2, ReplicaState.FORMING, 1)
    assert world.checkers.violations == []


def test_starts_of_one_decision_share_their_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    world = training()
    evicted(world)
    asked: list[int] = []
    terms = world.store.terms
    monkeypatch.setattr(type(world.store), "terms", lambda self, loads: asked.append(1) or terms(loads))
    world.do(
        StartReplica(replica=1, incarnation=2, placements=home(3)),
        StartReplica(replica=3, incarnation=1, placements=home(4)),
    )
    assert asked == [1]
    assert sorted(world.rows.replicas) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("incarnation", "node", "breach"),
    [(3, "node-3", "I4"), (2, "node-0", "I5")],
)
def test_a_skipped_incarnation_or_a_device_in_use_is_a_violation(incarnation: int, node: str, breach: str) -> None:
    world = training()
    evicted(world)
    world.do(StartReplica(replica=1, incarnation=incarnation, placements=home(1, node)))
    assert [breach in text for text in world.checkers.violations] == [True]


def test_a_start_that_never_came_so_far_is_a_failed_one_and_an_ordered_end_is_none() -> None:
    world = training()
    evicted(world)
    for incarnation, by in ((2, ""), (3, "user:ada")):
        world.do(StartReplica(replica=1, incarnation=incarnation, placements=home(3)))
        world.rows.replicas[1].ordered_out = by
        world.rows.replicas[1].exited, world.rows.replicas[1].stopped = {0, 1}, True
        world.do(SetReplicaState(replica=1, incarnation=incarnation, to=ReplicaState.EVICTED))
    assert load(world.rows, world.kernel.now_s, blind=False).replicas[1].failed_starts == 1


def test_relief_is_given_and_taken_back() -> None:
    world = training()
    for reason in ("it is slow", ""):
        world.do(Relieve(**ONE, reason=reason))
        assert world.rows.replicas[1].relieved == reason


@pytest.mark.parametrize(
    ("by", "at_once", "relieved", "asked_s"),
    [("user:ada", False, "user:ada", 900.0), ("user:ada", True, "", 900.0), ("", False, "", None)],
)
def test_who_is_ordered_out_waits_for_another_unless_at_once(
    by: str, at_once: bool, relieved: str, asked_s: float | None
) -> None:
    world = training()
    world.do(OrderOut(**ONE, by=by, asked_s=900.0, at_once=at_once))
    row = world.rows.replicas[1]
    assert (row.ordered_out, row.relieved, row.ordered_s) == (by, relieved, asked_s)


def test_stacks_of_a_replica_come_from_its_nodes_and_of_all_from_everywhere() -> None:
    world = training()
    world.do(GatherStacks(**ONE))
    assert [node for node, _ in world.commands(CollectStacks)] == ["node-1"]
    world.rows.commands.clear()
    world.rows.outbox.clear()
    world.do(GatherStacks(replica=-1, incarnation=-1, look="stacks"))
    assert [(node, body.replica) for node, body in world.commands(CollectStacks)] == [
        ("node-0", -1),
        ("node-1", -1),
        ("node-2", -1),
    ]


def test_a_look_is_counted_and_asks_only_ranks_that_are_there() -> None:
    world = training()
    world.rows.replicas[1].exited = {0}
    changes = world.told(LookAtRanks(**ONE, ranks=(0, 1)))
    assert changes[0] == kinds.Observe(JobKey(), {"looks_taken": 1, "looked_s": 1000.0})
    assert isinstance(changes[1], kinds.Enqueue)
    assert [(node, body.rank) for node, body in changes[1].commands] == [("node-1", 1)]
    world.do(LookAtRanks(**ONE, ranks=(0, 1)))
    world.do(LookAtRanks(**ONE, ranks=(1,)))
    assert world.rows.looks_taken == 2


@pytest.mark.parametrize("request_id", ["", "ask_1"])
def test_a_fault_goes_to_its_rank_and_only_the_schedules_own_is_audited_now(request_id: str) -> None:
    world = training()
    act = InjectFault(**ONE, rank=1, fault="hang", value=2.0, request=request_id)
    changes = world.told(act)
    assert [type(change).__name__ for change in changes] == ([] if request_id else ["Audit"]) + ["Enqueue"]
    world.do(act)
    ((node, body),) = world.commands(InjectRankFault)
    assert (node, body.rank, body.fault, body.value) == ("node-1", 1, "hang", 2.0)


@pytest.mark.parametrize(
    "act",
    [
        StopReplica(replica=1, incarnation=9, grace_s=0.0),
        SetReplicaState(replica=9, incarnation=1, to=ReplicaState.EVICTED),
        Relieve(replica=1, incarnation=2, reason="slow"),
    ],
)
def test_a_plan_about_an_incarnation_that_is_not_there_is_refused(act: object) -> None:
    with pytest.raises(LookupError):
        training().told(act)  # type: ignore[arg-type]


def test_a_decision_about_an_older_incarnation_is_a_violation() -> None:
    world = training()
    row = world.rows.replicas[1]
    row.state = ReplicaState.EVICTED
    world.store.commit([kinds.CreateReplica(ReplicaKey(1, 1, 2), home(3))])
    world.do(Relieve(**ONE, reason="slow"))
    assert ["I4" in text for text in world.checkers.violations] == [True]
