"""Faults of the fleet's hardware are decided without a job, and over when hardware is back."""

import msgspec
import pytest

from controlplane.policy.config import PolicyConfig
from controlplane.policy.fleet import FleetSnapshot, HardwareIncident, decide_fleet
from controlplane.policy.plan import BarDevice, ResetDevice, ResolveIncident, SetNodeState, SettleSignals
from controlplane.protocol.states import IncidentOutcome, IncidentState, Mode, NodeState
from tests.unit.policy.builders import CONFIG, NOW_S, change, decisions, node, running, signal


def world(**fields) -> FleetSnapshot:
    return FleetSnapshot(**({"now_s": NOW_S, "nodes": (node(2),), "fleet_devices": 100} | fields))


def found(kind: str, value: float = 79.0, number: int = 1, **fields):
    return signal(kind, number, node_id="n2", device_index=1, value=value, of_fleet=True, **fields)


def waiting(**fields) -> HardwareIncident:
    base = {
        "id": "inc_1",
        "title": "t",
        "state": IncidentState.MITIGATED,
        "node_id": "n2",
        "devices": (1,),
        "out": True,
    }
    return HardwareIncident(**(base | fields))


@pytest.mark.parametrize(
    ("kind", "value", "choice", "to"),
    [
        ("xid", 79.0, "cordon", NodeState.CORDONED),
        ("device_lost", 1.0, "cordon", NodeState.CORDONED),
        ("xid", 63.0, "degrade", NodeState.DEGRADED),
    ],
)
def test_an_xid_and_a_lost_device_take_the_node_out_without_any_job(kind, value, choice, to):
    (decision,) = decide_fleet(world(signals=(found(kind, value),)), CONFIG)
    assert (decision.rule, decision.choice, decision.routine) == ("device_fault", choice, False)
    node_state, bar, settled = decision.actions
    assert (node_state, settled) == (SetNodeState(node_id="n2", to=to), SettleSignals(signal_ids=("sig_1",)))
    assert isinstance(bar, BarDevice)
    assert (bar.node_id, bar.device_index) == ("n2", 1)
    assert "evice 1 of node-2" in decision.sentence
    assert "evice 1 of node-2" in decision.title


def test_a_finding_on_a_cordoned_node_is_told_all_the_same():
    (decision,) = decide_fleet(
        world(nodes=(node(2, state=NodeState.CORDONED),), signals=(found("device_lost"),)), CONFIG
    )
    assert [type(action) for action in decision.actions] == [BarDevice, SettleSignals]
    assert not decision.routine


def test_a_programs_xid_blames_no_node():
    (decision,) = decide_fleet(world(signals=(found("xid", 13.0),)), CONFIG)
    assert (decision.choice, decision.routine) == ("note", True)


def test_a_storm_is_held_for_a_person_and_decided_anew_when_it_is_over():
    snapshot = world(signals=(found("xid"),), suspect_devices=30)
    opened, held = decide_fleet(snapshot, CONFIG)
    assert (opened.rule, opened.choice, opened.reason_code) == ("breaker", "open", "correlated")
    (then,) = decide_fleet(change(snapshot, suspect_devices=1), CONFIG)
    assert (held.choice, held.actions, then.choice) == ("hold", (), "cordon")
    assert held.key != then.key


def test_a_rule_that_only_recommends_says_so():
    config = PolicyConfig(rule_modes={"device_fault": Mode.RECOMMEND})
    (decision,) = decide_fleet(world(signals=(found("xid"),)), config)
    assert decision.mode is Mode.RECOMMEND


def test_a_risky_device_without_work_is_told():
    (decision,) = decide_fleet(world(signals=(found("device_risk", 0.35, threshold=0.3),)), CONFIG)
    assert (decision.choice, decision.actions) == ("watch", ())
    assert "0.35 (limit 0.30)" in decision.sentence


def test_a_jobs_pass_leaves_the_fleets_findings_to_the_fleet():
    mine = signal("xid", node_id="n3", device_index=0, value=79.0, of_fleet=True)
    assert decisions(running(signals=(mine,)), rule="device_fault") == ()


@pytest.mark.parametrize("state", [NodeState.CORDONED, NodeState.READY], ids=["cordoned", "returned without it"])
def test_an_incident_that_waits_for_hardware_is_not_over_while_that_is_out(state):
    sick = node(2, state=state)
    sick = change(sick, devices=(sick.devices[0], change(sick.devices[1], healthy=False)))
    assert decide_fleet(world(nodes=(sick,), incidents=(waiting(),)), CONFIG) == ()


