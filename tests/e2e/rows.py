"""Rows for the pages, made by the agents' own messages and the product's own code."""

import itertools
from datetime import timedelta
from typing import Any

import numpy as np

from controlplane.fleet.models import Device, Node
from controlplane.jobs.models import Attempt, Job, JobPace
from controlplane.jobs.services import submit_job
from controlplane.protocol import frames
from controlplane.protocol import spec as specs
from controlplane.protocol.samples import XidEvent
from controlplane.recovery.certificate import certify
from controlplane.recovery.fleet_pass import reconcile_fleet
from controlplane.recovery.models import Decision, Incident, ViewRow
from controlplane.recovery.reconcile import reconcile_job
from controlplane.runtime.clock import now, now_s
from controlplane.telemetry.codec import METRICS, Chunk, quantised
from controlplane.telemetry.services import store_chunks
from tests.integration.backend.builders import Fleet, commit_step, join_all, kill_rank, live_ranks, run_job
from tests.integration.backend.conftest import job_spec
from tests.integration.backend.test_certificates import kill_replica, resolved

ROWS = 1_000
OLD_DRIVER = frames.NodeCheck("driver", "version 535.104 is older than 570: install 570 or newer")


def history(node: Node) -> None:
    """Ten minutes of readings: two devices, counters that count nothing, and a hole."""
    seconds = now_s() - np.arange(600, 0, -1, dtype=np.float64)
    seconds = seconds[(seconds < seconds[200]) | (seconds > seconds[260])]
    values = np.zeros((len(METRICS), 2, len(seconds)), dtype=np.float32)
    for device in (0, 1):
        values[METRICS.index("temperature_c"), device] = 61 + 4 * device + np.sin(np.arange(len(seconds)) / 20)
        values[METRICS.index("power_w"), device] = 420 + 9 * np.cos(np.arange(len(seconds)) / 15)
    values[METRICS.index("nvlink_error_total")] = np.nan
    store_chunks({node.id: quantised(Chunk(t_s=seconds, devices=(0, 1), values=values))})


def named(name: str, **changes: Any) -> specs.JobSpec:
    """A spec of that name."""
    spec = job_spec(**changes)
    return specs.JobSpec(metadata=specs.Metadata(name=name), spec=spec.spec)


def running(fleet: Fleet, name: str) -> Job:
    """A job of that name that trains."""
    job = run_job(fleet)
    Job.objects.filter(pk=job.pk).update(name=name)
    return job


def refuted(fleet: Fleet) -> Incident:
    """An incident whose certificate is red: a later view has a member again that was evicted."""
    job = running(fleet, "refuted")
    kill_replica(fleet, job, 1)
    reconcile_job(job.id)
    before, out = ViewRow.objects.filter(job=job).order_by("epoch")
    ViewRow.objects.create(
        job=job, attempt=out.attempt, epoch=out.epoch + 1, view=before.view, announced_at=out.announced_at
    )
    incident = resolved(job)
    assert certify(incident)["state"] == "red"
    return incident


def lost(fleet: Fleet) -> Incident:
    """A job that failed: all of it was killed and it may not be restarted."""
    job = run_job(fleet, resiliency={"budget": {"max_restarts": 0}})
    for row in live_ranks(job):
        kill_rank(fleet, row)
    reconcile_job(job.id)
    return Incident.objects.get(job=job)


def unanswered(fleet: Fleet) -> Incident:
    """A job that lost a rank, whose survivors have not answered yet."""
    job = running(fleet, "unanswered")
    kill_rank(fleet, live_ranks(job)[0])
    reconcile_job(job.id)
    return Incident.objects.get(job=job)


