"""Device readings around a fault, held against the raw samples that were put in."""

import time
from datetime import timedelta
from typing import Any

import msgspec
import numpy as np
import pytest
from django.conf import settings
from django.db import connection
from django.test.utils import CaptureQueriesContext

from controlplane.fleet.models import Device, Node
from controlplane.protocol import rest
from controlplane.recovery.around import AFTER_S, MAX_DEVICES, MAX_NODES, MAX_POINTS, choose
from controlplane.recovery.models import Incident, Signal
from controlplane.runtime import bus
from controlplane.runtime.clock import from_s, iso, now_s
from controlplane.runtime.ids import new_id
from controlplane.telemetry.codec import METRICS, Chunk, pack_part, quantised
from controlplane.telemetry.services import store_chunks
from tests.integration.api.conftest import make_node

pytestmark = pytest.mark.django_db
DAY_S = 86_400.0
LARGE_BYTES = 600_000


def incident(fault_s: float, *, detected_s: float | None = None) -> Incident:
    """Of the fleet, with nothing found yet."""
    phases = [{"name": "fault", "at": iso(from_s(fault_s)), "since_fault_s": 0.0}]
    if detected_s is not None:
        phases.append({"name": "detected", "at": iso(from_s(detected_s)), "since_fault_s": detected_s - fault_s})
    return Incident.objects.create(id=new_id("inc"), title="t", opened_at=from_s(fault_s), phases=phases)


def found(of: Incident, node: Node, device: int | None = None, *, kind: str = "node_silent", **more: Any) -> Signal:
    """A finding about the node, or one of its devices."""
    return Signal.objects.create(
        id=new_id("sig"), kind=kind, key=new_id("key"), node=node, device_index=device, incident=of,
        **{"seen_at": of.opened_at, **more},
    )  # fmt: skip


def keep(node: Node, samples: dict[float, dict[int, dict[str, float]]], *, stored: bool = True) -> bytes:
    """{moment: {device: {reading: value}}} as the sentinel packs them."""
    devices = sorted({index for sample in samples.values() for index in sample})
    nothing = float("nan")
    values = [
        [[samples[t].get(index, {}).get(name, nothing) for t in samples] for index in devices] for name in METRICS
    ]
    chunk = Chunk(t_s=np.array(list(samples)), devices=devices, values=np.array(values))
    if stored:
        store_chunks({node.id: quantised(chunk)})
    return pack_part(quantised(chunk))


def asked(caller: Any, of: Incident, query: str = "") -> rest.IncidentReadings:
    answer = caller("read").get(f"/incidents/{of.id}/readings{query}")
    assert answer.status_code == 200, answer.content
    return msgspec.json.decode(answer.content, type=rest.IncidentReadings)


def seconds(begin_s: float, end_s: float) -> list[float]:
    return [begin_s + i for i in range(int(end_s - begin_s) + 1)]


