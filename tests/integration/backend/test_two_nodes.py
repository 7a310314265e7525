"""An incident with devices out on two nodes waits for those of both (X2)."""

import pytest

from controlplane.fleet.models import Device
from controlplane.protocol import frames
from controlplane.protocol.samples import XidEvent
from controlplane.protocol.states import IncidentState
from controlplane.recovery.fleet_pass import reconcile_fleet
from controlplane.recovery.models import Incident, Signal
from tests.integration.backend.builders import make_fleet

pytestmark = pytest.mark.django_db


def test_it_is_not_over_when_the_first_nodes_device_is_back() -> None:
    fleet = make_fleet()
    for name in ("n1", "n2"):
        fleet.tell(name, frames.XidSeen(XidEvent(index=1, xid=79)))
    reconcile_fleet()
    first, second = Incident.objects.order_by("id")
    Signal.objects.update(incident=first)
    second.delete()
    assert (first.state, first.needs_hardware) == (IncidentState.MITIGATED, True)
    for name, state in (("n1", IncidentState.MITIGATED), ("n2", IncidentState.RESOLVED)):
        Device.objects.filter(node__name=name).update(healthy=True, health_reason="")
        reconcile_fleet()
        first.refresh_from_db()
        assert first.state == state, name
    assert first.resolution.count("is healthy again") == 2
