"""Nothing is concluded from evidence that is stale, postponed, second-hand or of another clock."""

import pytest

from controlplane.policy.bars import standing
from controlplane.policy.clock import on_one_clock
from controlplane.policy.deadlines import next_pass_s
from controlplane.policy.failures import find_failures
from controlplane.policy.plan import SettleSignals
from controlplane.policy.snapshot import BarFact, JobSnapshot
from controlplane.protocol.states import Mode, ReplicaState

from .builders import (
    CONFIG,
    CONTRIBUTOR,
    JOINER,
    NOW_S,
    action,
    change,
    decisions,
    flush,
    job,
    node,
    only,
    running,
    signal,
    spec,
    view_of,
    with_replica,
)

HOUR_S = 3600.0


# --- late once ------------------------------------------------------------------------------


def late(seen_s: float, **fields):
    evidence = {"silent_s": 7.0, "phase": "compute", **fields}
    return signal(
        "rank_overdue", replica=1, incarnation=1, rank=1, value=7.0, threshold=5.0, seen_s=seen_s, evidence=evidence
    )


def trains(snapshot: JobSnapshot) -> bool:
    return [d.rule for d in decisions(snapshot) if d.rule != "void"] == []


def test_a_rank_that_was_late_once_and_trains_again_is_not_evicted():
    snapshot = running(job=job(progressed_s=NOW_S - 1.0), signals=(late(NOW_S - 120.0),))
    assert trains(snapshot)
    assert action(only(snapshot, "void"), SettleSignals).signal_ids == ("sig_1",)


def test_a_rank_that_is_late_and_has_not_moved_since_is_evicted():
    snapshot = running(job=job(progressed_s=NOW_S - 8.0), signals=(late(NOW_S - 1.0),))
    assert only(snapshot, "replica_failure").reason_code == "hang"
    assert decisions(snapshot, rule="void") == ()


@pytest.mark.parametrize(
    "began_s, stays", [(NOW_S - 0.5, True), (NOW_S - 3.0, True), (NOW_S - 6.5, False), (NOW_S - 8.0, False)]
)
def test_a_rank_that_has_gone_on_to_another_phase_is_late_no_more(began_s: float, stays: bool):
    """Found a second ago, when it had sat there for seven. Either word may have come 1.5 s late, or two."""
    snapshot = running(job=job(progressed_s=NOW_S - 8.0), signals=(late(NOW_S - 1.0, phase_since_s=began_s),))
    assert trains(snapshot) is stays


@pytest.mark.parametrize(
    "read_s, stays", [(NOW_S - 13.5, True), (NOW_S - 10.5, False), (NOW_S - 0.5, False), (None, False)]
)
def test_what_came_late_over_a_lost_link_ends_nobody_before_its_agent_has_spoken_again(
    read_s: float | None, stays: bool
):
    """Found 10 s ago, told now. Where nothing is read of ranks it counts at once, as before."""
    found = late(NOW_S - 10.0, phase_since_s=NOW_S - 17.0, read_s=read_s)
    snapshot = running(job=job(progressed_s=NOW_S - 30.0), signals=(found,))
    assert trains(snapshot) is stays
    assert decisions(snapshot, rule="void") == (), "it may still be true"


@pytest.mark.parametrize(
    ("read_s", "began_s", "stays", "is_settled"),
    [
        (NOW_S - 28.0, NOW_S - 32.0, True, False),
        (NOW_S - 0.5, NOW_S - 332.0, False, False),
        (NOW_S - 0.5, NOW_S - 1.0, True, True),
    ],
)
def test_what_a_clock_that_has_leapt_dates_is_judged_by_when_it_came(
    read_s: float, began_s: float, stays: bool, is_settled: bool
):
    """Found 25 s ago, kept while no server was there; then its machine's clock leapt by 300 s. What was read before
    it came neither clears the rank nor condemns it."""
    found = change(late(NOW_S - 325.0, phase_since_s=began_s, read_s=read_s, step=40), came_s=NOW_S - 0.5)
    snapshot = running(job=job(progressed_s=NOW_S - 32.0, committed_step=40), signals=(found,))
    assert trains(snapshot) is stays
    assert bool(decisions(snapshot, rule="void")) is is_settled