def lived(fleet: Fleet) -> dict[str, str]:
    """A fleet that has seen something: a job that lost a rank and trains on, one that waits, one that was lost, one
    whose certificate is red, a node that fails its checks, a dead device under no job. The addresses of its objects
    by name."""
    incidents = {"incident-lost": lost(fleet), "incident-red": refuted(fleet), "incident-open": unanswered(fleet)}
    job = run_job(fleet, steps=30)
    kill_rank(fleet, next(row for row in live_ranks(job) if row.replica.index == 1))
    reconcile_job(job.id)
    join_all(fleet, job)
    for step in range(30, 34):
        commit_step(fleet, job, step)
    waits = submit_job(named("waits", resources=specs.Resources(nodes=40, gpus_per_node=2)), owner="bo", actor="bo")
    reconcile_job(waits.id)
    free = Node.objects.filter(devices__ranks=None, devices__reservation=None).latest("name").name
    fleet.tell(free, frames.XidSeen(XidEvent(index=1, xid=79)))
    reconcile_fleet()
    fleet.tell("n1", frames.NodeChecked((OLD_DRIVER,)))
    for node in Node.objects.filter(name__in=("n1", free)):
        history(node)
    incident = Incident.objects.filter(job=job).latest("opened_at")
    hit = Node.objects.get(name=free)
    return {
        "job": f"/jobs/{job.id}",
        "job-spec": f"/jobs/{job.id}?tab=spec",
        "job-decisions": f"/jobs/{job.id}?tab=decisions",
        "job-pending": f"/jobs/{waits.id}",
        "incident": f"/incidents/{incident.id}",
        "incident-fleet": f"/incidents/{Incident.objects.get(job=None).id}",
        "decision": f"/decisions/{Decision.objects.filter(job=job, routine=False).latest('at').id}",
        "node": f"/nodes/{fleet.nodes['n1'].id}",
        "node-hit": f"/nodes/{hit.id}",
    } | {name: f"/incidents/{row.id}" for name, row in incidents.items()}


def crowd() -> None:
    """1,000 nodes of eight devices, jobs and incidents."""
    nodes = [
        Node(id=f"node_{i:04d}", name=f"gpu-{i:04d}", public_key=f"{i:043d}", connected=True, agent_version="0.1.0")
        for i in range(ROWS)
    ]
    Node.objects.bulk_create(nodes)
    Device.objects.bulk_create(
        Device(id=f"dev_{n}_{i}", node=node, index=i, uuid=f"GPU-{n}-{i}", model="H100", memory_bytes=1 << 36)
        for (n, node), i in itertools.product(enumerate(nodes), range(8))
    )
    base = submit_job(named("long-name-of-a-job-that-somebody-gave-it"), owner="ana", actor="ana")
    row = Job.objects.filter(pk=base.pk).values().get()
    states = ("running", "succeeded", "failed", "cancelled", "pending")
    Job.objects.bulk_create(
        Job(**(row | {"id": f"job_{i:04d}", "name": f"run-{i:04d}", "state": states[i % 5], "committed_step": i}))
        for i in range(ROWS)
    )
    Incident.objects.bulk_create(
        Incident(
            id=f"inc_{i:04d}", node=nodes[i], title=f"Rank {i} of replica 1 on gpu-{i:04d} ended with signal 9",
            opened_at=base.created_at, resolved_at=base.created_at, state="resolved", outcome="recovered",
            resolution="It continues at full strength.", phases=[],
        )
        for i in range(ROWS)
    )  # fmt: skip


def queued(fleet: Fleet) -> Job:
    """A full fleet whose jobs have a pace, one of which is asked to yield to the urgent one that is returned; a job
    that waits behind it, one that a person parked, and one that no fleet of this size could hold."""
    yields, late = running(fleet, "yields"), running(fleet, "trains")
    began = now() - timedelta(hours=2)
    for job in (yields, late):
        Attempt.objects.filter(job=job).update(started_at=began)
        JobPace.objects.filter(job=job).update(pace={"recent": [2.0, 2.0, 2.0]})
        ViewRow.objects.filter(job=job).update(announced_at=began)
    Node.objects.update(segment="rail-1")
    idle = Node.objects.filter(ranks=None, devices__reservation=None).distinct().order_by("name")
    cordoned, away, shut = idle[0], idle[1], idle[2]
    Node.objects.filter(pk=cordoned.pk).update(state="cordoned", state_reason="new fans")
    Node.objects.filter(pk=away.pk).update(connected=False)
    Node.objects.filter(pk=shut.pk).update(state="draining", segment="rail-2")
    for name, nodes, priority in (("urgent", 12, 900), ("behind", 12, 500), ("far-too-large", 400, 300)):
        resources = specs.Resources(nodes=nodes, gpus_per_node=2)
        spec = named(name, resources=resources, scheduling=specs.Scheduling(priority=priority))
        submit_job(spec, owner="bo", actor="bo")
    urgent = Job.objects.get(name="urgent")
    reconcile_job(urgent.id)
    return urgent


def long_queue() -> None:
    """1,000 more jobs that wait."""
    row = Job.objects.filter(name="behind").values().get()
    Job.objects.bulk_create(
        Job(**(row | {"id": f"job_q{i:04d}", "name": f"waits-{i:04d}", "priority": 100 + i % 300})) for i in range(ROWS)
    )
