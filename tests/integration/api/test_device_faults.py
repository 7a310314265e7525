"""What can be wrong with a device can be brought about from outside, through the API of a demo."""

from typing import Any

import pytest
from django.test import override_settings

from agents.probes.simulated import FAULTS, SimulatedProbe
from controlplane.api.faults import FAULTS as DEMO_FAULTS
from controlplane.dispatch.models import Command
from controlplane.fleet.models import Device, Node

BUSY = frozenset({0})


@pytest.fixture
def node() -> Node:
    row = Node.objects.create(id="node_1", name="n1", public_key="1" * 43)
    Device.objects.create(id="dev_1", node=row, index=0, uuid="SIM-1", model="Test")
    return row


class Driver:
    """A simulated driver of one busy device, and all that it tells of it."""

    def __init__(self) -> None:
        self.probe, self.now_s = SimulatedProbe(count=1, node_name="n1"), 0.0

    def told(self) -> dict[str, Any]:
        """Ten minutes after it was last asked, sampled each 10 s."""
        for _ in range(60):
            self.now_s += 10.0
            sample = self.probe.sample(self.now_s, BUSY)[0]
        links = self.probe.nvlinks()
        return {
            "hot": (sample.temperature_c or 0.0) > 90.0,
            "present": sample.present,
            "uncorrected": sample.ecc_uncorrected_total,
            "remap": sample.row_remap_pending,
            "throttled": "hw_thermal_slowdown" in sample.throttle_reasons,
            "links": links[0].inactive if links else None,
            "driver": self.probe.devices()[0].driver_version,
            "xids": [event.xid for event in self.probe.xids()],
        }


@pytest.mark.django_db
@override_settings(HOLDFAST_DEMO=True)
@pytest.mark.parametrize(
    ("kind", "value", "seen"),
    [
        ("overheat_device", 97.0, {"hot": True, "throttled": True}),
        ("ecc_errors", 3.0, {"uncorrected": 3, "remap": True}),
        ("ecc_errors", None, {"uncorrected": 1, "remap": True}),
        ("throttle_device", None, {"throttled": True}),
        ("xid", 48.0, {"xids": [48], "uncorrected": 1, "remap": True}),
        ("device_off_bus", None, {"present": False, "xids": [79]}),
        ("cut_nvlink", 4.0, {"links": (4,)}),
        ("old_driver", None, {"driver": "535.104.05"}),
    ],
)
def test_each_fault_of_a_device_changes_what_its_driver_tells_and_heals(
    caller: Any, node: Node, kind: str, value: float | None, seen: dict[str, Any]
) -> None:
    driver = Driver()
    well, told = driver.told(), {}
    assert all(well[name] != expected for name, expected in seen.items()), "it is so by itself"
    for ordered, more in ((kind, {} if value is None else {"value": value}), ("heal_device", {})):
        body = {"kind": ordered, "node_id": node.id, "device_index": 0} | more
        answer = caller("operate").post("/demo/faults", body)
        assert answer.status_code == 202, answer.content
        assert answer.json()["detail"] == f"{DEMO_FAULTS[ordered].title}: device 0 of n1."
        order = Command.objects.get(pk=answer.json()["command_ids"][0]).body
        driver.probe.inject(order["device_index"], order["fault"], order["value"])
        told[ordered] = driver.told()
    assert {name: told[kind][name] for name in seen} == seen
    assert told["heal_device"] == well


@pytest.mark.django_db
@override_settings(HOLDFAST_DEMO=True)
def test_whatever_the_simulated_driver_can_break_can_be_ordered(caller: Any, node: Node) -> None:
    kinds = [row["kind"] for row in caller("read").get("/demo/faults").json()["items"] if "device" in row["needs"]]
    for kind in kinds:
        caller("operate").post("/demo/faults", {"kind": kind, "node_id": node.id, "device_index": 0})
    assert {row.body["fault"] for row in Command.objects.filter(kind="inject_device_fault")} == FAULTS
