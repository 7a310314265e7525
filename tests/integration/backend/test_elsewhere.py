"""A job's decision reads the job's own nodes, and of the fleet what it asks for (ADR 0036, L3, N21)."""

import msgspec
import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from controlplane.fleet.models import Device, Node
from controlplane.jobs.models import Attempt, Job, Rank, Replica
from controlplane.policy.config import PolicyConfig
from controlplane.policy.decide import decide
from controlplane.policy.plan import Plan, StartReplica
from controlplane.policy.snapshot import JobSnapshot
from controlplane.protocol.states import NodeState
from controlplane.recovery.load import load_snapshot
from controlplane.recovery.load_candidates import decided
from controlplane.recovery.load_nodes import node_facts
from controlplane.recovery.models import Decision
from controlplane.recovery.reconcile import reconcile_job
from controlplane.scheduling.models import SpareReservation
from tests.integration.backend.builders import kill_rank, live_ranks, make_fleet, run_job

pytestmark = pytest.mark.django_db
CONFIG = PolicyConfig()
GPUS, BATCH = 8, 500
ROW_BYTES = 10_000
UNEVEN = 40


def strangers(count: int) -> None:
    """Idle nodes of eight devices that no job is on."""
    nodes = [
        Node(id=f"node_x{n:05d}", name=f"x{n:05d}", public_key=f"x{n:042d}", connected=True, state=NodeState.READY)
        for n in range(count)
    ]
    Node.objects.bulk_create(nodes, BATCH)
    devices = [
        Device(id=f"dev_{node.id}_{i}", node=node, index=i, uuid=f"GPU-{node.id}-{i}", model="H100", driver="simulated")
        for node in nodes
        for i in range(GPUS)
    ]
    Device.objects.bulk_create(devices, BATCH)


def lost_a_rank(count: int) -> Job:
    """A job of six ranks in a fleet with so many other nodes; one rank was killed just now."""
    fleet = make_fleet()
    job = run_job(fleet)
    strangers(count)
    Node.objects.filter(name__startswith="n").update(state=NodeState.DEGRADED)
    kill_rank(fleet, live_ranks(job)[0])
    return Job.objects.get(pk=job.pk)


def starts(plan: Plan) -> list[StartReplica]:
    return [action for decision in plan.decisions for action in decision.actions if isinstance(action, StartReplica)]


def by_whole_fleet(job: Job, snapshot: JobSnapshot) -> Plan:
    return decide(msgspec.structs.replace(snapshot, nodes=node_facts(job), elsewhere=None), CONFIG)


def test_what_is_read_takes_the_same_queries_in_a_fleet_of_any_size() -> None:
    asked = []
    for count in (10, 100, 1_000):
        with transaction.atomic():
            job = lost_a_rank(count)
            with CaptureQueriesContext(connection) as queries:
                snapshot, plan = decided(load_snapshot(job), job, CONFIG)
            transaction.set_rollback(True)
        assert {place.node_id[:6] for start in starts(plan) for place in start.placements} == {"node_x"}
        assert len(snapshot.nodes) < 7, "its own, and one for the place"
        asked.append((len(queries), max(len(query["sql"]) for query in queries)))
    assert len(set(asked)) == 1, asked


def test_the_kept_snapshot_of_a_small_job_is_small_in_a_large_fleet() -> None:
    job = lost_a_rank(1_000)
    reconcile_job(job.id)
    rows = list(Decision.objects.filter(job=job, rule="replica_failure"))
    assert [row.choice for row in rows] == ["evict_and_replace"]
    assert all(len(row.snapshot) < ROW_BYTES for row in Decision.objects.filter(job=job))


def test_a_pass_that_asks_nothing_reads_no_other_node() -> None:
    fleet = make_fleet(4)
    job = run_job(fleet)
    strangers(10)
    snapshot, _ = decided(load_snapshot(job), job, CONFIG)
    assert {node.name for node in snapshot.nodes} <= {"n1", "n2", "n3", "n4"}
    assert snapshot.elsewhere is not None and snapshot.elsewhere.needs == ()


def uneven(job: Job) -> None:
    """Nodes of every sort: worn, cordoned, gone, part in use, reserved, in segments, part broken."""
    other = Job.objects.create(id="job_other", name="other", project="else", owner="bob", spec=job.spec)
    attempt = Attempt.objects.create(job=other, number=1, state="running", layout={}, replicas=1)
    replica = Replica.objects.create(attempt=attempt, index=0, incarnation=1)
    for number, node in enumerate(Node.objects.filter(name__startswith="x").order_by("id")):
        node.segment = ("", "a", "b")[number % 3]
        node.state = (NodeState.READY, NodeState.DEGRADED, NodeState.CORDONED)[number % 7 % 3]
        node.connected = number % 11 != 0
        node.save()
        devices = list(node.devices.order_by("index"))
        Device.objects.filter(pk__in=[device.pk for device in devices[: number % 5]]).update(healthy=False)
        if number % 6 == 1:
            SpareReservation.objects.create(job=(job, other)[number % 2], device=devices[7])
        for index in range(number % 9 if number % 4 else 0):
            Rank.objects.create(replica=replica, rank=10 * number + index, node=node, device=devices[7 - index])


@pytest.mark.parametrize("left", [UNEVEN, 12, 5, 2, 0])
def test_rows_are_answered_as_the_whole_fleet_would_be(left: int) -> None:
    job = lost_a_rank(UNEVEN)
    uneven(job)
    Node.objects.filter(name__gte=f"x{left:05d}").update(state=NodeState.CORDONED)
    for gpu_type in (None, "H100", "B200"):
        resources = job.spec["spec"]["resources"] | {"gpu_type": gpu_type}
        Job.objects.filter(pk=job.pk).update(spec=job.spec | {"spec": job.spec["spec"] | {"resources": resources}})
        job = Job.objects.get(pk=job.pk)
        snapshot = load_snapshot(job)
        kept, plan = decided(snapshot, job, CONFIG)
        assert plan == by_whole_fleet(job, snapshot)
        assert plan == decide(kept, CONFIG)
