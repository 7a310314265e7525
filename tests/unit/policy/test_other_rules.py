"""Replacement, joiners, exchange errors, hardware, risk, and the way back to strength."""

import pytest

from controlplane.policy.config import PolicyConfig
from controlplane.policy.plan import (
    AnnounceView,
    RequestCheckpoint,
    ResolveIncident,
    SetJobState,
    SetNodeState,
    SettleSignals,
    StartReplica,
)
from controlplane.policy.snapshot import LearnedTimes, SaveFact
from controlplane.protocol.states import JobState, NodeState, ReplicaState

from .builders import (
    CONTRIBUTOR,
    NOW_S,
    action,
    actions,
    catching_up,
    change,
    decisions,
    install_of,
    job,
    node,
    only,
    running,
    shrunk,
    signal,
    view_of,
    with_replica,
)

# --- replace -----------------------------------------------------------------------


def test_an_empty_slot_is_started_when_there_are_devices():
    start = action(only(shrunk(spares=1), "replace"), StartReplica)
    assert (start.replica, start.incarnation) == (1, 2)
    assert {p.node_id for p in start.placements} == {"n3"}


def test_an_empty_slot_without_devices_is_explained_once():
    decision = only(shrunk(), "replace")
    assert (decision.choice, decision.reason_code) == ("shrink", "no_spare_left")
    assert decision.actions == ()


@pytest.mark.parametrize(
    ("failed", "age_s", "starts"), [(1, 1.0, False), (1, 3.0, True), (3, 3.0, False), (3, 9.0, True)]
)
def test_failed_starts_wait_twice_as_long_each_time(failed, age_s, starts):
    snapshot = shrunk(spares=1, failed_starts=failed, state_since_s=NOW_S - age_s)
    assert bool(decisions(snapshot, rule="replace")) is starts


def test_a_slot_that_never_comes_up_is_given_up():
    decision = only(shrunk(spares=1, failed_starts=6), "replace")
    assert decision.choice == "give_up"
    assert "not started again" in decision.sentence


def emptied(node):
    """Where replica 2 was, and is proved gone."""
    return (
        change(node, devices=tuple(change(d, free=True, held=False) for d in node.devices)) if node.id == "n2" else node
    )


def test_two_slots_never_get_one_device():
    snapshot = with_replica(shrunk(spares=1), 2, state=ReplicaState.EVICTED, stopped=True, contributing=False)
    view = view_of((0, 1, CONTRIBUTOR), epoch=3)
    snapshot = change(snapshot, view=view, install=install_of(view), nodes=tuple(map(emptied, snapshot.nodes)))
    starts = [s for d in decisions(snapshot, rule="replace") for s in actions(d, StartReplica)]
    slots = [(p.node_id, p.device_index) for s in starts for p in s.placements]
    assert len(slots) == len(set(slots)) == 4


def test_the_devices_of_a_process_not_proved_gone_are_not_given_away():
    snapshot = shrunk(stopped=False)
    ghost = with_replica(snapshot, 2, state=ReplicaState.EVICTED, stopped=True, contributing=False)
    ghost = change(ghost, view=view_of((0, 1, CONTRIBUTOR), epoch=3))
    starts = [s for d in decisions(ghost, rule="replace") for s in actions(d, StartReplica)]
    assert all(p.node_id != "n1" for s in starts for p in s.placements)


@pytest.mark.parametrize("free", [False, True])
def test_where_one_that_is_proved_gone_was_another_may_be_whose_end_is_not_proved(free):
    snapshot = shrunk(stopped=True)
    home = next(node for node in snapshot.nodes if node.id == "n1")
    devices = tuple(change(device, free=free, held=not free) for device in home.devices)
    home = change(home, state=NodeState.READY, devices=devices)
    snapshot = change(snapshot, nodes=tuple(home if node.id == "n1" else node for node in snapshot.nodes))
    starts = [start for decision in decisions(snapshot, rule="replace") for start in actions(decision, StartReplica)]
    assert bool(starts) is free


# --- strength --------------------------------------------------------------------------


def test_full_strength_ends_the_recovery():
    decision = only(running(job=job(state=JobState.RECOVERING)), "strength")
    assert action(decision, SetJobState).to is JobState.RUNNING
    assert actions(decision, ResolveIncident)


def test_a_job_at_strength_is_told_nothing():
    assert decisions(running()) == ()


