"""Every XID of the catalogue has its act, repeats count, and devices are reset when they are empty."""

import csv
import io
from importlib import resources

import pytest

from controlplane.policy.config import PolicyConfig
from controlplane.policy.plan import BarDevice, ResetDevice, SetNodeState, SettleSignals
from controlplane.policy.readings import READINGS
from controlplane.policy.rules import device_fault
from controlplane.policy.snapshot import DeviceFact
from controlplane.policy.xid import XidBucket, judge, known_xids, look_up
from controlplane.protocol.states import NodeState
from tests.unit.policy.builders import NOW_S, action, actions, change, decisions, node, only, running, signal

ROWS = {
    int(row["xid"]): row
    for row in csv.DictReader(
        io.StringIO(resources.files("controlplane.policy.data").joinpath("xid_catalog.csv").read_text())
    )
}
CHOICE = {
    XidBucket.FATAL: "cordon",
    XidBucket.RESET: "reset",
    XidBucket.SUPPORT: "ask",
    XidBucket.DEGRADED: "degrade",
    XidBucket.APPLICATION: "note",
    XidBucket.IGNORE: "note",
}


def found(number: int, **evidence):
    """An XID on a device of a node without work."""
    return running(signals=(signal("xid", node_id="n3", device_index=0, value=float(number), evidence=evidence),))


@pytest.mark.parametrize("number", known_xids())
def test_each_code_has_its_act(number):
    decision = only(found(number), "device_fault")
    bucket = look_up(number).bucket
    assert decision.choice == CHOICE[bucket]
    barred = actions(decision, BarDevice)
    if decision.choice == "note":
        assert not barred
        assert actions(decision, SetNodeState) == ()
        return
    assert [(bar.node_id, bar.device_index, bar.reset) for bar in barred] == [("n3", 0, bucket is XidBucket.RESET)]
    out = bucket in (XidBucket.FATAL, XidBucket.RESET)
    assert action(decision, SetNodeState).to == (NodeState.CORDONED if out else NodeState.DEGRADED)
    if ROWS[number]["nvidia_immediate"] == "CONTACT_SUPPORT":
        assert barred[0].ask, "a person is asked"
        assert barred[0].ask in decision.sentence


def test_an_unlisted_xid_takes_no_new_work_and_a_person_is_asked():
    assert look_up(4242).bucket is XidBucket.SUPPORT
    assert look_up(4242).ask


def test_all_codes_for_which_nvidia_wants_a_reset_get_one_and_contact_support_is_never_placeable():
    for number, row in ROWS.items():
        if row["nvidia_immediate"] == "RESET_GPU":
            assert look_up(number).bucket is XidBucket.RESET, number
        if row["nvidia_immediate"] == "CONTACT_SUPPORT":
            assert look_up(number).accuses, number
            assert look_up(number).ask, number


@pytest.mark.parametrize("number", [167, 169, 173])
def test_where_only_gpud_speaks_and_wants_a_reboot_the_node_leaves_service(number):
    assert look_up(number).bucket is XidBucket.FATAL
    assert "reboot" in look_up(number).ask


@pytest.mark.parametrize(
    ("detail", "bucket"),
    [
        ("", "reset"),
        ("GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", "reset"),
        ("GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)", "fatal"),
        ("GPU recovery action changed from 0x0 (None) to 0x3 (Drain P2P)", "degraded"),
        ("GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)", "reset"),
        ("GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", "ignore"),
    ],
)
def test_the_drivers_own_reset_required_is_acted_upon(detail, bucket):
    assert judge(154, detail=detail).bucket == bucket
    assert only(found(154, detail=detail), "device_fault").reason_code in (f"device_{bucket}", bucket)


@pytest.mark.parametrize(
    ("number", "repeats", "elsewhere", "bucket"),
    [
        (94, 1, 0, "application"),
        (94, 2, 0, "reset"),
        (31, 2, 0, "application"),
        (31, 3, 0, "degraded"),
        (31, 3, 1, "degraded"),
        (31, 50, 2, "application"),
        (63, 2, 0, "degraded"),
        (63, 3, 0, "support"),
        (48, 2, 0, "reset"),
        (48, 3, 0, "fatal"),
        (79, 9, 0, "fatal"),
        (43, 99, 0, "ignore"),
    ],
)
def test_repeats_on_one_device_make_it_worse_and_a_program_that_fails_everywhere_is_the_program(
    number, repeats, elsewhere, bucket
):
    verdict = judge(number, repeats=repeats, elsewhere=elsewhere)
    assert verdict.bucket == bucket
    decision = only(found(number, repeats=repeats, elsewhere=elsewhere), "device_fault")
    assert decision.evidence["repeats"] == repeats
    assert judge(number, repeats=repeats, overrides={number: "ignore"}).bucket is XidBucket.IGNORE


