"""What is open about a node is never hidden behind what is settled; what is left out is counted."""

from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client

from controlplane.recovery.models import Signal
from controlplane.runtime.clock import now
from tests.integration.backend.builders import make_fleet

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("settled", [3, 120])
def test_open_findings_come_first_then_the_newest_settled_and_the_rest_is_counted(settled: int) -> None:
    node = make_fleet(2).nodes["n1"]
    for number in range(settled):
        at = now() - timedelta(hours=200 - number)
        Signal.objects.create(
            id=f"sig_{number}", kind="node_silent", key=f"k{number}", node=node, value=float(number), threshold=2.0,
            seen_at=at, settled_at=at + timedelta(minutes=1),
        )  # fmt: skip
    Signal.objects.create(id="sig_open", kind="xid", key="x", node=node, value=79.0, threshold=0.0, seen_at=now())
    client = Client()
    client.force_login(User.objects.create_user("lin"))
    answer = client.get(f"/api/v1/nodes/{node.id}").json()
    shown = [signal["id"] for signal in answer["signals"]]
    newest = [f"sig_{number}" for number in reversed(range(settled))]
    assert shown == ["sig_open", *newest][:100]
    assert answer["signals_left_out"] == max(0, settled + 1 - 100)