@pytest.mark.parametrize(("since_s", "back"), [(2.0, False), (6.0, True)])
def test_a_shrunk_job_runs_again_when_it_is_stable(since_s, back):
    found = decisions(shrunk(since_s=since_s), rule="strength")
    assert [d.choice for d in found] == (["shrunk"] if back else [])


def test_a_job_that_can_grow_is_not_done_recovering():
    assert decisions(shrunk(spares=1), rule="strength") == ()


def test_a_joiner_under_way_is_waited_for():
    assert decisions(catching_up(contributing=False), rule="strength") == ()


@pytest.mark.parametrize(
    ("age_s", "in_progress", "over"), [(7.0, False, False), (8.0, False, True), (60.0, True, False)]
)
def test_an_alarm_without_a_recovery_is_over_when_its_save_is_written(age_s, in_progress, over):
    world = change(running(), saves=SaveFact(in_progress=in_progress))
    world = change(world, job=change(world.job, incident_opened_s=NOW_S - age_s))
    assert bool(decisions(world, rule="strength")) is over


def test_history_is_settled_at_full_strength():
    old = signal("rank_exit", replica=1, incarnation=0, rank=0, value=1.0)
    decision = only(running(signals=(old,)), "strength")
    assert action(decision, SettleSignals).signal_ids == ("sig_1",)


def test_a_finding_about_a_replica_that_the_attempt_does_not_have_is_history():
    late = signal("rank_overdue", replica=7, incarnation=4, rank=0, value=30.0)
    assert action(only(running(signals=(late,)), "strength"), SettleSignals).signal_ids == (late.id,)


# --- exchange errors ---------------------------------------------------------------------


def blip(age_s: float = 2.0, **fields):
    error = signal("outer_error", replica=0, incarnation=1, seen_s=NOW_S - age_s)
    return running(signals=(error,), **fields)


def test_a_failed_exchange_with_nobody_dead_is_tried_again():
    decision = only(blip(), "outer_error")
    view = action(decision, AnnounceView).view
    assert view.members == running().view.members
    assert view.epoch == 3
    assert action(decision, SettleSignals).signal_ids == ("sig_1",)


def test_a_death_gets_a_moment_to_explain_it():
    assert decisions(blip(age_s=0.5)) == ()


def test_the_agent_that_could_tell_of_a_death_must_be_back_before_the_same_members_try_again():
    away = tuple(change(n, connected=False) if n.id == "n1" else n for n in blip().nodes)
    assert decisions(change(blip(), nodes=away), rule="outer_error") == ()
    over = tuple(change(n, silent_s=11.0) if n.id == "n1" else n for n in away)
    assert decisions(change(blip(), nodes=over), rule="outer_error"), "it is not waited for beyond its lease"
    spare = tuple(change(n, connected=False) if n.id == "n3" else n for n in blip().nodes)
    assert decisions(change(blip(), nodes=spare), rule="outer_error"), "no member is on that node"


def test_an_error_of_an_older_view_is_history():
    assert decisions(blip(age_s=200.0), rule="outer_error") == ()


def test_a_death_explains_the_error():
    dead = signal("rank_exit", 2, replica=1, incarnation=1, rank=0, value=1.0)
    snapshot = change(blip(), signals=(*blip().signals, dead))
    assert [d.rule for d in decisions(snapshot)] == ["replica_failure"]
    assert "sig_1" in decisions(snapshot)[0].signal_ids


@pytest.mark.parametrize(("before", "again"), [(0, True), (2, True), (3, False)])
def test_the_same_members_are_tried_three_times(before, again):
    assert bool(decisions(blip(reissued_views=before), rule="outer_error")) is again


# --- hardware -----------------------------------------------------------------------------


def xid(number: int, node_id: str = "n3"):
    return running(signals=(signal("xid", node_id=node_id, device_index=0, value=float(number)),))


@pytest.mark.parametrize(
    ("number", "choice", "state"),
    [
        (79, "cordon", NodeState.CORDONED),
        (48, "reset", NodeState.CORDONED),
        (63, "degrade", NodeState.DEGRADED),
        (999, "ask", NodeState.DEGRADED),
    ],
)
def test_an_xid_moves_its_node(number, choice, state):
    decision = only(xid(number), "device_fault")
    assert decision.choice == choice
    assert action(decision, SetNodeState) == SetNodeState(node_id="n3", to=state)
    assert actions(decision, SettleSignals)