def test_a_step_that_was_told_late_does_not_clear_the_rank_that_stands_in_it():
    """Who told of it had no agent when it was committed. One step more, and no word can be that late."""
    found = late(NOW_S - 6.0, phase_since_s=NOW_S - 13.0, step=40)
    told = running(job=job(progressed_s=NOW_S - 5.0, committed_step=41), signals=(found,))
    assert only(told, "replica_failure").reason_code == "hang"
    assert decisions(told, rule="void") == ()
    just_now = running(job=job(progressed_s=NOW_S - 1.0, committed_step=41), signals=(found,))
    assert trains(just_now), "its agent's next word decides"
    assert decisions(just_now, rule="void") == ()
    beyond = running(job=job(progressed_s=NOW_S - 5.0, committed_step=42), signals=(found,))
    assert trains(beyond)
    assert only(beyond, "void")


@pytest.mark.parametrize("hold", ["blind", "storm", "observe"])
def test_when_a_hold_ends_the_facts_of_that_moment_count(hold: str):
    found = late(NOW_S - 50.0)
    holds = {
        "blind": {"blind": True},
        "storm": {"suspect_devices": 60, "suspect_nodes": ("n1", "n2", "n3")},
        "observe": {"job": job(spec=spec(resiliency=change(spec().resiliency, mode=Mode.OBSERVE)))},
    }
    during = running(signals=(found,), **holds[hold])
    assert [d for d in decisions(during) if d.actions and d.mode is Mode.ENFORCE] == []
    assert trains(running(job=job(progressed_s=NOW_S - 0.5), signals=(found,)))


def test_a_joiner_that_is_in_no_view_is_not_cleared_by_the_steps_of_others():
    view = view_of((0, 1, CONTRIBUTOR), (2, 1, CONTRIBUTOR))
    snapshot = running(view=view, job=job(progressed_s=NOW_S - 1.0), signals=(late(NOW_S - 2.0),))
    snapshot = with_replica(snapshot, 1, state=ReplicaState.FORMING, in_view=False, contributing=False, joined_ranks=1)
    assert only(snapshot, "replica_failure").reason_code == "hang"


def test_a_process_that_was_stopped_and_speaks_again_is_excused_while_it_waits():
    snapshot = running(job=job(progressed_s=NOW_S - 8.0), signals=(late(NOW_S - 1.0),))
    assert trains(with_replica(snapshot, 1, waiting=True, silent_s=0.3))
    assert not trains(with_replica(snapshot, 1, waiting=True, silent_s=6.0))


def test_a_setup_that_was_late_and_has_come_up_is_no_failure():
    found = signal("setup_timeout", replica=1, incarnation=1, rank=0, value=700.0, threshold=600.0)
    snapshot = with_replica(running(signals=(found,)), 1, state=ReplicaState.FORMING, in_view=True)
    assert decisions(snapshot, rule="replica_failure") == ()


@pytest.mark.parametrize(("reason", "stays"), [("", False), ("unfit", True)])
def test_a_start_of_which_nobody_spoke_in_time_is_no_failure_once_all_of_it_is_up(reason: str, stays: bool):
    found = signal("setup_timeout", replica=1, incarnation=1, value=30.0, threshold=30.0, evidence={"reason": reason})
    settled = decisions(running(signals=(found,)), rule="void")
    assert [d.sentence for d in settled] == (
        [] if stays else ["The finding setup_timeout is void: replica 1 has come up since."]
    )


def silent_in_its_first_view(**fields):
    evidence = {"silent_s": 30.0, "phase": "view_change", "section": "setup", "step": 0, **fields}
    return signal(
        "setup_timeout",
        replica=1,
        incarnation=1,
        rank=1,
        value=30.0,
        threshold=30.0,
        seen_s=NOW_S - 1.0,
        evidence=evidence,
    )


def test_who_came_up_before_it_fell_silent_in_its_first_view_is_not_cleared_by_that():
    """It is to join, and all others wait for it to build their groups."""
    snapshot = running(job=job(progressed_s=NOW_S - 31.0), signals=(silent_in_its_first_view(),))
    snapshot = with_replica(snapshot, 1, state=ReplicaState.CATCHING_UP, contributing=False, silent_s=31.0)
    assert decisions(snapshot, rule="void") == ()
    assert only(snapshot, "replica_failure").reason_code == "hang"


def test_who_goes_on_after_it_was_silent_in_its_first_view_is_late_no_more():
    found = silent_in_its_first_view(phase_since_s=NOW_S - 0.5)
    snapshot = running(job=job(progressed_s=NOW_S - 31.0), signals=(found,))
    snapshot = with_replica(snapshot, 1, state=ReplicaState.CATCHING_UP, contributing=False)
    assert trains(snapshot)
    assert (
        only(snapshot, "void").sentence
        == "The finding setup_timeout is void: rank 1 of replica 1 has trained on since."
    )


