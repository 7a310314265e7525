"""A job of any size that trains, and what its nodes report of its steps: what `benchmarks.steps` measures on.

To be imported once Django is set up.
"""

import hashlib
import math
import time
from dataclasses import dataclass
from datetime import timedelta

from django.db import connection
from django.db.models import F, Model

from benchmarks.decide_passes import _counted, _database_cpu_s
from benchmarks.decide_rows import FIRST, SESSION, job_that_trains
from benchmarks.decide_worlds import EPOCH, GPUS_PER_NODE, STEP, Size
from controlplane.changes.launches import step_reports_within_s
from controlplane.fleet.models import Device, Node
from controlplane.jobs import step_rows
from controlplane.jobs.models import Attempt, Job, Rank, Replica, StepPart, StepRecord
from controlplane.protocol.frames import AgentEvent, RankSaid
from controlplane.protocol.launch import RankRef
from controlplane.protocol.rank import StepReport
from controlplane.recovery import ingest

SMALL_RANKS = 2
STEP_S = 1.0


@dataclass(frozen=True, slots=True)
class Batch:
    """What one cost."""

    ours_s: float
    statements: int


class Training:
    """`nodes` of a job of so many ranks; the job and fleet of one before are gone."""

    def __init__(self, ranks: int) -> None:
        for model in (StepRecord, Rank, Replica, Attempt, Job, Device, Node):
            model._default_manager.all().delete()
        gpus = min(GPUS_PER_NODE, ranks if ranks % GPUS_PER_NODE == 0 else SMALL_RANKS)
        self.size = Size(max(1, ranks // gpus), gpus)
        self.nodes = -(-ranks // GPUS_PER_NODE)
        self.job = job_that_trains(self.size)
        self.gathered = max(1, round(step_reports_within_s(ranks) / STEP_S))
        self.in_parts = ranks > step_rows.LARGE_RANKS
        self.warm_up = 2 * self.gathered + (math.ceil(step_rows.SETTLED_S / STEP_S) if self.in_parts else 0)
        self._step = STEP
        self._seq = dict.fromkeys(range(self.nodes), 0)
        self._next = dict.fromkeys(range(self.nodes), STEP)

    def report(self, nodes: int) -> list[Batch]:
        """A step later: those of the first so many nodes whose turn it is report what they have gathered."""
        step, self._step = self._step, self._step + 1
        return [self._of_node(node, step) for node in range(nodes) if (node + step) % self.gathered == 0]

    def _of_node(self, node: int, newest: int) -> Batch:
        ranks = range(node * GPUS_PER_NODE, min(self.size.ranks, (node + 1) * GPUS_PER_NODE))
        steps, self._next[node] = range(self._next[node], newest + 1), newest + 1
        said = [(rank, step) for step in steps for rank in ranks]
        events = tuple(
            AgentEvent(self._seq[node] + at, (newest - step) * STEP_S, self._said(rank, step))
            for at, (rank, step) in enumerate(said, start=1)
        )
        self._seq[node] += len(events)
        with _counted() as statements:
            began_s = time.process_time()
            outcome = ingest.apply_events(f"node_{FIRST + node}", SESSION, events)
            ours_s = time.process_time() - began_s
        assert outcome.acked_seq == self._seq[node], "all of it is applied"
        assert not outcome.aside
        return Batch(ours_s, statements[0])

    def _said(self, number: int, step: int) -> RankSaid:
        replica, rank = divmod(number, self.size.gpus)
        ref = RankRef(self.job.id, 1, replica, 1, rank)
        report = StepReport(
            step=step,
            epoch=EPOCH,
            step_time_s=1.0 + number % 97 * 1e-4,
            tokens=4096 * self.size.replicas,
            micro_batches=(replica,),
            loss=2.5 if rank == self.size.gpus - 1 else None,
            grad_norm=1.0,
            parameter_hash=hashlib.sha256(f"{step}/{rank}".encode()).hexdigest(),
            exchange_s=0.2,
            trained=tuple(range(self.size.replicas)) if rank == 0 else (),
        )
        return RankSaid(ref, report)

    def database_s(self) -> float:
        """Processor time of the database's process that serves us so far; 0 where it is ours."""
        return _database_cpu_s()

    def age(self, seconds: float) -> None:
        """So much time goes by."""
        rows = StepRecord.objects.filter(job=self.job, in_parts=True)
        rows.update(at=F("at") - timedelta(seconds=seconds))

    def settle(self) -> None:
        """A long time goes by, and what is begun then packs what came before."""
        reported = StepRecord.objects.filter(job=self.job, in_parts=True, step__lt=self._step)
        while reported.exists():
            self.age(step_rows.SETTLED_S)
            self.report(min(self.nodes, self.gathered))

    def bytes_of(self, number: int) -> int:
        """Of all rows of the step that many after the first, as the database stores their values."""
        row = StepRecord.objects.get(job=self.job, step=STEP + number)
        parts = StepPart.objects.filter(step=row).values_list("pk", flat=True)
        return _bytes(StepRecord, row.pk) + sum(_bytes(StepPart, pk) for pk in parts)


def _bytes(model: type[Model], pk: int) -> int:
    """The row's values as text: what is read and written of it."""
    with connection.cursor() as cursor:
        names = ", ".join(f'CAST("{field.column}" AS TEXT)' for field in model._meta.concrete_fields)
        cursor.execute(f'SELECT {names} FROM "{model._meta.db_table}" WHERE id = %s', [pk])
        return sum(len(str(value)) for value in cursor.fetchone() if value is not None)
