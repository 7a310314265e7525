"""What makes a replica failed, and what follows."""

import pytest

from controlplane.policy.config import PolicyConfig
from controlplane.policy.plan import (
    AnnounceView,
    GatherStacks,
    SetJobState,
    SetNodeState,
    SetReplicaState,
    SettleSignals,
    StartReplica,
    StopReplica,
)
from controlplane.policy.snapshot import Placement
from controlplane.protocol.states import JobState, NodeState, ReplicaState

from .builders import (
    CONTRIBUTOR,
    NOW_S,
    STANDBY,
    action,
    actions,
    change,
    decisions,
    install_of,
    job,
    node,
    only,
    replica,
    running,
    signal,
    view_of,
    with_replica,
)

RULE = "replica_failure"
LEAVE_OUT = "leave_out"


def exited(index: int = 1, number: int = 1, **fields):
    return signal("rank_exit", number, replica=index, incarnation=1, rank=0, value=137.0, **fields)


def silent(index: int = 1, number: int = 1, **fields):
    base = {"node_id": f"n{index}", "value": 3.0, "threshold": 2.0}
    return signal("node_silent", number, **(base | fields))


def others_wait(snapshot, index: int = 1):
    rows = tuple(change(row, waiting=row.index != index) for row in snapshot.replicas)
    return change(snapshot, replicas=rows)


def test_a_healthy_job_is_left_alone():
    assert decisions(running()) == ()


def test_a_dead_rank_evicts_its_replica_and_nobody_else():
    decision = only(running(signals=(exited(),)), RULE)
    view = action(decision, AnnounceView).view
    assert [member.replica for member in view.members] == [0, 2]
    assert view.epoch == 3
    assert action(decision, StopReplica) == StopReplica(replica=1, incarnation=1, grace_s=0.0)
    assert action(decision, SetReplicaState).to is ReplicaState.EVICTED


def test_survivors_keep_their_roles():
    decision = only(running(signals=(exited(),)), RULE)
    assert {member.role for member in action(decision, AnnounceView).view.members} == {CONTRIBUTOR}


def test_the_replacement_goes_to_the_reserved_spare():
    snapshot = running(spares=0, signals=(exited(),))
    spare = node(3, free=False, reserved_for="job_1")
    spare = change(spare, devices=tuple(change(device, held=False) for device in spare.devices))
    start = action(only(change(snapshot, nodes=(*snapshot.nodes, spare)), RULE), StartReplica)
    assert start.incarnation == 2
    assert {placement.node_id for placement in start.placements} == {"n3"}


def test_another_jobs_spare_is_not_taken():
    found = signal("device_lost", node_id="n1", device_index=0)
    snapshot = running(spares=0, signals=(found,))
    nodes = (*snapshot.nodes, node(3, reserved_for="job_2"))
    assert actions(only(change(snapshot, nodes=nodes), RULE), StartReplica) == ()


def test_a_warm_spare_is_preferred_to_a_cold_one():
    snapshot = running(spares=0, signals=(exited(),))
    nodes = (*snapshot.nodes, node(3), node(4, warm=True))
    start = action(only(change(snapshot, nodes=nodes), RULE), StartReplica)
    assert {placement.node_id for placement in start.placements} == {"n4"}


def test_without_a_spare_a_crashed_process_restarts_where_it_was():
    start = action(only(running(spares=0, signals=(exited(),)), RULE), StartReplica)
    assert {placement.node_id for placement in start.placements} == {"n1"}


def test_a_device_that_its_dead_rank_has_released_is_its_own_no_more():
    """Another job may have it by now; where none has it is free as any."""
    dead = with_replica(running(spares=0, signals=(exited(),)), 1, exited_ranks=1, released=(0,))
    assert actions(only(dead, RULE), StartReplica) == ()
    first, *others = dead.nodes[1].devices
    freed = change(dead.nodes[1], devices=(change(first, free=True, held=False), *others))
    start = action(only(change(dead, nodes=(dead.nodes[0], freed, dead.nodes[2])), RULE), StartReplica)
    assert {(placement.node_id, placement.device_index) for placement in start.placements} == {("n1", 0), ("n1", 1)}


def test_the_job_is_recovering_and_the_finding_is_settled():
    decision = only(running(signals=(exited(),)), RULE)
    assert action(decision, SetJobState).to is JobState.RECOVERING
    assert action(decision, SettleSignals).signal_ids == ("sig_1",)


def test_an_exit_is_seen_without_its_signal():
    decision = only(with_replica(running(), 1, exited_ranks=1), RULE)
    assert decision.reason_code == "rank_exit"


