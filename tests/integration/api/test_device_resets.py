"""People order a device reset: refused where it would end somebody's work, else carried out as the policy's own."""

from typing import Any

import pytest

from controlplane.access.models import AuditEntry
from controlplane.dispatch.models import Command
from controlplane.dispatch.statements import is_genuine
from controlplane.fleet.models import Device, Node
from controlplane.protocol import frames
from controlplane.recovery.fleet_pass import reconcile_fleet
from tests.integration.backend.builders import kill_rank, live_ranks, make_fleet, run_job

pytestmark = pytest.mark.django_db(transaction=True)
WHY = {"reason": "it gave wrong sums"}


def orders() -> list[Command]:
    return list(Command.objects.filter(kind="reset_device").order_by("id"))


def audited() -> list[AuditEntry]:
    return list(AuditEntry.objects.filter(action="device.reset"))


def test_an_empty_device_is_barred_reset_by_a_signed_order_and_returns(caller: Any) -> None:
    fleet = make_fleet(1)
    device = Device.objects.get(node__name="n1", index=1)
    answer = caller("operate").post(f"/devices/{device.id}:reset", WHY)
    assert answer.status_code == 202
    assert answer.json()["detail"].startswith("Device 1 of n1 takes no new work; it is reset within seconds")
    device.refresh_from_db()
    assert not device.healthy and "it gave wrong sums" in device.health_reason
    (entry,) = audited()
    assert (entry.subject, entry.reason, entry.data["device_index"]) == (device.node_id, WHY["reason"], 1)
    reconcile_fleet()
    (order,) = orders()
    assert (order.node_id, order.body["device_index"], order.body["uuid"]) == (device.node_id, 1, device.uuid)
    assert is_genuine(order)
    fleet.tell("n1", frames.CommandAnswer(order.id, "succeeded"))
    device.refresh_from_db()
    assert (device.healthy, device.health_reason, device.reset_wanted_at) == (True, "", None)
    reconcile_fleet()
    assert len(orders()) == 1


def test_a_device_that_a_rank_is_on_is_refused_with_what_to_do_instead(caller: Any) -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    row = live_ranks(job)[0]
    operator = caller("operate")
    answer = operator.post(f"/devices/{row.device_id}:reset", WHY)
    assert answer.status_code == 409
    detail = answer.json()["detail"]
    assert f"rank {row.rank} of replica {row.replica.index} of job 'demo' is on it" in detail
    assert f"holdfast node cordon {row.node.name}" in detail
    assert f"holdfast job evict-replica demo {row.replica.index}" in detail
    reconcile_fleet()
    assert (orders(), audited()) == ([], [])
    assert Device.objects.get(pk=row.device_id).healthy
    for rank in [rank for rank in live_ranks(job) if rank.replica_id == row.replica_id]:
        kill_rank(fleet, rank)
    assert operator.post(f"/devices/{row.device_id}:reset", WHY).status_code == 202


def test_one_whose_node_is_away_is_reset_when_it_is_back(caller: Any) -> None:
    make_fleet(1)
    device = Device.objects.get(node__name="n1", index=0)
    Node.objects.update(connected=False)
    told = caller("operate").post(f"/devices/{device.id}:reset", WHY).json()["detail"]
    assert "it is reset when its node is connected again" in told
    reconcile_fleet()
    assert orders() == []
    Node.objects.update(connected=True)
    reconcile_fleet()
    assert len(orders()) == 1


def test_ordering_it_twice_is_one_reset(caller: Any) -> None:
    make_fleet(1)
    device = Device.objects.get(node__name="n1", index=0)
    operator = caller("operate")
    assert {operator.post(f"/devices/{device.id}:reset", WHY).status_code for _ in range(2)} == {202}
    reconcile_fleet()
    assert len(orders()) == 1


@pytest.mark.parametrize(
    ("change", "status", "said"),
    [
        ({"present": False}, 409, "fell off the bus, which a reset does not fix"),
        ({"node__revoked_at": "2026-01-01T00:00:00Z"}, 409, "its node is revoked"),
        ({"node__removed_at": "2026-01-01T00:00:00Z"}, 404, ""),
    ],
)
def test_where_no_reset_can_help_it_is_refused(caller: Any, change: dict[str, Any], status: int, said: str) -> None:
    make_fleet(1)
    device = Device.objects.get(node__name="n1", index=0)
    ((name, value),) = change.items()
    if name.startswith("node__"):
        Node.objects.update(**{name.removeprefix("node__"): value})
    else:
        Device.objects.update(**change)
    answer = caller("operate").post(f"/devices/{device.id}:reset", WHY)
    assert answer.status_code == status
    assert said in answer.json()["detail"]
    assert audited() == []


def test_nobody_below_an_operator_orders_one_and_an_unknown_device_is_not_found(caller: Any) -> None:
    make_fleet(1)
    device = Device.objects.get(node__name="n1", index=0)
    assert caller("submit").post(f"/devices/{device.id}:reset", WHY).status_code == 403
    assert caller("operate").post("/devices/dev_nothing:reset", WHY).status_code == 404
    assert caller("operate").post(f"/devices/{device.id}:reset", {}).status_code == 422
