"""What a device has until it is replaced is told once, and not again by each sentinel that starts anew."""

import pytest

from controlplane.fleet.models import Device
from controlplane.protocol.samples import DeviceSample
from controlplane.recovery import signals
from controlplane.recovery.fleet_pass import reconcile_fleet
from controlplane.recovery.models import Incident, Signal
from controlplane.runtime import events
from controlplane.sentinel import scan
from controlplane.sentinel.fleetmap import read_map
from controlplane.sentinel.readings import FLAGS, Watch
from tests.integration.backend.builders import make_fleet

pytestmark = pytest.mark.django_db
RAISED = {"row_remap_failure": True, "row_remap_pending": True, "retired_pages_total": 100}


def look(node_id: str, **readings: object) -> None:
    """A sentinel that has just started sees the device."""
    watch, where = Watch(), read_map()
    watch.take(node_id, DeviceSample(index=1, **readings), 0.0)  # type: ignore[arg-type]
    for found in watch.news():
        scan.tell_reading(found, where, events.unit_of_work)


@pytest.mark.parametrize("field", sorted(RAISED))
def test_a_device_that_is_out_for_it_is_no_new_incident_for_the_next_sentinel(field: str) -> None:
    node = make_fleet().nodes["n1"]
    look(node.pk, **{field: RAISED[field]})
    reconcile_fleet()
    assert not Device.objects.get(node=node, index=1).healthy
    signals.settle(list(Signal.objects.filter(settled_at=None)), "a person has it")
    before = Incident.objects.count()
    look(node.pk, **{field: RAISED[field]})
    reconcile_fleet()
    assert (Incident.objects.count(), Signal.objects.count()) == (before, 1)


def test_the_flags_are_all_but_what_counts_and_what_ends() -> None:
    assert {"row_remap_failure", "row_remap_pending", "retired_pages"} == FLAGS