def test_a_finding_about_an_old_incarnation_evicts_nobody():
    snapshot = with_replica(running(signals=(exited(),)), 1, incarnation=2)
    view = view_of((0, 1, CONTRIBUTOR), (1, 2, CONTRIBUTOR), (2, 1, CONTRIBUTOR))
    assert decisions(change(snapshot, view=view), rule=RULE) == ()


def test_two_dead_replicas_leave_in_one_view():
    told = decisions(running(signals=(exited(0, 1), exited(2, 2))), rule=RULE)
    views = [view for decision in told for view in actions(decision, AnnounceView)]
    assert [[member.replica for member in announced.view.members] for announced in views] == [[1]]
    assert [decision.reason_code for decision in told] == ["rank_exit", "rank_exit"]
    assert [stop.replica for decision in told for stop in actions(decision, StopReplica)] == [0, 2]


def test_every_decision_says_why_and_what_else_it_could_have_done():
    decision = only(running(signals=(exited(),)), RULE)
    assert "replica 1" in decision.sentence
    assert "137" in decision.sentence
    assert {other.action for other in decision.alternatives} == {"evict", "hold_and_replace", "restart", "wait"}
    assert all(other.why_not for other in decision.alternatives)
    assert decision.cost_gpu_s is not None


def test_waiting_for_a_dead_process_is_impossible_not_dear():
    decision = only(running(signals=(exited(),)), RULE)
    assert next(other for other in decision.alternatives if other.action == "wait").cost_gpu_s is None


def test_replacing_costs_less_than_restarting_everybody():
    decision = only(running(signals=(exited(),)), RULE)
    restart = next(other for other in decision.alternatives if other.action == "restart")
    assert decision.cost_gpu_s < restart.cost_gpu_s


def test_keys_name_attempt_and_incarnation():
    assert only(running(signals=(exited(),)), RULE).key == "1:evict:1.1"


@pytest.mark.parametrize("code", [16.0, 17.0])
def test_a_suspected_device_is_not_used_again(code):
    snapshot = running(spares=0, signals=(change(exited(), value=code),))
    decision = only(snapshot, RULE)
    assert actions(decision, StartReplica) == ()


def test_failed_validation_quarantines_the_node():
    decision = only(running(signals=(change(exited(), value=17.0),)), RULE)
    assert action(decision, SetNodeState) == SetNodeState(node_id="n1", to=NodeState.QUARANTINED)


def test_a_clean_exit_after_the_last_step_is_no_failure():
    done = running(job=job(committed_step=100), signals=(change(exited(), value=0.0),))
    assert decisions(done, rule=RULE) == ()


def test_a_clean_exit_before_the_last_step_is_a_failure():
    assert only(running(signals=(change(exited(), value=0.0),)), RULE).reason_code == "rank_exit"


# --- hang -----------------------------------------------------------------------


def overdue(index: int = 1, number: int = 1, **fields):
    return signal("rank_overdue", number, replica=index, incarnation=1, rank=1, value=7.0, threshold=5.0, **fields)


def test_a_hung_rank_evicts_only_its_replica():
    decision = only(running(signals=(overdue(),)), RULE)
    assert decision.reason_code == "hang"
    assert [member.replica for member in action(decision, AnnounceView).view.members] == [0, 2]


def test_stacks_are_taken_before_a_hung_replica_is_stopped():
    kinds = [type(step) for step in only(running(signals=(overdue(),)), RULE).actions]
    assert kinds.index(GatherStacks) < kinds.index(AnnounceView) < kinds.index(StopReplica)


def test_with_a_hang_it_is_asked_where_the_whole_job_stands():
    """The hung one first and in both ways; where nothing hangs nobody is asked."""
    asked = actions(only(running(signals=(overdue(),)), RULE), GatherStacks)
    assert [(a.replica, a.look) for a in asked] == [(1, "hang"), (-1, "stacks")]
    assert actions(only(running(signals=(exited(),)), RULE), GatherStacks) == ()


def test_a_replica_that_waits_for_others_is_no_culprit():
    snapshot = with_replica(running(signals=(overdue(),)), 1, waiting=True)
    assert decisions(snapshot, rule=RULE) == ()


def test_of_several_overdue_the_one_outside_the_exchange_is_evicted():
    snapshot = others_wait(running(signals=(overdue(0, 1), overdue(1, 2), overdue(2, 3))))
    assert only(snapshot, RULE).key == "1:evict:1.1"


def test_a_stopped_process_is_not_excused_by_its_last_word():
    mute = overdue(evidence={"silent_s": 7.0})
    snapshot = with_replica(running(signals=(mute,)), 1, waiting=True)
    assert only(snapshot, RULE).reason_code == "hang"


COMPUTES, EXCHANGES = {"phase": "compute", "step": 40, "silent_s": 0.4}, {"phase": "exchange", "step": 40}