# --- a storm --------------------------------------------------------------------------------


def eight(*silent: int, segments: tuple[str, ...] = ("",)) -> JobSnapshot:
    """A fleet of 6 nodes of 8 devices; these are silent beyond their lease."""
    found = tuple(signal("node_silent", i, node_id=f"n{i}", value=30.0, threshold=2.0) for i in silent)
    snapshot = running(
        signals=found,
        job=job(progressed_s=NOW_S - 30.0),
        suspect_devices=8 * len(silent),
        suspect_nodes=tuple(f"n{i}" for i in silent),
        fleet_devices=48,
    )
    nodes = tuple(change(node(i, free=i > 2, devices=8), segment=segments[i % len(segments)]) for i in range(6))
    return change(
        snapshot,
        nodes=tuple(change(n, connected=False, silent_s=30.0) if n.id in snapshot.suspect_nodes else n for n in nodes),
    )


def test_one_silent_node_of_eight_devices_is_no_storm():
    assert [d.reason_code for d in decisions(eight(1), rule="replica_failure")] == ["node_silent"]


def test_two_silent_nodes_are_a_storm_that_a_person_is_asked_about():
    assert only(eight(1, 2), "replica_failure").choice == "hold"


def test_what_one_failure_domain_takes_along_is_one_event():
    assert decisions(eight(0, 2, segments=("a", "b")), rule="replica_failure")[0].choice != "hold"
    assert only(eight(0, 1, segments=("a", "b")), "replica_failure").choice == "hold"


# --- who is named ---------------------------------------------------------------------------


def silent(index: int):
    return signal("node_silent", index, node_id=f"n{index}", value=2.5, threshold=2.0)


def error(by: int, *, names: int | None = None):
    evidence = {} if names is None else {"suspect_replica": names}
    return signal("outer_error", 10 + by, replica=by, incarnation=1, seen_s=NOW_S - 0.5, evidence=evidence)


def left_out(snapshot: JobSnapshot) -> list[str]:
    found = decisions(snapshot)
    assert [d for d in found if d.rule not in ("leave_out", "void", "outer_error")] == []
    return [d.key.split(":")[3] for d in found if d.rule == "leave_out"]


def test_an_exchange_error_that_names_one_takes_no_other_along_that_missed_two_frames():
    assert left_out(running(signals=(silent(1), silent(2), error(0, names=1)))) == ["1.1"]


def test_a_second_silent_node_needs_evidence_of_its_own():
    assert left_out(running(signals=(silent(1), silent(2), error(0)))) == []


def test_who_tells_of_the_failed_exchange_itself_is_not_the_one_that_broke_it():
    assert left_out(running(signals=(silent(1), silent(2), error(0), error(2)))) == ["1.1"]


# --- waits that outlasted their limits while we were away -------------------------------------


def overdue(kind: str, **home: object) -> JobSnapshot:
    """The server was away for an hour, and sees again: what replica 1 did meanwhile its agent has not told yet."""
    if kind == "unflushed":
        world = running(view_since_s=NOW_S - HOUR_S, install=None, installed_s=None)
        world = change(world, flushes=tuple(flush(i, rank) for i in (0, 2) for rank in range(2)))
    else:
        state = ReplicaState.FORMING if kind == "setup_timeout" else ReplicaState.CATCHING_UP
        world = with_replica(
            running(), 1, state=state, contributing=False, joined_ranks=1, in_view=False, state_since_s=NOW_S - HOUR_S
        )
    return change(world, nodes=tuple(change(n, **home) if n.id == "n1" else n for n in world.nodes))


@pytest.mark.parametrize("kind", ["unflushed", "setup_timeout", "catch_up_timeout"])
def test_how_long_a_wait_lasted_says_nothing_before_its_node_is_heard(kind: str):
    for away in ({"connected": False, "silent_s": 4.0}, {"silent_s": None}):
        assert find_failures(overdue(kind, **away), CONFIG) == ()
        due_s = next_pass_s(overdue(kind, **away), CONFIG, changed=False)
        assert due_s is not None and due_s <= NOW_S + CONFIG.capacity_retry_s
    assert [f.kind for f in find_failures(overdue(kind), CONFIG)] == [kind]
    lost = overdue(kind, connected=False, silent_s=HOUR_S)
    assert [f.replica.index for f in find_failures(lost, CONFIG)] == [1], "its lease is over"


