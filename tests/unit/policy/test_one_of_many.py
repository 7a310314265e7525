"""One replica's failure is not the job's: a spent budget, exit 93, and places that are barred."""

import pytest

from controlplane.policy.bars import bars_of
from controlplane.policy.budget import entries
from controlplane.policy.plan import (
    AnnounceView,
    EndAttempt,
    PlaceAttempt,
    SendInstall,
    SetJobState,
    SetNodeState,
    StartReplica,
)
from controlplane.policy.snapshot import BarFact, BudgetFact, Placement
from controlplane.protocol.states import JobState, NodeState
from tests.unit.policy.builders import (
    CONFIG,
    CONTRIBUTOR,
    NOW_S,
    action,
    actions,
    attempt,
    change,
    decisions,
    install_of,
    job,
    node,
    only,
    replica,
    running,
    shrunk,
    signal,
    spec,
    starting,
    view_of,
)

SPENT = BudgetFact(restarts_in_window=30)


def ended(code: float, index: int = 1, number: int = 1, rank: int = 0):
    return signal("rank_exit", number, replica=index, incarnation=1, rank=rank, value=code)


def fleet(replicas: int, **fields):
    """As many replicas as asked for, one a node, one spare node."""
    view = view_of(*((index, 1, CONTRIBUTOR) for index in range(replicas)))
    base = {
        "job": job(spec=spec(nodes=replicas)),
        "attempt": attempt(replicas=replicas),
        "replicas": tuple(replica(index) for index in range(replicas)),
        "view": view,
        "install": install_of(view),
        "nodes": (*(node(index, free=False) for index in range(replicas)), node(replicas)),
        "fleet_devices": 2 * replicas + 2,
    }
    return running(**(base | fields))


def homes(start: StartReplica) -> set[str]:
    return {place.node_id for place in start.placements}


# --- a spent budget ---------------------------------------------------------------------


@pytest.mark.parametrize("replicas", [12, 1000])
def test_kill_31_of_an_hour_leaves_eleven_of_twelve_training(replicas):
    world = fleet(replicas, signals=(ended(-9.0),), budget=SPENT)
    assert decisions(world, rule="restart") == ()
    decision = only(world, "replica_failure")
    assert len(action(decision, AnnounceView).view.members) == replicas - 1
    assert actions(decision, StartReplica) == () and actions(decision, EndAttempt) == ()
    replacing = next(other for other in decision.alternatives if other.action == "evict_and_replace")
    assert replacing.why_not == "30 restarts within 3600 s are all its budget allows"
    assert "nothing is started in its place: 30 restarts within 3600 s are all its budget allows" in decision.sentence


def test_a_failed_exchange_is_tried_again_by_its_members_from_a_spent_budget():
    blip = running(signals=(signal("outer_error", replica=0, incarnation=1, rank=0),), budget=SPENT)
    assert decisions(blip, rule="restart") == ()
    assert len(action(only(blip, "outer_error"), AnnounceView).view.members) == 3


def test_too_few_left_fail_the_job_from_a_spent_budget():
    few = job(spec=spec(min_replicas=3))
    decision = only(running(job=few, signals=(ended(-9.0),), budget=SPENT), "restart")
    assert (decision.choice, action(decision, SetJobState).to) == ("fail", JobState.FAILED)


def test_the_slot_is_filled_again_when_the_window_has_room():
    world = shrunk(spares=1, state_since_s=NOW_S - 500.0)
    assert actions(only(change(world, budget=SPENT), "replace"), StartReplica) == ()
    assert actions(only(world, "replace"), StartReplica)


def test_that_fewer_train_because_of_the_budget_is_said_so():
    decision = only(change(shrunk(spares=1), budget=SPENT), "strength")
    assert "30 restarts within 3600 s" in decision.sentence and "no device" not in decision.sentence


# --- exit 93 ------------------------------------------------------------------------------


def test_exit_93_of_one_replica_bars_its_node_and_the_others_train_on():
    world = fleet(12, signals=(ended(93.0),))
    assert decisions(world, rule="restart") == ()
    decision = only(world, "replica_failure")
    assert homes(action(decision, StartReplica)) == {"n12"}
    assert "node-1 takes nothing of this job for 60 min" in decision.sentence
    assert actions(decision, SetNodeState) == ()


def test_a_node_barred_by_exit_93_is_not_used_again_while_the_bar_holds():
    world = shrunk(spares=0, state_since_s=NOW_S - 500.0)
    home = change(world, nodes=tuple(change(n, state=NodeState.READY) for n in world.nodes))
    free = tuple(node(1) if n.id == "n1" else n for n in home.nodes)
    barred = change(home, nodes=free, bars=(BarFact(node_id="n1", code=93, since_s=NOW_S - 60.0),))
    assert actions(only(barred, "replace"), StartReplica) == ()
    over = change(barred, bars=(BarFact(node_id="n1", code=93, since_s=NOW_S - 3601.0),))
    assert homes(action(only(over, "replace"), StartReplica)) == {"n1"}