def stopped(rank: int, *found, waiting: bool = False):
    """The process of one rank of replica 1 is stopped; the other says each second that it computes: it waits in a
    collective of their replica."""
    snapshot = with_replica(running(signals=found), 1, silent_s=8.0, silent_ranks=(rank,), waiting=waiting)
    return only(snapshot, RULE)


def test_of_two_overdue_ranks_the_one_whose_process_says_nothing_is_named_and_not_the_one_that_waits_for_it():
    waits, mute = overdue(evidence=COMPUTES), change(overdue(number=2, evidence=EXCHANGES | {"silent_s": 7.0}), rank=0)
    decision = stopped(0, waits, mute)
    assert (decision.evidence["rank"], decision.evidence["ranks"]) == (0, "0")
    assert "rank 0 made no progress" in decision.sentence and "its process says nothing" in decision.sentence
    assert decision.title == "Rank 0 of replica 1 hangs"


def test_a_stopped_rank_is_named_also_before_its_own_limit_is_over():
    decision = stopped(0, overdue(evidence=COMPUTES))
    assert (decision.evidence["rank"], decision.evidence["ranks"]) == (0, "0")
    assert "the process of rank 0 says nothing" in decision.sentence
    assert "rank 1 made no progress for 7.0 s, 5.0 s are allowed" in decision.sentence
    assert decision.title == "Rank 0 of replica 1 hangs"


def test_a_rank_whose_agent_says_nothing_either_is_not_called_stopped():
    snapshot = with_replica(running(signals=(overdue(evidence=COMPUTES),)), 1, silent_s=8.0, silent_ranks=(0,))
    nodes = tuple(change(each, silent_s=8.0) for each in snapshot.nodes)
    assert only(change(snapshot, nodes=nodes), RULE).evidence["rank"] == 1


# --- silence -----------------------------------------------------------------------


def test_silence_alone_evicts_nobody():
    assert decisions(running(signals=(silent(),))) == ()


def test_silence_with_all_others_waiting_leaves_out():
    assert only(others_wait(running(signals=(silent(),))), LEAVE_OUT).reason_code == "node_silent"


def test_silence_with_a_failed_exchange_leaves_out():
    error = signal("outer_error", 2, replica=0, incarnation=1, seen_s=NOW_S - 0.5)
    assert only(running(signals=(silent(), error)), LEAVE_OUT).reason_code == "node_silent"


def test_silence_beyond_the_lease_evicts():
    snapshot = running(signals=(silent(),))
    nodes = tuple(change(n, connected=False, silent_s=11.0) if n.id == "n1" else n for n in snapshot.nodes)
    decision = only(change(snapshot, nodes=nodes), RULE)
    assert "lease" in decision.sentence
    assert "n1" not in {p.node_id for p in action(decision, StartReplica).placements}


def test_an_open_connection_keeps_the_lease():
    snapshot = running(signals=(silent(),))
    nodes = tuple(change(n, connected=True, silent_s=11.0) if n.id == "n1" else n for n in snapshot.nodes)
    assert decisions(change(snapshot, nodes=nodes), rule=RULE) == ()


@pytest.mark.parametrize("connected", [True, False])
def test_progress_clears_a_silent_node(connected):
    snapshot = others_wait(running(job=job(progressed_s=NOW_S - 0.5), signals=(silent(),)))
    nodes = tuple(change(n, connected=connected, silent_s=600.0) if n.id == "n1" else n for n in snapshot.nodes)
    assert decisions(change(snapshot, nodes=nodes)) == ()


def test_a_member_that_computes_clears_the_silent_one():
    snapshot = with_replica(others_wait(running(signals=(silent(),))), 2, waiting=False)
    assert decisions(snapshot) == ()


@pytest.mark.parametrize("accused, evicts", [(1, False), (0, True)], ids=["who computes", "who stands by"])
def test_one_that_stands_by_waits_through_every_step_and_accuses_nobody(accused, evicts):
    view = view_of((0, 1, STANDBY), (1, 1, CONTRIBUTOR), (2, 1, STANDBY))
    rows = tuple(replica(i, contributing=i == 1, standby=i != 1, waiting=i != accused) for i in range(3))
    snapshot = running(view=view, install=install_of(view), replicas=rows, signals=(silent(accused, 1),))
    assert bool(decisions(snapshot, rule=LEAVE_OUT)) is evicts


@pytest.mark.parametrize(
    ("changes", "evicts"),
    [
        ({"installed_s": NOW_S - 2.0}, True),
        ({"installed_s": NOW_S - 1.9}, False),
        ({"installed_s": None}, True),
        ({"installed_s": None, "view_since_s": NOW_S - 1.9}, False),
    ],
    ids=["long enough ago", "just now", "not known when", "announced just now"],
)
def test_who_waited_for_the_install_did_not_wait_for_the_silent_one(changes, evicts):
    snapshot = change(others_wait(running(signals=(silent(1, seen_s=NOW_S - 9.0),))), **changes)
    assert bool(decisions(snapshot, rule=LEAVE_OUT)) is evicts


