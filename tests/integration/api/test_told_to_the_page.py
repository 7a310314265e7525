"""What the page needs to know and cannot work out: how long a node is silent, what a fault's value means."""

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from django.test import override_settings

from controlplane.protocol.frames import AgentFrame
from controlplane.protocol.samples import DeviceSample
from controlplane.recovery.reconcile import reconcile_job
from controlplane.runtime import bus
from controlplane.sentinel.fleetmap import FleetMap, NodeInfo
from controlplane.sentinel.heard import Heard
from controlplane.sentinel.live_state import LiveState
from controlplane.sentinel.publishing import Publisher
from tests.integration.backend.builders import make_fleet, make_job


def test_a_picture_of_devices_tells_how_long_its_node_was_not_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, dict[str, Any]] = {}

    def keep(messages: Iterable[tuple[str, dict[str, Any]]]) -> bool:
        told.update({topic: msgspec.json.decode(msgspec.json.encode(message)) for topic, message in messages})
        return True

    monkeypatch.setattr(bus, "publish_volatiles", keep)
    picture = LiveState()
    picture.expect({"n0"}, {("n0", 0)}, {})
    sample = DeviceSample(index=0, temperature_c=61.0)
    picture.take(
        [Heard(node_id="n0", session_id="s", at_s=100.0, frame=AgentFrame(seq=1, uptime_s=1.0, devices=(sample,)))]
    )
    Publisher().tell_devices(picture, FleetMap(nodes={"n0": NodeInfo(name="n0", connected=True)}), 121.5)
    assert {topic: message["silent_s"] for topic, message in told.items()} == {"node:n0": 21.5}
    assert told["node:n0"]["devices"][0]["temperature_c"] == 61.0


@pytest.mark.django_db
@override_settings(HOLDFAST_DEMO=True)
def test_each_fault_with_a_strength_says_what_it_means_and_what_is_taken_without_one(caller: Any) -> None:
    items = {row["kind"]: row for row in caller("read").get("/demo/faults").json()["items"]}
    slow = items["slow_rank"]["value"]
    assert (slow["default"], slow["choices"]) == ("0.5", [])
    assert "0 heals" in slow["label"]
    assert items["kill_backend"]["value"]["choices"] == ["web", "worker", "sentinel", "redis"]
    assert items["kill_rank"]["value"] is None
    assert all("`value`" not in row["description"] for row in items.values())


@pytest.mark.django_db(transaction=True)
def test_a_job_that_waits_says_how_many_devices_it_lacks(caller: Any) -> None:
    fleet = make_fleet(2)
    job = make_job()
    reconcile_job(job.id)
    told = caller("read").get(f"/jobs/{job.id}").json()
    assert told["state"] == "pending"
    assert told["why"].startswith("Waits for devices: 3 replicas of 2 need 6 devices, 4 are free")
    assert told["why"].endswith("It starts when it is its turn and enough healthy devices are free.")
    assert len(fleet.nodes) == 2