# --- the server's clock ---------------------------------------------------------------------


def dead(**fields) -> JobSnapshot:
    """Node 1 is silent for 30 s by a monotonic clock, its connection is gone."""
    found = signal("node_silent", node_id="n1", value=30.0, threshold=2.0, seen_s=NOW_S - 28.0)
    snapshot = running(**({"signals": (found,), "job": job(progressed_s=NOW_S - 30.0)} | fields))
    return change(snapshot, nodes=tuple(change(n, connected=False) if n.id == "n1" else n for n in snapshot.nodes))


@pytest.mark.parametrize("known", [True, False], ids=["the step was seen", "nobody saw the step"])
def test_a_clock_that_is_set_back_an_hour_leaves_no_dead_node_unevicted(known: bool):
    old_s = NOW_S + HOUR_S
    found = signal("node_silent", node_id="n1", value=30.0, threshold=2.0, seen_s=old_s - 28.0)
    snapshot = dead(
        signals=(found,), job=job(progressed_s=old_s - 30.0), view_since_s=old_s - 100.0, installed_s=old_s - 99.0
    )
    if known:
        snapshot = change(snapshot, clock_set_s=NOW_S - 5.0, clock_step_s=-HOUR_S)
    assert only(snapshot, "replica_failure").reason_code == "node_silent"


def test_a_clock_that_is_set_an_hour_ahead_evicts_no_joiner():
    view = view_of((0, 1, CONTRIBUTOR), (1, 1, JOINER), (2, 1, CONTRIBUTOR))
    joins = with_replica(
        running(view=view), 1, state=ReplicaState.CATCHING_UP, contributing=False, state_since_s=NOW_S - HOUR_S - 5.0
    )
    assert decisions(joins, rule="replica_failure") != ()
    moved = change(joins, clock_set_s=NOW_S - 2.0, clock_step_s=HOUR_S)
    assert decisions(moved, rule="replica_failure") == ()


def test_the_order_of_what_happened_survives_a_step_of_the_clock():
    found = late(NOW_S - HOUR_S - 40.0)
    moved = running(job=job(progressed_s=NOW_S - HOUR_S - 30.0), signals=(found,))
    assert trains(change(moved, clock_set_s=NOW_S - 2.0, clock_step_s=HOUR_S))
    stuck = running(job=job(progressed_s=NOW_S - HOUR_S - 50.0), signals=(found,))
    assert not trains(change(stuck, clock_set_s=NOW_S - 2.0, clock_step_s=HOUR_S))


@pytest.mark.parametrize("step_s", [-HOUR_S, HOUR_S])
@pytest.mark.parametrize("age_s, stands", [(600.0, True), (CONFIG.bar_s + 10.0, False)])
def test_a_place_is_barred_for_an_hour_whatever_the_clock_does(step_s: float, age_s: float, stands: bool):
    before_s = NOW_S - age_s - step_s
    world = change(
        running(),
        bars=(BarFact(node_id="node-1", device_index=0, code=201, since_s=before_s),),
        nodes=(node(1, warmed_s=before_s, warm_asked_s=before_s),),
        clock_set_s=NOW_S - 2.0,
        clock_step_s=step_s,
    )
    moved = on_one_clock(world)
    assert bool(standing(moved, CONFIG)) is stands
    assert (moved.nodes[0].warmed_s, moved.nodes[0].warm_asked_s) == (NOW_S - age_s, NOW_S - age_s)


def test_a_failed_exchange_is_of_its_view_by_its_epoch_whatever_the_clock_was_set_to():
    """The view was announced before the clock was set back by so much that the failure seems to be from before it."""
    error = signal("outer_error", replica=1, incarnation=1, rank=0, seen_s=NOW_S - 200.0, evidence={"epoch": 2})
    snapshot = running(job=job(incident_opened_s=NOW_S - 2.0), view_since_s=NOW_S - 100.0, signals=(error,))
    assert decisions(snapshot, rule="strength") == (), "nothing is over"
    assert only(snapshot, "outer_error").choice == "reissue_view"
    earlier = change(error, seen_s=NOW_S - 50.0, evidence={"epoch": 1})
    assert decisions(change(snapshot, signals=(earlier,)), rule="outer_error") == ()