@pytest.mark.parametrize("name", sorted(READINGS))
def test_each_reading_has_its_rule_and_its_numbers_are_in_the_evidence(name):
    limit = READINGS[name]
    raised = signal(
        "device_reading", node_id="n3", device_index=1, value=limit.value + 1, threshold=limit.value,
        evidence={"reading": name, "temperature_c": 61.0},
    )  # fmt: skip
    decision = only(running(signals=(raised,)), "device_fault")
    assert decision.choice == CHOICE[limit.bucket]
    assert action(decision, BarDevice).device_index == 1
    assert action(decision, SettleSignals)
    assert decision.evidence["temperature_c"] == 61.0
    assert (decision.evidence["value"], decision.evidence["limit"]) == (limit.value + 1, limit.value)
    assert limit.what in decision.sentence
    assert limit.source in decision.sentence


def test_a_reading_ends_no_replica():
    raised = signal(
        "device_reading",
        node_id="n1",
        device_index=0,
        value=1.0,
        threshold=1.0,
        evidence={"reading": "ecc_uncorrected"},
    )
    assert decisions(running(signals=(raised,)), rule="replica_failure") == ()


def test_a_fatal_code_under_a_replica_bars_the_device_in_the_pass_that_evicts():
    snapshot = running(signals=(signal("xid", node_id="n1", device_index=0, value=48.0),))
    all_of_it = decisions(snapshot)
    assert any(d.rule == "replica_failure" for d in all_of_it)
    bars = [bar for d in all_of_it for bar in actions(d, BarDevice)]
    assert [(bar.node_id, bar.reset) for bar in bars] == [("n1", True)]


def waiting(*, held: bool = False, connected: bool = True, **fields):
    """A running job beside a node whose two devices wait for a reset."""
    snapshot = running(**fields)
    nodes = []
    for one in snapshot.nodes:
        if one.id == "n3":
            devices = tuple(
                DeviceFact(
                    index=i, uuid=f"u{i}", free=not held, held=held, healthy=False, reset_wanted_s=NOW_S - 9.0 + i
                )
                for i in range(2)
            )
            one = change(one, devices=devices, connected=connected, state=NodeState.CORDONED)
        nodes.append(one)
    return change(snapshot, nodes=tuple(nodes))


def test_an_empty_device_that_waits_is_reset_one_of_a_node_at_a_time():
    decision = only(waiting(), "device_fault")
    assert action(decision, ResetDevice) == ResetDevice(node_id="n3", device_index=0)


def test_a_device_in_use_or_out_of_reach_or_in_a_storm_is_not_reset():
    for snapshot in (waiting(held=True), waiting(connected=False), waiting(suspect_devices=40, fleet_devices=50)):
        assert decisions(snapshot, rule="device_fault") == ()


@pytest.mark.parametrize("nodes", [100, 1_000])
def test_of_a_whole_fleet_that_waits_only_the_governors_share_is_reset_in_a_pass_the_longest_waiting_first(nodes):
    def device(number):
        since_s = NOW_S - number
        return DeviceFact(index=0, uuid=f"u{number}", free=True, healthy=False, reset_wanted_s=since_s)

    fleet = tuple(node(number, free=True, devices=0) for number in range(nodes))
    fleet = tuple(change(one, devices=(device(number),)) for number, one in enumerate(fleet))
    snapshot = change(running(), nodes=fleet, fleet_devices=nodes, acts_last_window=5)
    found = [d for d in device_fault.rule(snapshot, PolicyConfig()) if d.choice == "reset_device"]
    assert [d.actions[0].node_id for d in found] == [f"n{nodes - 1 - i}" for i in range(15)]


def test_the_rule_judges_findings_and_resets_without_a_job():
    snapshot = change(waiting(signals=(signal("xid", node_id="n3", device_index=0, value=63.0),)), attempt=None)
    found = device_fault.rule(snapshot, PolicyConfig())
    assert [d.choice for d in found] == ["degrade", "reset_device"]
