"""Silence is charged to a node only where we could have heard it, and no clock makes anybody silent."""

from controlplane.runtime.clock import ClockWatch
from controlplane.sentinel.detect import find_silent, mostly_silent
from controlplane.sentinel.fleetmap import FleetMap, JobLimits, NodeInfo
from controlplane.sentinel.live_state import LiveState
from controlplane.sentinel.ourselves import HEAR_AGAIN_S, Deafness
from tests.unit.backend.test_sentinel import heard

HOUR_S = 3600.0


def fleet_of(*nodes: str, web: str = "web1") -> FleetMap:
    """Nodes with ranks of one job, connected to one web process."""
    infos = {node: NodeInfo(name=node, connected=True, session_id=f"{web}.{node}") for node in nodes}
    return FleetMap(nodes=infos, jobs_on={node: {"job_1"} for node in nodes}, limits={"job_1": JobLimits()})


def picture_of(*nodes: str, at_s: float) -> LiveState:
    made = LiveState()
    made.expect(set(nodes), set(), {})
    made.take([heard(node, 1, at_s=at_s) for node in nodes])
    return made


def silent(live_state: LiveState, fleet: FleetMap, now_s: float, excused: frozenset[str] = frozenset()) -> list[str]:
    return [found.node_id for found in find_silent(live_state, fleet, now_s, frame_interval_s=1.0, excused=excused)]


# --- a web process that does not speak ------------------------------------------------------------


def test_the_silence_of_nodes_behind_a_frozen_web_process_is_ours() -> None:
    fleet, live_state, deafness = fleet_of("a", "b", "c"), picture_of("a", "b", "c", at_s=100.0), Deafness()
    sessions = {node: info.session_id for node, info in fleet.nodes.items()}
    excused = deafness.excused(sessions, lambda web: 18.0, moment=1000.0)
    assert excused == {"a", "b", "c"}
    assert silent(live_state, fleet, 118.0) == ["a", "b", "c"]
    assert silent(live_state, fleet, 118.0, excused) == []


def test_after_it_speaks_again_its_nodes_have_a_moment_to_be_heard() -> None:
    deafness, sessions = Deafness(), {"a": "web1.a"}
    assert deafness.excused(sessions, lambda web: 18.0, moment=1000.0)
    assert deafness.excused(sessions, lambda web: 0.1, moment=1000.0 + HEAR_AGAIN_S - 0.1)
    assert not deafness.excused(sessions, lambda web: 0.1, moment=1000.0 + HEAR_AGAIN_S + 0.1)


def test_a_node_behind_a_web_process_that_speaks_is_not_excused() -> None:
    fleet, live_state = fleet_of("a", "b"), picture_of("a", "b", at_s=100.0)
    live_state.take([heard("b", 2, at_s=109.5)])
    excused = Deafness().excused({"a": "web1.a", "b": "web2.b"}, {"web1": 0.4, "web2": 9.0}.get, moment=1.0)
    assert excused == {"b"}
    assert silent(live_state, fleet, 110.0, excused) == ["a"]


def test_a_node_whose_connection_is_gone_is_never_excused() -> None:
    live_state = picture_of("a", at_s=100.0)
    gone = FleetMap(nodes={"a": NodeInfo(name="a", connected=False, session_id="web1.a")}, jobs_on={"a": {"job_1"}})
    assert silent(live_state, gone, 110.0, frozenset({"a"})) == ["a"]


def test_two_nodes_that_fall_silent_at_once_are_our_own_deafness() -> None:
    fleet, live_state = fleet_of("a", "b"), picture_of("a", "b", at_s=100.0)
    assert mostly_silent(live_state, fleet, 110.0, limit_s=2.0)
    live_state.take([heard("b", 2, at_s=109.0)])
    assert not mostly_silent(live_state, fleet, 110.0, limit_s=2.0)
    assert not mostly_silent(picture_of("a", at_s=100.0), fleet_of("a"), 110.0, limit_s=2.0)


# --- the clock --------------------------------------------------------------------------------------


def test_a_step_of_the_wall_clock_is_seen_and_its_steering_is_not() -> None:
    watch = ClockWatch()
    assert watch.look(1000.0, 5.0) == 0.0
    assert watch.look(1010.2, 15.0) == 0.0
    assert round(watch.look(1010.2 - HOUR_S + 1.0, 16.0)) == -HOUR_S
    assert watch.set_s == 1010.2 - HOUR_S + 1.0
    assert watch.look(1010.2 - HOUR_S + 2.0, 17.0) == 0.0


def test_a_clock_that_is_set_back_makes_no_dead_node_heard_and_one_that_is_set_ahead_no_live_one_silent() -> None:
    for step_s in (-HOUR_S, HOUR_S):
        live_state = picture_of("a", at_s=100.0)
        live_state.clock_set(step_s)
        assert live_state.silent_s("a", 130.0 + step_s) == 30.0
        live_state.take([heard("a", 2, at_s=130.0 + step_s)])
        assert live_state.silent_s("a", 130.5 + step_s) == 0.5