@pytest.mark.parametrize("number", [13, 31, 43, 45])
def test_a_programs_xid_is_noted_and_the_node_kept(number):
    decision = only(xid(number), "device_fault")
    assert decision.choice == "note"
    assert actions(decision, SetNodeState) == ()


def test_disagreement_is_flagged():
    assert "gpud" in only(xid(63), "device_fault").sentence


def test_a_fatal_xid_under_a_replica_is_left_open_for_its_eviction():
    found = decisions(xid(79, "n1"))
    evict = next(d for d in found if d.rule == "replica_failure")
    assert actions(evict, SettleSignals)
    assert all(not actions(d, SettleSignals) for d in found if d.rule == "device_fault")


def test_a_cordoned_node_is_not_cordoned_again():
    snapshot = xid(79)
    nodes = tuple(change(n, state=NodeState.CORDONED) if n.id == "n3" else n for n in snapshot.nodes)
    decision = only(change(snapshot, nodes=nodes), "device_fault")
    assert actions(decision, SetNodeState) == ()


def test_correlated_faults_asks_a_person():
    assert only(change(xid(79), suspect_devices=30), "device_fault").choice == "hold"


# --- risk ----------------------------------------------------------------------------------


def risky(node_id: str = "n1", **fields):
    alarm = signal("device_risk", node_id=node_id, device_index=0, value=0.4, threshold=0.3)
    base = {"saves": SaveFact(last_committed_s=NOW_S - 50.0, interval_s=100.0), "signals": (alarm,)} | fields
    return running(**base)


def test_a_risky_device_asks_for_one_save():
    decision = only(risky(), "device_risk")
    assert action(decision, RequestCheckpoint).kind == "emergency"
    assert action(decision, SettleSignals).signal_ids == ("sig_1",)


def test_many_alarms_ask_for_one_save():
    alarms = tuple(
        signal("device_risk", i + 1, node_id=f"n{i}", device_index=0, value=0.4, threshold=0.3) for i in range(3)
    )
    assert len(only(risky(signals=alarms), "device_risk").signal_ids) == 3


@pytest.mark.parametrize(
    ("saves", "code"),
    [
        (SaveFact(last_committed_s=NOW_S - 50.0, in_progress=True), "save_in_progress"),
        (SaveFact(last_committed_s=NOW_S - 50.0, last_emergency_s=NOW_S - 10.0), "cooldown"),
        (SaveFact(last_committed_s=NOW_S - 20.0, interval_s=100.0), "gap_filter"),
    ],
)
def test_a_save_is_refused_with_the_reason(saves, code):
    decision = only(risky(saves=saves), "device_risk")
    assert (decision.choice, decision.reason_code) == ("skip", code)
    assert decision.actions == ()


@pytest.mark.parametrize(("gap_s", "choice"), [(24.0, "skip"), (25.0, "save")])
def test_the_gap_filter_is_a_quarter_of_the_interval(gap_s, choice):
    saves = SaveFact(last_committed_s=NOW_S - gap_s, interval_s=100.0)
    assert only(risky(saves=saves), "device_risk").choice == choice


def test_without_a_save_the_gap_counts_from_the_attempts_start():
    assert only(risky(saves=SaveFact(interval_s=100.0)), "device_risk").choice == "save"


def test_a_fleet_of_alarms_saves_nothing():
    assert only(change(risky(), suspect_devices=11), "device_risk").reason_code == "fleet_cap"


def test_somebody_elses_device_asks_for_nothing():
    assert decisions(risky("n3")) == ()


def test_moving_away_is_offered_with_its_break_even():
    decision = only(change(risky(), learned=LearnedTimes(catch_up_s=11.0, start_replica_s=29.0)), "device_risk")
    evict = next(other for other in decision.alternatives if other.action == "evict")
    assert "26%" in evict.why_not
    assert "unknown" in evict.why_not


def test_a_known_precision_is_told():
    decision = only(risky(), "device_risk", PolicyConfig(risk_precision=0.1))
    assert "10%" in next(other for other in decision.alternatives if other.action == "evict").why_not


def test_a_device_at_risk_evicts_nobody():
    assert decisions(risky(), rule="replica_failure") == ()


def test_the_node_of_a_free_device_is_looked_up_by_id():
    assert "node-1" in only(risky(), "device_risk").sentence
    assert node(1).name == "node-1"
