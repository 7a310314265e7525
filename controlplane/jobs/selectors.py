"""Reading jobs, attempts, replicas, ranks and steps."""

from collections.abc import Mapping
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import BooleanField, Count, F, Func, Max, OuterRef, Q, QuerySet, Subquery, Value
from django.db.models.sql.compiler import SQLCompiler

from controlplane.fleet.models import Device
from controlplane.jobs import step_rollups
from controlplane.jobs.models import Attempt, Job, Rank, Replica, StepRecord
from controlplane.jobs.numbers import spec_of
from controlplane.jobs.present import rank_summary, replica_summaries, step_point
from controlplane.jobs.step_rows import with_parts
from controlplane.policy.queue.place import FRONT
from controlplane.protocol.spec import micro_batch_count
from controlplane.protocol.states import QUEUED_JOB, JobState
from controlplane.runtime import shards
from controlplane.runtime.errors import NotFound
from controlplane.runtime.prepared import TEXT, Prepared

IN_TURN = ("-priority", "created_at", "id")


def jobs(*, among: Q | None = None, state: str | None = None, q: str = "") -> QuerySet[Job]:
    """Newest first; `q` is a part of the name or project; only those `among`."""
    rows = Job.objects.filter(among or Q()).order_by("-created_at", "-id")
    if state:
        rows = rows.filter(state=state)
    return rows.filter(Q(name__icontains=q) | Q(project__icontains=q)) if q else rows


def on_node(rows: QuerySet[Job], node_id: str) -> QuerySet[Job]:
    """Those of them that hold a device of this node now, by the node's id or name."""
    here = Q(node=node_id) | Q(node__name=node_id)
    return rows.filter(pk__in=Rank.objects.filter(here, released_at=None).values("replica__attempt__job"))


def front_of_queue(number: int = FRONT) -> list[str]:
    """Ids of so many jobs of the queue that are first in line, as `policy.queue.schedule.in_turn` sorts them."""
    rows = Job.objects.filter(state__in=QUEUED_JOB, parked_by="").order_by(*IN_TURN)
    return list(rows.values_list("id", flat=True)[:number])


def wanting_nodes() -> list[str]:
    """Ids of the jobs that are woken when a device is freed or a node comes: those that are short of some, and the
    front of the queue."""
    recovering = Job.objects.filter(state=JobState.RECOVERING).order_by(*IN_TURN)
    return [*recovering.values_list("id", flat=True), *front_of_queue()]


def with_labels(rows: QuerySet[Job], labels: Mapping[str, str]) -> QuerySet[Job]:
    """Those whose spec has all these labels."""
    for key, value in labels.items():
        rows = rows.filter(_HasLabel(F("spec"), Value(key), Value(value)))
    return rows


class _HasLabel(Func):
    """Of a spec, a key and a value, both as text. No key transform of Django's: to those a key such as 0
    or -1 is a place in an array, which SQLite refuses and PostgreSQL never finds in an object."""

    output_field = BooleanField()
    arity = 3

    def as_sql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **context: Any) -> tuple[str, list[Any]]:
        """One parameter each for key and value."""
        spec, key, value = (compiler.compile(part) for part in self.source_expressions)
        of = [*spec[1], *key[1], *value[1]]
        if connection.vendor == "sqlite":
            labels = f"json_each({spec[0]}, '$.metadata.labels')"
            return f"EXISTS(SELECT 1 FROM {labels} WHERE key = %s AND atom = %s)", of  # noqa: S608 - a column's name
        return f"(jsonb_extract_path_text({spec[0]}, 'metadata', 'labels', %s) = %s)", of


def job(job_id: str, among: Q | None = None) -> Job:
    """By id, or by the name of the newest job that has it; only one of those `among`. Raises NotFound."""
    rows = Job.objects.filter(among or Q())
    row = rows.filter(pk=job_id).first() or rows.filter(name=job_id).order_by("-created_at").first()
    if row is None:
        raise NotFound(f"no job {job_id!r}")
    return row


def counts_by_state(among: Q | None = None) -> dict[str, int]:
    """Every state is present, zeros too; of the jobs `among`."""
    found = dict(
        Job.objects.filter(among or Q()).values_list("state").annotate(n=Count("pk")).values_list("state", "n")
    )
    return {state.value: found.get(state.value, 0) for state in JobState}


def attempts(row: Job) -> list[Attempt]:
    """Oldest first."""
    return list(row.attempts.order_by("number"))


def device_index() -> Subquery:
    """Of a rank's device, looked up by its key. A join would be planned from the tables' statistics, and from
    those of before a fleet enrolled and a job was placed PostgreSQL compares each rank with each device."""
    return Subquery(Device.objects.filter(pk=OuterRef("device_id")).values("index")[:1])


