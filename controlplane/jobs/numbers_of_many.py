"""The numbers of many jobs, read in as many queries as of one: for lists.

One job's are read by `numbers.numbers_of`, by queries whose SQL is worked out once, as each event of a job asks for
them. What rows mean is said once, by `numbers.numbers_from`.
"""

import json
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from django.db.models import CharField, Count, Exists, F, OuterRef, Q, QuerySet, Subquery

from controlplane.changes.assembly import measured
from controlplane.jobs.models import Attempt, Job, JobPace, Replica, StepRecord
from controlplane.jobs.numbers import (
    ENDED,
    GOOD_CHECKPOINTS,
    RECENT_STEPS,
    STORAGE_FIRST,
    JobNumbers,
    JobRows,
    as_kept,
    in_storage,
    numbers_from,
)
from controlplane.policy.plan import PREEMPTED
from controlplane.protocol.states import LIVE_INCIDENT, ReplicaState
from controlplane.runtime import windows

_ON_SQLITE = (
    "(SELECT json_group_array(CASE WHEN figure IS NULL THEN NULL ELSE printf(char(37) || '!.17g', figure) END)"
    " FROM (%(subquery)s) f)"
)
"""char(37): a percent sign, which would be one of a parameter."""
_ON_POSTGRESQL = "(SELECT json_agg(figure::text)::text FROM (%(subquery)s) f)"


class _Figures(Subquery):
    """One column `figure` of the rows of a sliced queryset, in their sequence, as a JSON list of texts that say each
    number exactly. No database but PostgreSQL has lateral joins, and this is one query on both."""

    output_field = CharField()

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        """17 digits are a double."""
        return self.as_sql(compiler, connection, _ON_SQLITE, **context)

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        """PostgreSQL's text of a number is exact."""
        return self.as_sql(compiler, connection, _ON_POSTGRESQL, **context)


def numbers_of_many(jobs: Sequence[Job]) -> dict[str, JobNumbers]:
    """`numbers.numbers_of` of each, by job id."""
    ids = [job.pk for job in jobs]
    first, newest = (_attempts(ids, other) for other in ({"number__lt": "number"}, {"number__gt": "number"}))
    kept = {row.job_id: as_kept(row.pace, row.spent) for row in JobPace.objects.filter(job__in=ids)}
    counts = _counts(ids)
    evicted = _grouped(Replica.objects.filter(attempt__job__in=ids, state=ReplicaState.EVICTED), "attempt__job_id")
    current = Replica.objects.filter(attempt__in=[row.pk for row in newest.values()], contributing=True)
    contributing = _grouped(current, "attempt__job_id")
    stored = _stored([job.pk for job in jobs if job.state not in ENDED])
    steps, found = windows.known(), {}
    for row in _with_newest(ids):
        attempts, preempted = counts.get(row["pk"], (0, 0))
        pace, spent = kept.get(row["pk"], (None, None))
        found[row["pk"]] = JobRows(
            first=first.get(row["pk"]),
            newest=newest.get(row["pk"]),
            pace=pace,
            spent=spent,
            losses=_numbers(row["losses"]),
            times_s=_numbers(row["times_s"]),
            calm_s=_numbers(row["calm_s"]),
            saved=None if row["saved_step"] is None else (row["saved_step"], row["saved_as"]),
            in_storage=stored.get(row["pk"], ()),
            attempts=attempts,
            preempted=preempted,
            evicted=evicted.get(row["pk"], 0),
            contributing=contributing.get(row["pk"], 0),
            open_incident_id=row["open_incident_id"],
            steps=steps,
        )
    return {job.pk: numbers_from(job, found[job.pk]) for job in jobs}


def _attempts(ids: Sequence[str], other: dict[str, str]) -> dict[str, Attempt]:
    """Of each job the attempt of which there is no `other`."""
    of_job = Attempt.objects.filter(job=OuterRef("job"), **{name: OuterRef(by) for name, by in other.items()})
    return {row.job_id: row for row in Attempt.objects.filter(~Exists(of_job), job__in=ids)}


def _counts(ids: Sequence[str]) -> dict[str, tuple[int, int]]:
    rows = Attempt.objects.filter(job__in=ids).order_by().values("job_id")
    told = rows.annotate(number_of=Count("pk"), preempted=Count("pk", filter=Q(end_code=PREEMPTED)))
    return {
        job_id: (all_of_it, some) for job_id, all_of_it, some in told.values_list("job_id", "number_of", "preempted")
    }


def _grouped(rows: "QuerySet[Any]", by: str) -> dict[str, int]:
    return dict(rows.order_by().values(by).annotate(number_of=Count("pk")).values_list(by, "number_of"))


def _stored(ids: Sequence[str]) -> dict[str, list[Any]]:
    checkpoints = Job._meta.get_field("checkpoints").related_model._default_manager.filter(job__in=ids)
    rows = in_storage(checkpoints).order_by("job_id").values_list("job_id", "step", "committed_at")
    return {job_id: [(step, at) for _, step, at in each] for job_id, each in groupby(rows, key=lambda row: row[0])}


def _with_newest(ids: Sequence[str]) -> "QuerySet[Any, dict[str, Any]]":
    """Of each job what is newest of its steps, checkpoints and incidents, each found by an index."""
    steps = StepRecord.objects.filter(job=OuterRef("pk")).order_by("-attempt", "-step")
    saves, incidents = (
        Job._meta.get_field(name).related_model._default_manager for name in ("checkpoints", "incidents")
    )
    saved = saves.filter(job=OuterRef("pk"), state__in=GOOD_CHECKPOINTS).order_by("-step", *STORAGE_FIRST)
    opened = incidents.filter(job=OuterRef("pk"), state__in=LIVE_INCIDENT).order_by("-opened_at", "-id")
    calm = steps.filter(stall_s=0.0)
    return (
        Job.objects.filter(pk__in=ids)
        .order_by()
        .values(
            "pk",
            losses=_Figures(steps.values(figure=F("loss"))[:RECENT_STEPS]),
            times_s=_Figures(steps.values(figure=F("step_time_s"))[:RECENT_STEPS]),
            calm_s=_Figures(calm.values(figure=F("step_time_s"))[: measured.RECENT]),
            saved_step=Subquery(saved.values("step")[:1]),
            saved_as=Subquery(saved.values("kind")[:1]),
            open_incident_id=Subquery(opened.values("id")[:1]),
        )
    )


def _numbers(texts: str | None) -> list[float | None]:
    """None: PostgreSQL's list of no rows."""
    return [None if text is None else float(text) for text in json.loads(texts or "[]")]
