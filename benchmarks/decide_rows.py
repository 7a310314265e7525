"""Rows of a job of any size that trains, built set-wise: what `benchmarks.decide_passes` measures on.

Of each kind of row one is written by Django, as a pattern; the others are copied from it in the database,
so that a hundred thousand take seconds and a new column needs no line here. Devices of one replica and of
one node more are free. To be imported once Django is set up.
"""

from collections.abc import Mapping

import msgspec
from django.db import connection
from django.db.models import AutoField, Model

from benchmarks.decide_worlds import EPOCH, GPUS_PER_NODE, STEP, Size, layout_of, members_of, spec_of
from controlplane.fleet.models import Device, Node
from controlplane.jobs.models import Attempt, Job, Rank, Replica
from controlplane.jobs.services import submit_job
from controlplane.protocol.frames import PROTOCOL_MAX
from controlplane.protocol.membership import Install
from controlplane.protocol.spec import JobSpec, Metadata
from controlplane.protocol.states import JobState, RankState, ReplicaState
from controlplane.recovery.models import ViewRow
from controlplane.runtime.clock import now

FIRST = 100_000
"""Numbers in ids have six digits."""
SESSION = "web.bench"
_NODE = f"CAST({FIRST} + n.i AS TEXT)"
_HOME = f"'node_' || CAST({FIRST} + n.i / {GPUS_PER_NODE} AS TEXT)"
_DEVICE = f"CAST({FIRST * GPUS_PER_NODE} + n.i AS TEXT)"


def job_that_trains(size: Size) -> Job:
    """The job, with its fleet; nothing was found."""
    nodes = -(-size.ranks // GPUS_PER_NODE) + max(1, size.gpus // GPUS_PER_NODE) + 1
    _fleet(nodes)
    job = submit_job(JobSpec(metadata=Metadata(name="large"), spec=spec_of(size)), owner="ada", actor="ada")
    Job.objects.filter(pk=job.pk).update(state=JobState.RUNNING, epoch=EPOCH, committed_step=STEP, due_at=None)
    _ranks(job, size)
    view_installed(job, EPOCH, size, dict.fromkeys(range(size.replicas), 1))
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    return Job.objects.get(pk=job.pk)


def view_installed(job: Job, epoch: int, size: Size, incarnations: Mapping[int, int]) -> None:
    """Everybody computes in this view since a moment ago."""
    view = members_of(job.id, epoch, incarnations)
    install = Install(job.id, 1, epoch, STEP, tuple(range(size.replicas)))
    ViewRow.objects.update_or_create(
        job=job,
        epoch=epoch,
        defaults={
            "attempt": 1,
            "view": msgspec.to_builtins(view),
            "install": msgspec.to_builtins(install),
            "announced_at": now(),
            "ordered_at": now(),
            "installed_at": now(),
            "resumed_at": now(),
        },
    )


def _fleet(nodes: int) -> None:
    node = Node.objects.create(
        id=f"node_{FIRST}", name=f"n{FIRST}", public_key=f"k{FIRST}", connected=True, session_id=SESSION,
        connected_at=now(), revision=PROTOCOL_MAX,
    )  # fmt: skip
    _copy(node, {"id": f"'node_' || {_NODE}", "name": f"'n' || {_NODE}", "public_key": f"'k' || {_NODE}"}, nodes)
    device = Device.objects.create(id=f"dev_{FIRST * GPUS_PER_NODE}", node=node, index=0, uuid="0", driver="simulated")
    columns = {"id": f"'dev_' || {_DEVICE}", "node_id": _HOME, "index": f"n.i %% {GPUS_PER_NODE}", "uuid": _DEVICE}
    _copy(device, columns, nodes * GPUS_PER_NODE)


def _ranks(job: Job, size: Size) -> None:
    attempt = Attempt.objects.create(
        job=job, number=1, state="running", layout=msgspec.to_builtins(layout_of(size)), replicas=size.replicas,
        max_contributors=size.replicas, checkpoint_dir="/none",
    )  # fmt: skip
    replica = Replica.objects.create(
        attempt=attempt, index=0, incarnation=1, state=ReplicaState.ACTIVE, contributing=True, contributed=True,
        committed_step=STEP,
    )  # fmt: skip
    _copy(replica, {"index": "n.i"}, size.replicas)
    places = {"node_id": f"node_{FIRST}", "device_id": f"dev_{FIRST * GPUS_PER_NODE}"}
    rank = Rank.objects.create(
        replica=replica, rank=0, state=RankState.TRAINING, joined_at=now(), started_at=now(), **places
    )
    owner = f'(SELECT r.id FROM jobs_replica r WHERE r.attempt_id = {attempt.pk} AND r."index" = n.i / {size.gpus})'
    differing = {
        "replica_id": owner,
        "rank": f"n.i %% {size.gpus}",
        "node_id": _HOME,
        "device_id": f"'dev_' || {_DEVICE}",
    }
    _copy(rank, differing, size.ranks)


def _copy(pattern: Model, differing: Mapping[str, str], count: int) -> None:
    """So many rows in all, number n.i of which differs from the pattern, number 0, by these columns."""
    fields = [field for field in pattern._meta.concrete_fields if not isinstance(field, AutoField)]
    assert differing.keys() <= {field.column for field in fields}
    columns = ", ".join(f'"{field.column}"' for field in fields)
    values = ", ".join(differing.get(field.column, f'p."{field.column}"') for field in fields)
    table = pattern._meta.db_table
    numbers = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < {count})"
    body = f'{numbers} SELECT {values} FROM n, "{table}" p WHERE p."{pattern._meta.pk.column}" = %s AND n.i < {count}'
    with connection.cursor() as cursor:
        cursor.execute(f'INSERT INTO "{table}" ({columns}) {body}', [pattern.pk])