def replicas(
    row: Job, *, attempt: int | None = None, index: int | None = None, current: bool = False, ranks: bool = True
) -> list[dict[str, Any]]:
    """Every incarnation with its ranks and their live readings, newest attempt first; of one `attempt`, of one slot
    (`index`), or those that are `current`. `ranks` False: without them, which of a large job costs the most."""
    rows = Replica.objects.filter(attempt__job=row).select_related("attempt")
    if attempt is not None:
        rows = rows.filter(attempt__number=attempt)
    if index is not None:
        rows = rows.filter(index=index)
    rows = rows.order_by("-attempt__number", "index", "-incarnation")
    found = replica_summaries(rows, live=live_ranks(row.id)) if ranks else replica_summaries(rows, ranks=False)
    return [each for each in found if each["current"]] if current else found


def live_ranks(job_id: str) -> dict[str, Any]:
    """The sentinel's picture; empty when it is not known."""
    return shards.read_whole(f"job:{job_id}")


def ranks_on_node(node_id: str) -> list[dict[str, Any]]:
    """Unreleased ranks of a node, each with its job."""
    rows = Rank.objects.filter(node_id=node_id, released_at=None).select_related(
        "replica__attempt__job", "node", "device"
    )
    found = []
    for row in rows.order_by("device__index"):
        job = row.replica.attempt.job
        found.append({**rank_summary(row, live=live_ranks(job.id)), "job_id": job.id, "job_name": job.name})
    return found


def steps(
    row: Job, *, since_step: int = 0, attempt: int | None = None, limit: int = 2000, points: int | None = None
) -> list[dict[str, Any]]:
    """Committed steps from `since_step` on, in order; the newest attempt unless told. `points`:
    at most so many of all of them, evenly spread, and the newest. Steps that are older than is kept are a point for
    each roll-up of them (`step_rollups`)."""
    number = attempt if attempt is not None else _newest_number(row)
    rows = StepRecord.objects.filter(job=row, attempt=number, step__gte=since_step).order_by("step")
    among, older = None, step_rollups.ends_of(row, number, since_step)
    if points is not None:
        limit, among = points, _spread(rows, older, points)
        rows = rows if among is None else rows.filter(step__in=among)
    wanted = micro_batch_count(spec_of(row).spec)
    found = [step_point(step, micro_batches=wanted) for step in with_parts(rows[:limit])]
    if older is not None:
        # Of steps that stay whole it is they that are shown, and no roll-up of those around them besides.
        rolled_up = None if among is None else set(among) - {point["step"] for point in found}
        found += step_rollups.points(row, number, since_step=since_step, limit=limit, among=rolled_up)
        found = sorted(found, key=lambda point: point["step"])[:limit]
    return found


def _spread(rows: QuerySet[StepRecord], older: tuple[int, int] | None, points: int) -> list[int] | None:
    """Every n-th step, by its own number, so that the same ones are chosen while the job goes on, and the newest; None:
    all of them. Named one by one, they are found without a look at the others."""
    # Each end by itself is one entry of an index; SQLite reads all of them for both at once.
    ends = (rows.order_by(by).values_list("step", flat=True).first() for by in ("step", "-step"))
    known = [step for step in (*ends, *(older or ())) if step is not None]
    low, high = min(known, default=0), max(known, default=0)
    if high - low < points:
        return None
    stride = -(-(high - low + 1) // (points - 1))
    chosen = list(range(-(-low // stride) * stride, high + 1, stride))
    return chosen if chosen[-1] == high else [*chosen, high]


def log_rank(row: Job, *, replica: int, rank: int, incarnation: int | None = None, attempt: int | None = None) -> Rank:
    """Whose log is meant: that life of the rank; without one named, the newest of which something
    was kept, else the newest. Raises NotFound."""
    found = Rank.objects.filter(replica__attempt__job=row, replica__index=replica, rank=rank)
    if incarnation is not None:
        found = found.filter(replica__incarnation=incarnation)
    if attempt is not None:
        found = found.filter(replica__attempt__number=attempt)
    found = found.select_related("replica__attempt").order_by("-replica__attempt__number", "-replica__incarnation")
    kept = None if incarnation is not None else found.exclude(log_tail="").first()
    newest = kept or found.first()
    if newest is None:
        which = "" if incarnation is None else f" in incarnation {incarnation}"
        raise NotFound(f"job {row.name!r} has no rank {rank} of replica {replica}{which}")
    return newest


def _lives_of(job: Any) -> QuerySet[Replica, tuple[int, int]]:
    rows = Replica.objects.filter(attempt__job=job).order_by().values_list("index")
    return rows.annotate(newest=Max("incarnation"))


_LIVES_OF = Prepared(_lives_of, job=TEXT)


def lives_of(attempt: Attempt | None) -> dict[int, int]:
    """The newest incarnation of each slot that the job ever had; of its first attempt alone it is not read."""
    if attempt is None or attempt.number == 1:
        return {}
    return dict(_LIVES_OF(job=attempt.job_id))


def _newest_number(row: Job) -> int:
    return row.attempts.order_by("-number").values_list("number", flat=True).first() or 1
