"""What the devices of the fleet are in use for, counted another way: device by device."""

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from controlplane.fleet.models import Device, Node, Reservation
from controlplane.jobs.models import Job, JobPace, Rank
from controlplane.policy.findings import accuses
from controlplane.policy.signals.devices import XidError
from controlplane.protocol.states import JobState, NodeState
from controlplane.recovery import load_queue, signals
from controlplane.recovery.models import Signal
from controlplane.runtime.clock import now
from controlplane.scheduling.models import SpareReservation
from tests.findings import finding
from tests.integration.api.conftest import SPEC, make_node
from tests.integration.api.world import running_job

pytestmark = pytest.mark.django_db
CLASSES = ("in_use", "free", "reserved", "spare", "draining", "cordoned", "down")


def fleet() -> Job:
    """A node of each sort, and a job on two of them."""
    job = running_job([make_node("node-1", 3), make_node("node-2", 2)], SPEC)
    for name, change in (
        ("drains", {"state": NodeState.DRAINING}),
        ("cordoned", {"state": NodeState.CORDONED}),
        ("away", {"connected": False}),
        ("quarantined", {"state": NodeState.QUARANTINED}),
        ("revoked", {"revoked_at": now()}),
        ("free", {"segment": "rail-1"}),
        ("kept", {"segment": "rail-1"}),
        ("broken", {}),
        ("reserved", {}),
        ("removed", {"removed_at": now(), "revoked_at": now()}),
    ):
        Node.objects.filter(pk=make_node(name).pk).update(**change)
    SpareReservation.objects.create(job=job, device=Device.objects.get(node__name="kept", index=0))
    times = {"starts_at": now() - timedelta(hours=1), "ends_at": now() + timedelta(hours=1), "said_at": now()}
    kept = Reservation.objects.create(id="rsv_1", project="default", reason="r", who="ada", **times)
    kept.nodes.set(Node.objects.filter(name__in=("reserved", "away", "node-1")))
    Device.objects.filter(node__name="broken", index=0).update(healthy=False)
    Device.objects.filter(node__name="node-1", index=0).update(healthy=False)
    Device.objects.filter(node__name="broken", index=1).update(model="Other", present=False)
    Node.objects.filter(name="node-2").update(state=NodeState.DRAINING)
    return job


def what_for(device: Device) -> str:
    """Of one device."""
    node, policy = device.node, load_queue.policies.of_fleet()
    told = Signal.objects.filter(node=node, settled_at=None, job=None, device_index=device.index)
    if Rank.objects.filter(device=device, released_at=None).exists():
        return "in_use"
    if not (device.healthy and device.present and node.connected) or node.revoked_at is not None:
        return "down"
    if node.state == NodeState.QUARANTINED or any(accuses(signals.fact_of(row), policy) for row in told):
        return "down"
    if node.state in (NodeState.DRAINING, NodeState.CORDONED):
        return str(node.state)
    if SpareReservation.objects.filter(device__node=node).exists():
        return "spare"
    return "reserved" if node.reservations.exists() else "free"


def one_by_one() -> Counter[tuple[str, str, str]]:
    """(model, segment, class) of every device, each judged by itself."""
    found: Counter[tuple[str, str, str]] = Counter()
    for device in Device.objects.filter(node__removed_at=None).select_related("node"):
        found[device.model, device.node.segment, what_for(device)] += 1
    return found


def counted(answer: dict[str, Any]) -> Counter[tuple[str, str, str]]:
    """The answer's figures, by (model, segment, class)."""
    return Counter(
        {
            (each["gpu_type"], part["segment"], name): part["counts"][name]
            for each in answer["types"]
            for part in each["segments"]
            for name in CLASSES
            if part["counts"][name]
        }
    )


def test_each_device_is_counted_once_as_what_it_is_when_each_is_looked_at(caller: Any) -> None:
    fleet()
    answer = caller("read").get("/capacity").json()
    assert counted(answer) == one_by_one()
    assert answer["counts"]["devices"] == Device.objects.filter(node__removed_at=None).count()
    assert answer["counts"]["leaving"] == 2, "the job's devices on the node that drains"
    for each in (answer["counts"], *(kind["counts"] for kind in answer["types"])):
        assert each["devices"] == sum(each[name] for name in CLASSES)


def test_what_is_free_is_what_the_plan_of_the_queue_may_give(caller: Any) -> None:
    fleet()
    free = Node.objects.get(name="free").pk
    signals.raise_signal(finding(XidError, node_id=free, device_index=1, xid=79))
    answer = caller("read").get("/capacity").json()
    lent: Counter[str] = Counter()
    for node in load_queue.load_fleet().nodes:
        lent.update(node.free)
    assert {each["gpu_type"]: each["counts"]["free"] for each in answer["types"]} == {"Toy": lent["Toy"], "Other": 0}
    assert counted(answer) == one_by_one()


def test_ends_are_named_the_soonest_first_and_who_has_none_is_counted(caller: Any) -> None:
    job = fleet()
    answer = caller("read").get("/capacity").json()
    assert (answer["ends"], answer["ends_count"], answer["ends_unknown"]) == ([], 0, 1)
    JobPace.objects.create(job=job, pace={"recent": [2.0, 2.0, 2.0]})
    answer = caller("read").get("/capacity").json()
    (end,) = answer["ends"]
    held = Rank.objects.filter(replica__attempt__job=job, released_at=None).count() + 1
    assert (end["name"], end["devices"], end["leaves"]) == (job.name, held, False), "with the spare that is kept for it"
    assert end["expected_end_at"] > answer["at"] and (answer["ends_count"], answer["ends_unknown"]) == (1, 0)
    Job.objects.filter(pk=job.pk).update(state=JobState.CANCELLED)
    (end,) = caller("read").get("/capacity").json()["ends"]
    assert end["leaves"], "its processes are on their way out"


def test_an_empty_fleet_has_no_types(caller: Any) -> None:
    answer = caller("read").get("/capacity").json()
    assert (answer["types"], answer["counts"]["devices"], answer["waiting"]) == ([], 0, 0)


def test_more_nodes_are_no_more_queries(caller: Any) -> None:
    ada = caller("read")
    fleet()

    def queries() -> int:
        with CaptureQueriesContext(connection) as seen:
            assert ada.get("/capacity").status_code == 200
        return len(seen)

    queries()
    before = queries()
    for number in range(12):
        make_node(f"more-{number}", devices=4)
    assert queries() == before