def test_the_values_around_the_fault_are_those_of_the_raw_samples(caller: Any, node: Node) -> None:
    fault_s = round(now_s()) - 400.0
    raw = {
        t: {
            0: {"temperature_c": 60.0 + (i % 7), "utilization_ratio": 0.95 if t <= fault_s else 0.0},
            1: {"temperature_c": 40.0, "ecc_uncorrected_total": float(t > fault_s - 3), "power_w": 300.0 + (i % 5)},
        }
        for i, t in enumerate(seconds(fault_s - 900, fault_s + 390))
        if not fault_s - 60 < t < fault_s - 20
    }
    early = {t: sample for t, sample in raw.items() if t < fault_s - 100}
    keep(node, early)
    keep(node, {t: sample for t, sample in raw.items() if t not in early})
    of = incident(fault_s, detected_s=fault_s + 5)
    found(of, node, 1, kind="xid", value=48.0, evidence={"meaning": "double-bit ECC error"})
    told = asked(caller, of)
    assert [(device.node_name, device.index) for device in told.devices] == [("node-1", 1)]
    assert (told.since, told.fault_at) == (iso(from_s(fault_s - 300)), iso(from_s(fault_s)))
    assert (told.detected_at, told.until) == (iso(from_s(fault_s + 5)), iso(from_s(fault_s + 125)))
    assert told.complete

    (device,) = told.devices
    inside = {t: sample[1] for t, sample in raw.items() if fault_s - 300 <= t <= fault_s + 125}
    for reading in device.readings:
        values = {t: sample[reading.reading] for t, sample in inside.items()}
        assert reading.before == values[fault_s]
        assert (reading.low, reading.high) == (min(values.values()), max(values.values()))
        assert reading.after == values[fault_s + 125]
    assert [reading.reading for reading in device.readings] == ["ecc_uncorrected_total", "temperature_c", "power_w"]
    first = device.readings[0]
    assert (first.level, first.at) == ("limit", iso(from_s(fault_s - 2)))
    assert [(gap.since, gap.until) for gap in device.gaps] == [(iso(from_s(fault_s - 60)), iso(from_s(fault_s - 20)))]
    assert [(seen.xid, seen.meaning) for seen in device.xids] == [(48, "double-bit ECC error")]
    assert device.series is not None
    drawn = dict(zip(device.series.t, device.series.power_w, strict=True))
    assert {t: drawn[t] for t in inside} == {t: sample["power_w"] for t, sample in inside.items()}
    assert [t for t, value in drawn.items() if value is None] == [fault_s - 40]


