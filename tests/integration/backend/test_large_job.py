"""A job of 16,384 ranks is loaded as a small one is, on either database (N21).

What is read of a job grows in rows, never in queries, nor in the length of a query: SQLite takes no
expression of a thousand parts.
"""

import json
from itertools import islice

import msgspec
import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from controlplane.dispatch.models import Command
from controlplane.fleet.models import Device, Node
from controlplane.jobs.models import Attempt, Job, Rank, Replica
from controlplane.policy.signals.ranks import RankExit
from controlplane.protocol.membership import Install, Member, MemberRole, View
from controlplane.protocol.spec import Parallelism
from controlplane.protocol.states import JobState, RankState, ReplicaState
from controlplane.recovery import signals
from controlplane.recovery.fleet_pass import load_fleet
from controlplane.recovery.load import load_snapshot, owned_devices
from controlplane.recovery.load_nodes import node_facts
from controlplane.recovery.models import ViewRow
from controlplane.recovery.reconcile import reconcile_job
from controlplane.runtime.clock import now
from controlplane.runtime.models import Event
from tests.findings import finding
from tests.integration.backend.builders import make_job

pytestmark = pytest.mark.django_db
GPUS = 8
BATCH = 500
LONGEST_QUERY = 4_000
LARGEST_PATCH = 20_000
NAMES_A_QUERY = 40_000
"""Of one that names 500 rows."""


def large(replicas: int, tp: int, pp: int) -> Job:
    """A job that trains, its rows as its life would have left them; one replica's devices are free."""
    world = tp * pp
    nodes = [
        Node(id=f"node_{n}", name=f"n{n:05d}", public_key=f"{n:043d}", connected=True)
        for n in range((replicas + 1) * world // GPUS)
    ]
    devices = [
        Device(id=f"dev_{node.id}_{i}", node=node, index=i, uuid=f"GPU-{node.id}-{i}", model="H100", driver="simulated")
        for node in nodes
        for i in range(GPUS)
    ]
    Node.objects.bulk_create(nodes, BATCH)
    Device.objects.bulk_create(devices, BATCH)
    job = make_job()
    Job.objects.filter(pk=job.pk).update(state=JobState.RUNNING, epoch=2, committed_step=5)
    layout = Parallelism(tp=tp, pp=pp)
    attempt = Attempt.objects.create(
        job=job, number=1, state="running", layout=msgspec.to_builtins(layout), replicas=replicas
    )
    free = iter(devices)
    for index in range(replicas):
        replica = Replica.objects.create(
            attempt=attempt, index=index, incarnation=1, state=ReplicaState.ACTIVE, contributing=True, contributed=True
        )
        ranks = [
            Rank(replica=replica, rank=rank, node=device.node, device=device, state=RankState.TRAINING, joined_at=now())
            for rank, device in enumerate(islice(free, world))
        ]
        Rank.objects.bulk_create(ranks, BATCH)
    members = tuple(Member(index, 1, MemberRole.CONTRIBUTOR) for index in range(replicas))
    ViewRow.objects.create(
        job=job,
        attempt=1,
        epoch=2,
        view=msgspec.to_builtins(View(job.id, 1, 2, members)),
        install=msgspec.to_builtins(Install(job.id, 1, 2, 5, tuple(range(replicas)))),
        announced_at=now(),
        ordered_at=now(),
        installed_at=now(),
    )
    return Job.objects.get(pk=job.pk)


def test_what_is_read_of_a_job_takes_the_same_queries_at_any_size() -> None:
    asked = []
    for tp, pp in ((2, 2), (8, 1024)):
        with transaction.atomic():
            job = large(2, tp, pp)
            load_snapshot(job)  # PostgreSQL reads devices once for a process.
            with CaptureQueriesContext(connection) as queries:
                snapshot = load_snapshot(job)
            assert [replica.world_size for replica in snapshot.replicas] == [tp * pp] * 2
            assert sum(device.held for node in snapshot.nodes for device in node.devices) == Rank.objects.count()
            # Undone, not deleted: PostgreSQL would look for what refers to each of the 24,576 devices.
            transaction.set_rollback(True)
        asked.append(len(queries))
        assert max(len(query["sql"]) for query in queries) < LONGEST_QUERY
    assert asked[0] == asked[1]


def evicted(tp: int, pp: int) -> tuple[int, int]:
    """How many queries it takes from a rank's exit to the commit of its replica's eviction and the start of the
    next life on other nodes, and how many events beside the new nodes' own; undone afterwards."""
    with transaction.atomic():
        job = large(2, tp, pp)
        row = Rank.objects.select_related("replica__attempt", "node", "device").get(replica__index=0, rank=0)
        Rank.objects.filter(pk=row.pk).update(state=RankState.EXITED, released_at=now(), exit_signal=9)
        life = {"job_id": job.id, "replica": 0, "incarnation": 1, "rank": 0, "node_id": row.node_id}
        signals.raise_signal(finding(RankExit, **life, attempt=row.replica.attempt.number, signal=9, how="it is gone"))
        with CaptureQueriesContext(connection) as queries:
            reconcile_job(job.id, sure=True)
        made = Rank.objects.filter(replica__index=0, replica__incarnation=2)
        assert made.count() == tp * pp
        told = Event.objects.filter(kind="node.refreshed").values_list("patch", flat=True)
        held = [device["held_by"] for node in told for device in node["devices"] if device["held_by"]]
        assert {its["rank"] for its in held if its["replica"] == 0} == set(range(tp * pp))
        assert Command.objects.filter(kind="start_ranks").count() == tp * pp // GPUS
        nodes = Event.objects.filter(kind="node.refreshed").values("node_id").distinct().count()
        assert nodes == len(told) == tp * pp // GPUS
        more = Event.objects.exclude(kind="node.refreshed").count()
        sizes = (len(json.dumps(event.patch)) for event in Event.objects.exclude(kind="decision.made"))
        assert max(sizes) < LARGEST_PATCH, "of a large replica the ranks are not told with it"
        transaction.set_rollback(True)
    assert max(len(query["sql"]) for query in queries if query["sql"].startswith("SELECT")) < NAMES_A_QUERY
    # SQLite takes so many values a statement.
    return sum(not query["sql"].startswith("INSERT") for query in queries), more


def test_an_eviction_takes_the_same_queries_and_events_at_any_size() -> None:
    assert evicted(8, 16) == evicted(8, 32)


def test_a_large_job_is_read_at_once_on_statistics_from_before_it_was_there() -> None:
    """As after a fleet has enrolled and a job was placed in one minute: what the planner knows of each table
    is that it held nothing but dead rows. A join of ranks and devices took 75 s then; the limit is 15 s."""
    with transaction.atomic():
        large(2, 8, 1024)
        transaction.set_rollback(True)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    snapshot = load_snapshot(large(2, 8, 1024))
    placed = {(place.node_id, place.device_index) for replica in snapshot.replicas for place in replica.placements}
    assert len(placed) == Rank.objects.count()
    assert owned_devices() == placed
    assert len(node_facts(None)) == Node.objects.count()
    assert load_fleet().fleet_devices == Device.objects.count()
