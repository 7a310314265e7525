"""Rows of a running job with an incident, as the ring would leave them."""

from datetime import timedelta

from controlplane.checkpoints.models import Checkpoint
from controlplane.dispatch.services import enqueue
from controlplane.fleet.models import Node
from controlplane.jobs.models import Attempt, Job, Rank, Replica, StepRecord
from controlplane.jobs.services import submit_job
from controlplane.protocol.commands import StopRanks
from controlplane.protocol.spec_lint import lint
from controlplane.protocol.states import AttemptState, CheckpointState, JobState, RankState, ReplicaState
from controlplane.recovery.models import Decision, Incident, Signal
from controlplane.recovery.present import pending_certificate
from controlplane.runtime.clock import now
from controlplane.runtime.events import unit_of_work
from controlplane.runtime.ids import new_id


def running_job(nodes: list[Node], spec: dict[str, object], *, checkpoint_path: str = "/nowhere/c1") -> Job:
    """Two replicas of two ranks on two nodes; everything an operator can look at exists."""
    linted = lint(spec)
    assert linted.spec is not None, linted.faults
    job = submit_job(linted.spec, owner="ada", actor="user:ada")
    Job.objects.filter(pk=job.pk).update(state=JobState.RUNNING, committed_step=3, epoch=1)
    attempt = Attempt.objects.create(
        job=job, number=1, state=AttemptState.RUNNING, layout={"tp": 1, "pp": 2, "cp": 1}, replicas=2,
        checkpoint_dir="/nowhere",
    )  # fmt: skip
    for index, node in enumerate(nodes[:2]):
        replica = Replica.objects.create(
            attempt=attempt, index=index, incarnation=index, state=ReplicaState.ACTIVE, contributing=True
        )
        for rank, device in enumerate(node.devices.order_by("index")):
            Rank.objects.create(
                replica=replica, rank=rank, node=node, device=device, state=RankState.TRAINING, pid=100 + rank
            )
    for step in range(3):
        StepRecord.objects.create(
            job=job, attempt=1, step=step, epoch=1, at=now(), loss=3.0 - step / 10, step_time_s=0.5, tokens=768,
            contributors=2, micro_batches={"0": [0, 2, 4, 6, 8, 10], "1": [1, 3, 5, 7, 9, 11]},
            parameter_hashes={"0": {"0": "a", "1": "a"}},
        )  # fmt: skip
    Checkpoint.objects.create(
        id=new_id("ckp"), job=job, attempt=1, step=2, epoch=1, path=checkpoint_path, kind="scheduled",
        state=CheckpointState.COMPLETE, started_at=now(), committed_at=now(),
    )  # fmt: skip
    _incident(job, nodes[0])
    return Job.objects.get(pk=job.pk)


def _incident(job: Job, node: Node) -> None:
    at = now() - timedelta(seconds=2)
    phases = [{"name": "fault", "at": "2026-01-01T00:00:00.000000Z", "since_fault_s": 0.0}]
    incident = Incident.objects.create(
        id=new_id("inc"), job=job, title="Rank 0 ended", opened_at=at, phases=phases,
        certificate=pending_certificate(0),
    )  # fmt: skip
    Signal.objects.create(
        id=new_id("sig"), job=job, node=node, incident=incident, kind="rank_exit", replica=0, incarnation=0, rank=0,
        value=-9, key="k", seen_at=at,
    )  # fmt: skip
    for number in range(2):
        decision = Decision.objects.create(
            id=new_id("dec"), job=job, incident=incident, at=now(), rule="replica_failure", choice="evict",
            reason_code="rank_exit", sentence="Replica 0 is evicted.", policy_version="1", snapshot=b"",
            routine=bool(number), key=f"key-{number}",
            alternatives=[{"action": "restart", "cost_gpu_s": 120.0, "why_not": "dearer"}],
            actions=[{"action": "stop_replica", "replica": 0}],
        )  # fmt: skip
    body = StopRanks(job_id=job.id, attempt=1, replica=0, incarnation=0, grace_s=0.0, reason="evicted")
    with unit_of_work():
        enqueue(body, node_id=node.id, job_id=job.id, attempt=1, epoch=1, decision_id=decision.id)
