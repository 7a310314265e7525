"""`holdfast incident get` and `readings`: a few lines a device of what it read around the fault."""

from typing import Any

import numpy as np
import pytest

from controlplane.cli.exits import Exit
from controlplane.fleet.models import Node
from controlplane.recovery.models import Incident, Signal
from controlplane.runtime.clock import from_s, iso, now_s
from controlplane.telemetry.codec import METRICS, Chunk, quantised
from controlplane.telemetry.services import store_chunks
from tests.integration.cli.conftest import World


@pytest.fixture
def fault_s(world: World) -> float:
    """When device 1 of node-1 gave two uncorrectable errors and stopped computing; it was cut off for 39 s."""
    at_s = round(now_s()) - 300.0
    t_s = at_s - 300 + np.arange(421.0)
    t_s = t_s[(t_s <= at_s - 99) | (t_s >= at_s - 60)]
    values = np.full((len(METRICS), 1, len(t_s)), np.nan)
    values[METRICS.index("ecc_uncorrected_total"), 0] = np.where(t_s > at_s - 2, 2.0, 0.0)
    values[METRICS.index("utilization_ratio"), 0] = np.where(t_s <= at_s, 0.97, 0.0)
    values[METRICS.index("temperature_c"), 0] = 61.0
    store_chunks({Node.objects.get(name="node-1").id: quantised(Chunk(t_s=t_s, devices=[1], values=values))})
    Incident.objects.update(phases=[{"name": "fault", "at": iso(from_s(at_s)), "since_fault_s": 0.0}])
    Signal.objects.update(device_index=1)
    return at_s


def clock(at_s: float) -> str:
    return f"{from_s(at_s):%H:%M:%S}"


def test_an_incident_says_what_changed_on_its_device_and_what_was_not_observed(
    world: World, holdfast: Any, fault_s: float
) -> None:
    result = holdfast("incident", "get", Incident.objects.get().id)
    assert result.code == Exit.OK, result.err
    lines = result.out.split("Device readings around the fault:\n")[1].split("\n\nDecisions:")[0].splitlines()
    assert [line.strip() for line in lines] == [
        f"From {clock(fault_s - 300)} to {clock(fault_s + 120)} UTC; fault at {clock(fault_s)}.",
        "node-1 gpu 1:",
        f"No readings between {clock(fault_s - 99)} and {clock(fault_s - 60)}.",
        f"{clock(fault_s - 1)}  Uncorrectable memory errors rose by 2, to 2 (limit: 1 in 60 s).",
        "before 2, low 0, high 2, after 2",
        f"{clock(fault_s + 1)}  Utilisation fell to 0 %; 97 % before the fault.",
        "before 97 %, low 0 %, high 97 %, after 0 %",
    ]


def test_all_readings_are_listed_or_handed_to_programs(world: World, holdfast: Any, fault_s: float) -> None:
    incident = Incident.objects.get().id
    told = holdfast("incident", "readings", incident).out
    assert "Temperature: before 61 C, low 61 C, high 61 C, after 61 C" in told
    assert "Not reported: Memory temperature, Power, " in told
    answer = holdfast("incident", "readings", incident, "-o", "json").json
    assert answer["devices"][0]["series"]["t"][-1] == fault_s + 120
    assert holdfast("incident", "readings", "inc_x").code == Exit.NOT_FOUND


def test_an_incident_whose_node_sent_nothing_says_so_and_one_without_a_node_asks_nothing(
    world: World, holdfast: Any
) -> None:
    incident = Incident.objects.get().id
    told = holdfast("incident", "get", incident).out
    assert "node-1 gpu 0: Readings are kept for 30 days; those of this time have been deleted." in told
    Signal.objects.update(node=None)
    assert "Device readings" not in holdfast("incident", "get", incident).out
    assert "No finding names a device or a node." in holdfast("incident", "readings", incident).out