def test_a_node_that_is_only_marked_stays_so_until_a_person_returns_it():
    incident = waiting(out=False)
    assert decide_fleet(world(nodes=(node(2, state=NodeState.DEGRADED),), incidents=(incident,)), CONFIG) == ()
    (decision,) = decide_fleet(world(incidents=(incident,)), CONFIG)
    assert decision.choice == "resolve"


@pytest.mark.parametrize(
    ("nodes", "incident", "outcome", "said"),
    [
        ((node(2),), waiting(), IncidentOutcome.RECOVERED, "is healthy again."),
        ((node(2, state=NodeState.CORDONED),), waiting(), IncidentOutcome.RECOVERED, "is healthy again"),
        ((), waiting(), IncidentOutcome.MITIGATED, "out of the fleet"),
        ((node(2),), waiting(lost=True), IncidentOutcome.LOST, "healthy again"),
        (
            (node(2, state=NodeState.CORDONED),),
            waiting(state=IncidentState.OPEN, devices=(), refuted=True),
            IncidentOutcome.RECOVERED,
            "gone again",
        ),
    ],
)
def test_it_is_over_when_the_hardware_is_back_or_gone(nodes, incident, outcome, said):
    (decision,) = decide_fleet(world(nodes=nodes, incidents=(incident,)), CONFIG)
    (action,) = decision.actions
    assert isinstance(action, ResolveIncident)
    assert (action.incident_id, action.outcome) == ("inc_1", outcome)
    assert said in decision.sentence


def test_a_thousand_nodes_with_a_finding_each_get_one_decision_each():
    nodes = tuple(node(index) for index in range(1000))
    signals = tuple(
        signal("xid", index, node_id=f"n{index}", device_index=0, value=63.0, of_fleet=True) for index in range(1000)
    )
    made = decide_fleet(world(nodes=nodes, signals=signals, fleet_devices=2000), CONFIG)
    assert len({decision.key for decision in made}) == 1000
    assert {decision.choice for decision in made} == {"degrade"}


def test_a_device_that_waits_for_a_reset_and_is_empty_is_reset_without_any_job():
    waits = change(node(2), devices=tuple(change(d, reset_wanted_s=NOW_S - 5.0) for d in node(2).devices))
    (decision,) = decide_fleet(world(nodes=(waits,)), CONFIG)
    assert decision.actions == (ResetDevice(node_id="n2", device_index=0),)
    (opened,) = decide_fleet(world(nodes=(waits,), suspect_devices=30), CONFIG)
    assert opened.rule == "breaker", "nothing is reset"


def test_an_incident_with_devices_on_two_nodes_is_over_when_those_of_both_are_back():
    incident = waiting(beside=(("n3", (0,)),))
    sick = msgspec.structs.replace(
        node(3),
        devices=tuple(
            msgspec.structs.replace(device, healthy=False) if device.index == 0 else device
            for device in node(3).devices
        ),
    )
    assert decide_fleet(world(nodes=(node(2), sick), incidents=(incident,)), CONFIG) == ()
    (decision,) = decide_fleet(world(nodes=(node(2), node(3)), incidents=(incident,)), CONFIG)
    assert decision.sentence == "Device 1 of node-2 is healthy again; Device 0 of node-3 is healthy again."
    (gone,) = decide_fleet(world(nodes=(node(3),), incidents=(incident,)), CONFIG)
    assert gone.sentence == "Device 0 of node-3 is healthy again.", "what left the fleet is not waited for"


def test_what_came_back_in_a_correlated_failure_is_over_and_what_a_mode_left_in_use_is_not():
    """Nothing was taken out in either. A device that was lost shows that it is back; one that was only to be taken out
    never looked broken."""
    unacted = waiting(state=IncidentState.OPEN)
    (decision,) = decide_fleet(world(nodes=(node(2),), incidents=(unacted,)), CONFIG)
    assert decision.choice == "resolve" and "healthy again" in decision.sentence
    recommends = PolicyConfig(rule_modes={"device_fault": Mode.RECOMMEND})
    assert decide_fleet(world(nodes=(node(2),), incidents=(unacted,)), recommends) == ()