@pytest.mark.parametrize(("word_s", "evicts"), [(0.9, True), (1.1, False), (None, False)])
def test_a_word_from_before_the_last_step_or_soon_after_accuses_nobody(word_s, evicts):
    snapshot = others_wait(running(job=job(progressed_s=NOW_S - 2.0), signals=(silent(),)))
    nodes = tuple(change(n, silent_s=word_s) if n.id == "n2" else n for n in snapshot.nodes)
    assert bool(decisions(change(snapshot, nodes=nodes), rule=LEAVE_OUT)) is evicts


def test_two_silent_nodes_are_evidence_about_the_network():
    snapshot = others_wait(running(signals=(silent(1, 1), silent(2, 2))))
    assert decisions(snapshot) == ()


def test_a_silent_node_stays_an_open_finding():
    decision = only(others_wait(running(signals=(silent(),))), LEAVE_OUT)
    assert actions(decision, SettleSignals) == ()


def test_loss_of_sight_is_not_failure():
    snapshot = others_wait(running(blind=True, signals=(silent(), overdue(1, 2))))
    assert decisions(snapshot) == ()


def test_blindness_does_not_hide_a_proved_death():
    assert only(running(blind=True, signals=(exited(),)), RULE).reason_code == "rank_exit"


# --- devices --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "value", "code"),
    [("device_lost", 0.0, "device_lost"), ("xid", 79.0, "xid_fatal"), ("xid", 48.0, "xid_fatal")],
)
def test_a_dead_device_evicts_and_cordons(kind, value, code):
    found = signal(kind, node_id="n1", device_index=0, value=value)
    decision = only(running(signals=(found,)), RULE)
    assert decision.reason_code == code
    assert action(decision, SetNodeState).to is NodeState.CORDONED
    assert {p.node_id for p in action(decision, StartReplica).placements} == {"n3"}


def test_never_again_on_the_node_of_the_dead_device():
    found = signal("device_lost", node_id="n1", device_index=0)
    assert actions(only(running(spares=0, signals=(found,)), RULE), StartReplica) == ()


@pytest.mark.parametrize("xid", [13, 31, 43, 63, 94, 999])
def test_an_xid_that_blames_no_device_evicts_nobody(xid):
    found = signal("xid", node_id="n1", device_index=0, value=float(xid))
    assert decisions(running(signals=(found,)), rule=RULE) == ()


def test_the_site_may_call_an_xid_fatal():
    found = signal("xid", node_id="n1", device_index=0, value=63.0)
    config = PolicyConfig(xid_overrides={63: "fatal"})
    assert "site override" in only(running(signals=(found,)), RULE, config).sentence


def test_the_device_is_blamed_before_the_process_that_died_of_it():
    found = signal("device_lost", 2, node_id="n1", device_index=0)
    decision = only(running(signals=(exited(), found)), RULE)
    assert decision.reason_code == "device_lost"
    assert set(action(decision, SettleSignals).signal_ids) == {"sig_1", "sig_2"}


def test_a_dead_device_elsewhere_evicts_nobody():
    found = signal("device_lost", node_id="n3", device_index=0)
    assert decisions(running(signals=(found,)), rule=RULE) == ()


@pytest.mark.parametrize(("silent", "kind"), [("n1", "node_silent"), ("n0", "hang"), (None, "hang")])
def test_a_rank_that_stands_for_want_of_one_on_a_silent_node_is_no_culprit(silent: str | None, kind: str):
    """Replica 0 spans two nodes; its rank 0 was found late."""
    late = signal("rank_overdue", replica=0, incarnation=1, rank=0, value=7.0, threshold=5.0)
    quiet = signal("node_silent", 2, node_id=silent, value=12.0, threshold=2.0)
    placements = tuple(Placement(rank=r, node_id=f"n{r}", device_index=0) for r in range(2))
    snapshot = running(signals=(late, *((quiet,) if silent else ())), job=job(progressed_s=NOW_S - 30.0))
    snapshot = with_replica(snapshot, 0, placements=placements)
    snapshot = with_replica(snapshot, 1, placements=tuple(change(p, node_id="n3") for p in replica(1).placements))
    nodes = (change(n, connected=n.id != silent, silent_s=40.0 if n.id == silent else 0.2) for n in snapshot.nodes)
    assert only(change(snapshot, nodes=tuple(nodes)), "replica_failure").reason_code == kind