def test_a_finding_about_a_node_shows_all_its_devices_and_readings_that_are_not_stored_yet(
    caller: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, fault_s = make_node("node-2", devices=3), round(now_s()) - 30.0
    samples = {
        t: {index: {"power_w": 100.0 * (index + 1)} for index in range(3)} for t in seconds(fault_s - 40, fault_s)
    }
    part = keep(node, samples, stored=False)
    monkeypatch.setattr(bus, "read_parts", lambda name: [part] if name == f"pending:{node.id}" else [])
    of = incident(fault_s)
    found(of, node)
    told = asked(caller, of)
    assert [device.index for device in told.devices] == [0, 1, 2]
    assert [device.readings[0].before for device in told.devices] == [100.0, 200.0, 300.0]
    assert [device.readings[0].after for device in told.devices] == [None] * 3
    assert not told.complete
    before, after = told.devices[0].gaps
    assert (before.since, before.until) == (told.since, iso(from_s(fault_s - 40)))
    assert after.since == iso(from_s(fault_s))


def test_a_node_that_sent_nothing_and_readings_that_are_kept_no_more_are_told_apart(caller: Any, node: Node) -> None:
    silent, old = (
        incident(now_s() - AFTER_S - 2 * settings.CHUNK_S),
        incident(now_s() - (settings.RETENTION_DAYS + 1) * DAY_S),
    )
    for of in (silent, old):
        found(of, node, 0)
    told = asked(caller, silent)
    (device,) = told.devices
    assert not told.awaited
    assert device.note == "node-1 sent no readings of device 0 in this time."
    assert (device.readings, device.series, len(device.gaps)) == ([], None, 1)
    (device,) = asked(caller, old).devices
    assert device.note == "Readings are kept for 30 days; those of this time have been deleted."


def test_readings_that_are_not_there_yet_are_awaited_until_they_should_be_there(caller: Any, node: Node) -> None:
    for age_s, awaited in (
        (0.0, True),
        (AFTER_S + 0.5 * settings.CHUNK_S, True),
        (AFTER_S + 2 * settings.CHUNK_S, False),
    ):
        of = incident(now_s() - age_s)
        found(of, node, 0)
        told = asked(caller, of)
        assert told.awaited is awaited, age_s
        (device,) = told.devices
        wanted = (
            "No readings of device 0 of node-1 are there yet; what it sent comes within seconds, without Redis within"
        )
        assert device.note.startswith(wanted) is awaited


def test_an_incident_without_a_node_has_no_devices_and_a_broken_exchange_names_none(caller: Any, node: Node) -> None:
    of = incident(now_s() - 500.0)
    assert asked(caller, of).devices == []
    found(of, make_node("node-7"), kind="outer_error")
    found(of, node, 1, kind="rank_exit")
    assert [(device.node_name, device.index) for device in asked(caller, of).devices] == [("node-1", 1)]
    assert caller("read").get("/incidents/inc_nobody/readings").status_code == 404


@pytest.mark.parametrize("query", ["?max_points=1", "?max_points=2001", "?max_points=x"])
def test_points_are_bounded(caller: Any, query: str) -> None:
    answer = caller("read").get(f"/incidents/{incident(now_s()).id}/readings{query}")
    assert answer.status_code == 422
    assert answer["Content-Type"] == "application/problem+json"
    assert answer.json()["errors"][0]["pointer"] == "/query/max_points"


def test_hours_until_detection_are_shown_in_part(caller: Any, node: Node) -> None:
    fault_s = now_s() - 5 * DAY_S
    of = incident(fault_s, detected_s=fault_s + DAY_S)
    found(of, node, 0)
    told = asked(caller, of)
    assert told.until == iso(from_s(fault_s - 300 + 7200))


def test_of_many_nodes_the_first_are_shown_each_with_its_first_devices() -> None:
    places = [("b", 3), *((name, None) for name in "acdefg")]
    listed = {name: list(range(8)) for name in "acd"}
    shown = choose(places, listed, nodes=7)
    assert len(shown.devices) == MAX_DEVICES
    assert list(dict.fromkeys(node for node, _ in shown.devices)) == ["b", "a", "c", "d"]
    assert shown.devices[0] == ("b", 3)
    assert (shown.nodes_left_out, shown.devices_left_out) == (7 - MAX_NODES, 25 - MAX_DEVICES)


def crowd(count: int) -> Incident:
    """An incident that names so many nodes of eight devices, of which the first four have a history."""
    fault_s = round(now_s()) - 300.0
    of = incident(fault_s)
    nodes = Node.objects.bulk_create(
        Node(id=new_id("node"), name=f"gpu-{count}-{i:04}", public_key=new_id("crd"), connected=True)
        for i in range(count)
    )
    Device.objects.bulk_create(
        Device(id=new_id("dev"), node=row, index=i, uuid=f"GPU-{row.name}-{i}", model="Toy", driver="simulated")
        for row in nodes
        for i in range(8)
    )
    Signal.objects.bulk_create(
        Signal(
            id=new_id("sig"), kind="rank_exit", key=new_id("key"), node=row, device_index=i, incident=of,
            seen_at=of.opened_at + timedelta(milliseconds=at),
        )
        for at, row in enumerate(nodes)
        for i in range(8)
    )  # fmt: skip
    values = np.random.default_rng(1).random((len(METRICS), 8, 420)) * 1e6
    for row in nodes[:4]:
        store_chunks(
            {row.id: quantised(Chunk(t_s=fault_s - 300 + np.arange(420.0), devices=list(range(8)), values=values))}
        )
    return of


def test_an_incident_of_a_thousand_nodes_costs_as_many_queries_as_one_of_one(caller: Any) -> None:
    reader, costs = caller("read"), []
    for count in (1, 200, 1_000):
        of = crowd(count)
        reader.get(f"/incidents/{of.id}/readings")
        began = time.process_time()
        with CaptureQueriesContext(connection) as queries:
            answer = reader.get(f"/incidents/{of.id}/readings")
        took_s = time.process_time() - began
        told = msgspec.json.decode(answer.content, type=rest.IncidentReadings)
        costs.append(len(queries))
        assert len(told.devices) == MAX_DEVICES
        assert told.nodes_left_out == max(0, count - MAX_NODES)
        assert told.devices_left_out == min(count, MAX_NODES) * 8 - MAX_DEVICES
        assert all(device.series is not None and len(device.series.t) <= MAX_POINTS for device in told.devices)
        assert len(answer.content) < LARGE_BYTES
        assert took_s < 2.0
    assert costs == [costs[0]] * 3
    assert told.note == "Not shown: 24 more devices and 996 more nodes that the findings name."
