"""What an answer to a command means for ranks, starts, orders of people and devices."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.changes.answers import KINDS, MEANT, Answered, answered, frees
from controlplane.changes.kinds import (
    Audit,
    Change,
    Count,
    DeviceKey,
    Judge,
    Observe,
    Raise,
    RankKey,
    ReplicaKey,
    Transition,
)
from controlplane.policy.plan import OrderOut, StartReplica, StopReplica
from controlplane.policy.signals.nodes import SignatureRejected
from controlplane.policy.signals.ranks import StartFailed
from controlplane.protocol.commands import Body, ResetDevice, StartRanks, StopRanks, WarmHost
from controlplane.protocol.signing import SIGNATURE_REJECTED
from controlplane.protocol.states import UNFIT, CommandState, RankState, ReplicaState
from controlplane.simulator.rows import JOB_ID

from .builders import NODES, World, home, placed, training

SUCCEEDED, FAILED = CommandState.SUCCEEDED, CommandState.FAILED
EXPIRED, SUPERSEDED = CommandState.EXPIRED, CommandState.SUPERSEDED


def command(body: Body | None, state: CommandState, node: str = NODES[1], **fields: Any) -> Answered:
    """Of a decision."""
    told: dict[str, Any] = {"kind": "warm_host", "ttl_s": 60.0, "job_id": JOB_ID, "decided": True}
    return Answered(id="cmd_1", node_id=node, node=node, body=body, state=state, **(told | fields))


def stop(replica: int = 1, incarnation: int = 1, attempt: int = 1) -> StopRanks:
    return StopRanks(
        job_id=JOB_ID, attempt=attempt, replica=replica, incarnation=incarnation, grace_s=0.0, reason="it hangs"
    )


def start_of(world: World, replica: int = 1) -> StartRanks:
    bodies = [body for _, body in world.commands(StartRanks)]
    return next(body for body in reversed(bodies) if body.launch.replica == replica)


def means(world: World, *args: Any, **fields: Any) -> list[Change]:
    return list(answered(world.store, command(*args, **fields)))


def gone(changes: list[Change]) -> list[tuple[int, int, int]]:
    """(replica, incarnation, rank) of those whose end the changes say."""
    keys = [change.subject for change in changes if isinstance(change, Transition) and frees(change)]
    return [(key.replica, key.incarnation, key.rank) for key in keys if isinstance(key, RankKey)]


def test_what_an_answer_may_mean_is_known_by_name_too() -> None:
    assert sorted(kind.__struct_config__.tag for kind in MEANT) == sorted(KINDS)


@pytest.mark.parametrize("state", CommandState)
def test_of_other_commands_no_answer_means_anything(state: CommandState) -> None:
    assert means(training(), WarmHost(job_id=JOB_ID, attempt=1), state) == []


@pytest.mark.parametrize("state", CommandState)
def test_what_nobody_here_has_ordered_says_nothing(state: CommandState) -> None:
    assert means(training(), None, state) == []


# --- a stop --------------------------------------------------------------------------------


def test_a_stop_that_succeeded_proves_its_ranks_gone_on_that_node() -> None:
    changes = means(training(), stop(), SUCCEEDED)
    assert gone(changes) == [(1, 1, 0), (1, 1, 1)]
    assert all(isinstance(change, Transition) and change.columns == {"exit_expected": True} for change in changes)


def test_it_says_nothing_of_another_node() -> None:
    assert means(training(), stop(), SUCCEEDED, NODES[2]) == []


def test_of_an_incarnation_it_proves_that_one_alone() -> None:
    world = training()
    assert means(world, stop(incarnation=2), SUCCEEDED) == []
    assert means(world, stop(attempt=2), SUCCEEDED) == []


def test_of_an_attempt_it_proves_all_that_is_on_the_node() -> None:
    assert gone(means(training(), stop(-1, -1), SUCCEEDED, NODES[0])) == [(0, 1, 0), (0, 1, 1)]


def test_told_twice_it_proves_nothing_more() -> None:
    world = training()
    world.store.commit(means(world, stop(), SUCCEEDED))
    assert world.rows.replicas[1].stopped
    assert means(world, stop(), SUCCEEDED) == []


@pytest.mark.parametrize("state", [FAILED, EXPIRED, SUPERSEDED, CommandState.ACKNOWLEDGED])
def test_any_other_answer_proves_nobody_gone(state: CommandState) -> None:
    assert gone(means(training(), stop(), state)) == []


def ordered_out(world: World, replica: int = 1) -> World:
    world.do(OrderOut(replica=replica, incarnation=1, by="user:ada", asked_s=990.0))
    world.do(StopReplica(replica=replica, incarnation=1, grace_s=5.0))
    return world


def answer_stops(world: World, state: CommandState) -> None:
    for row in world.rows.commands.values():
        row.state = state if isinstance(row.envelope.body, StopRanks) else row.state


@pytest.mark.parametrize("state", [FAILED, EXPIRED])
def test_an_order_to_leave_of_which_nothing_came_is_none_any_more(state: CommandState) -> None:
    world = ordered_out(training())
    answer_stops(world, state)
    (change,) = means(world, stop(), state)
    assert isinstance(change, Observe) and change.subject == ReplicaKey(1, 1, 1)
    world.store.commit([change])
    row = world.rows.replicas[1]
    assert (row.ordered_out, row.ordered_s, row.relieved) == ("", None, "")


def test_it_stands_while_another_nodes_stop_may_come_true() -> None:
    assert means(ordered_out(training()), stop(), FAILED) == []


def test_it_stands_where_a_rank_ended_by_it() -> None:
    world = ordered_out(training())
    answer_stops(world, FAILED)
    world.rows.replicas[1].prove_gone(0)
    assert means(world, stop(), FAILED) == []


def test_it_stands_for_who_was_evicted_and_for_who_is_no_row() -> None:
    world = ordered_out(training())
    answer_stops(world, FAILED)
    assert means(world, stop(incarnation=7), FAILED) == []
    world.rows.replicas[1].state = ReplicaState.EVICTED
    assert means(world, stop(), FAILED) == []


def test_a_stop_of_what_a_node_alone_claims_to_run_says_nothing_of_a_persons_order() -> None:
    world = ordered_out(training())
    answer_stops(world, FAILED)
    assert means(world, stop(), FAILED, decided=False) == []


def test_who_nobody_has_ordered_out_is_left_as_it_is() -> None:
    world = training()
    world.do(StopReplica(replica=1, incarnation=1, grace_s=5.0))
    answer_stops(world, FAILED)
    assert means(world, stop(), FAILED) == []


# --- a start -------------------------------------------------------------------------------


def test_a_start_that_failed_is_a_finding_and_its_devices_are_free() -> None:
    world = placed()
    changes = means(world, start_of(world), FAILED, detail="no memory", data="oom")
    (found,) = [change.found for change in changes if isinstance(change, Raise)]
    assert isinstance(found, StartFailed)
    assert (found.replica, found.incarnation, found.node, found.detail) == (1, 1, NODES[1], "no memory")
    assert (found.reason, found.key, found.value) == ("oom", "start_failed:cmd_1", 60.0)
    assert gone(changes) == [(1, 1, 0), (1, 1, 1)]


def test_a_process_that_was_reported_is_no_proof_of_its_end() -> None:
    world = placed()
    world.rows.replicas[1].started.add(0)
    assert gone(means(world, start_of(world), FAILED)) == [(1, 1, 1)]


def test_where_nobody_answered_it_is_not_known_whether_there_is_one() -> None:
    world = placed()
    changes = means(world, start_of(world), EXPIRED)
    assert [type(change) for change in changes] == [Raise]


def test_a_node_that_is_not_fit_refuses_the_incarnation() -> None:
    world = placed()
    changes = means(world, start_of(world), FAILED, data=UNFIT)
    assert Observe(ReplicaKey(1, 1, 1), {"refused": True}) in changes
    world.store.commit(changes)
    assert world.rows.replicas[1].refused


def test_a_start_that_its_node_holds_to_be_void_matters_while_it_is_wanted() -> None:
    world = placed()
    assert [type(change) for change in means(world, start_of(world), SUPERSEDED)][:1] == [Raise]
    world.rows.replicas[1].state = ReplicaState.EVICTED
    assert means(world, start_of(world), SUPERSEDED) == []


def test_of_a_replica_that_is_followed_it_frees_the_older_ones_devices_alone() -> None:
    world = placed()
    old = start_of(world)
    world.rows.replicas[1].state = ReplicaState.EVICTED
    world.do(StartReplica(replica=1, incarnation=2, placements=home(1, NODES[3])))
    assert gone(means(world, old, FAILED)) == [(1, 1, 0), (1, 1, 1)]
    assert gone(means(world, start_of(world), FAILED, NODES[3])) == [(1, 2, 0), (1, 2, 1)]


@pytest.mark.parametrize("state", [SUCCEEDED, CommandState.ACKNOWLEDGED])
def test_a_start_under_way_and_one_that_succeeded_is_told_by_its_ranks(state: CommandState) -> None:
    world = placed()
    assert means(world, start_of(world), state) == []


def test_the_same_failure_is_one_finding_while_it_is_open() -> None:
    world = placed()
    for _ in range(2):
        world.store.commit(means(world, start_of(world), FAILED), seen_s=990.0)
    (signal,) = world.rows.signals.values()
    assert (signal.kind, signal.seen_s, signal.node_id) == ("setup_timeout", 990.0, NODES[1])


# --- a signature that its node rejects -------------------------------------------------------


def test_a_node_that_knows_no_key_of_ours_is_counted_audited_and_told() -> None:
    changes = means(training(), None, FAILED, detail="unknown key", data=SIGNATURE_REJECTED)
    assert changes[0] == Count(NODES[1], SIGNATURE_REJECTED, "cmd_1: unknown key")
    audit, found = changes[1], changes[2]
    assert isinstance(audit, Audit) and (audit.actor, audit.subject) == (f"node:{NODES[1]}", "cmd_1")
    assert isinstance(found, Raise) and isinstance(found.found, SignatureRejected)
    assert len(changes) == 3


def test_of_what_is_ours_all_the_same_it_means_that_it_failed_too() -> None:
    world = placed()
    changes = means(world, start_of(world), FAILED, data=SIGNATURE_REJECTED)
    assert [type(change) for change in changes[2:4]] == [Raise, Raise]
    assert len(gone(changes)) == 2


# --- a reset ---------------------------------------------------------------------------------

RESET = ResetDevice(device_index=1, uuid=f"{NODES[1]}-1")
KEY = DeviceKey(NODES[1], 1)


@pytest.mark.parametrize(
    ("state", "change"),
    [
        (SUCCEEDED, Judge(KEY, True, "it was reset")),
        (FAILED, Judge(KEY, False, "It could not be reset: in use. A person must inspect it.")),
        (EXPIRED, Observe(KEY, {"reset_wanted_s": 1000.0})),
    ],
)
def test_what_became_of_a_reset(state: CommandState, change: Change) -> None:
    assert means(training(), RESET, state, detail="in use") == [change]


def test_a_reset_under_way_and_one_of_another_device_change_nothing() -> None:
    assert means(training(), RESET, CommandState.ACKNOWLEDGED) == []
    replaced = ResetDevice(device_index=1, uuid="GPU-of-before")
    assert [means(training(), replaced, state) for state in (SUCCEEDED, FAILED, EXPIRED)] == [[], [], []]


# --- any of them, whenever it comes ----------------------------------------------------------

STATES = st.sampled_from([SUCCEEDED, FAILED, SUPERSEDED, EXPIRED])
OLD = st.sampled_from(["stop", "start", "stop_attempt"])


@given(st.lists(st.tuples(OLD, STATES), max_size=6))
def test_answers_about_an_older_incarnation_or_attempt_never_touch_a_newer_one(answers: list[tuple[str, Any]]) -> None:
    world = training()
    world.place()
    first = world.rows.replicas[1]
    first.state = ReplicaState.EVICTED
    old_start = start_of(world)
    world.do(StartReplica(replica=1, incarnation=3, placements=home(1, NODES[1])))
    before = [(row.index, row.state, row.exited.copy(), row.refused) for row in world.rows.replicas.values()]
    for what, state in answers:
        body = {"stop": stop(1, 2, 2), "start": old_start, "stop_attempt": stop(-1, -1, 1)}[what]
        changes = means(world, body, state, data=UNFIT)
        assert all(key[1] < 3 for key in gone(changes))
        world.store.commit(changes)
    assert [(row.index, row.state, row.exited, row.refused) for row in world.rows.replicas.values()] == before
    assert all(rank.state is RankState.LAUNCHING for rank in world.store.ranks(2, of=(1, 3)))
    assert world.checkers.violations == []