def test_before_anything_trains_one_node_that_says_93_is_replaced_and_two_fail_the_job():
    one = starting(signals=(ended(93.0),))
    assert decisions(one, rule="restart") == ()
    assert homes(action(only(one, "replica_failure"), StartReplica)) == {"n3"}
    two = starting(signals=(ended(93.0), ended(93.0, 2, 2)))
    assert (only(two, "restart").choice, only(two, "restart").reason_code) == ("fail", "do_not_requeue")
    later = starting(signals=(ended(93.0, 2),), bars=(BarFact(node_id="n7", code=93, since_s=NOW_S - 9.0),))
    assert only(later, "restart").reason_code == "do_not_requeue"


def test_exit_93_of_all_who_train_fails_the_job():
    world = running(signals=tuple(ended(93.0, index, index + 1) for index in range(3)))
    assert only(world, "restart").reason_code == "do_not_requeue"


# --- bars -----------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [201.0, 202.0, 247.0, -7.0, 135.0])
def test_after_a_driver_error_want_of_memory_or_sigbus_the_replica_starts_on_other_devices(code):
    decision = only(running(signals=(ended(code),)), "replica_failure")
    assert homes(action(decision, StartReplica)) == {"n3"}
    assert "takes nothing of this job for 60 min" in decision.sentence


@pytest.mark.parametrize("code", [201.0, 202.0, 247.0, -7.0])
def test_with_no_other_device_it_does_not_start_again_where_it_failed(code):
    decision = only(running(spares=0, signals=(ended(code),)), "replica_failure")
    assert actions(decision, StartReplica) == ()
    assert len(action(decision, AnnounceView).view.members) == 2


@pytest.mark.parametrize("code", [-9.0, -11.0, 70.0, 1.0])
def test_an_end_that_accuses_no_place_may_start_again_where_it_was(code):
    decision = only(running(spares=0, signals=(ended(code),)), "replica_failure")
    assert homes(action(decision, StartReplica)) == {"n1"}


def test_the_next_attempt_avoids_barred_devices_and_takes_them_where_there_is_nothing_else():
    alone = running(
        spares=1,
        replicas=(replica(0),),
        view=view_of((0, 1, CONTRIBUTOR)),
        attempt=attempt(replicas=1),
        job=job(spec=spec(nodes=1)),
        signals=(ended(247.0, 0),),
    )
    placed = action(only(alone, "restart"), PlaceAttempt).placements
    assert {place.node_id for gang in placed for place in gang} == {"n3"}
    nowhere = change(alone, nodes=(node(0, free=False),))
    placed = action(only(nowhere, "restart"), PlaceAttempt).placements
    assert {place.node_id for gang in placed for place in gang} == {"n0"}


@pytest.mark.parametrize(
    ("code", "barred"),
    [(201, {("a", 0)}), (247, {("a", 0), ("a", 1)}), (-7, {("a", 0), ("a", 1)}), (93, {("a", None)}), (-9, set())],
)
def test_how_far_a_bar_reaches(code, barred):
    places = (
        Placement(rank=0, node_id="a", device_index=0),
        Placement(rank=1, node_id="a", device_index=1),
        Placement(rank=2, node_id="b", device_index=0),
    )
    found = bars_of(places, 0, code, since_s=5.0)
    assert {(bar.node_id, bar.device_index) for bar in found} == barred


def test_a_spare_whose_link_may_be_half_open_is_not_preferred_to_one_that_speaks():
    dead = (ended(-9.0), signal("device_lost", 2, node_id="n1", device_index=0))
    quiet = change(node(3), warm=True, silent_s=6.0)
    world = running(spares=0, signals=dead)
    world = change(world, nodes=(*world.nodes, quiet, change(node(4), silent_s=0.3)))
    assert homes(action(only(world, "replica_failure"), StartReplica)) == {"n4"}
    heard = change(world, nodes=(*world.nodes[:3], change(quiet, silent_s=0.4), world.nodes[4]))
    assert homes(action(only(heard, "replica_failure"), StartReplica)) == {"n3"}


def test_leaving_out_from_a_spent_budget_is_in_the_ledger():
    world = running(signals=(ended(-9.0),), budget=SPENT)
    decision = only(world, "replica_failure")
    assert [str(entry.rung) for entry in entries(decision, world)] == ["view_change"]
    assert CONFIG.bar_s == 3600.0 and not actions(decision, SendInstall)
