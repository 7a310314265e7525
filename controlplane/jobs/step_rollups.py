"""Steps that are older than is kept become one row for a hundred of them; charts read both.

A job of a step a second writes a hundred rows in the time in which this makes one of them. What the row of a single
step proves is gone then, so what a certificate rests on is not rolled up (`recovery.forgetting` says which steps those
are), nor are the newest ones of each attempt: what a step takes is learned from them.
"""

from collections.abc import Collection, Sequence
from datetime import datetime
from statistics import fmean
from typing import Any

from django.db import transaction
from django.db.models import F, Max, Min, OuterRef, Q, QuerySet, Subquery

from controlplane.jobs.models import Attempt, Job, StepRecord, StepRollup
from controlplane.jobs.numbers import spec_of
from controlplane.jobs.present import Json, step_point
from controlplane.jobs.step_rows import with_parts
from controlplane.protocol.spec import micro_batch_count
from controlplane.runtime.clock import iso
from controlplane.runtime.locks import lock_row

SIZE = 100
"""Steps of one roll-up at most."""
NEWEST = 1_000
"""Of each attempt stay whole, however old they are (`recovery.learned.RECENT_STEPS`)."""
BUCKETS_A_TURN = 10
"""Are rolled up in one transaction, under the job's lock."""

Spans = Sequence[tuple[int, int]]
"""First and last step of what stays whole."""


def attempts_with_more(jobs: QuerySet[Job]) -> dict[str, list[int]]:
    """By job, the numbers of its attempts that may have steps to roll up: those of which all is done, which is most of
    them for ever, are left out by what stands at either end of theirs."""
    mine = {"job": OuterRef("job"), "attempt": OuterRef("number")}
    steps = StepRecord.objects.filter(**mine).values("step")
    rolled_up = StepRollup.objects.filter(**mine).order_by("-bucket").values("bucket")
    rows = Attempt.objects.filter(job__in=jobs.order_by().values("pk")).annotate(
        oldest=Subquery(steps.order_by("step")[:1]),
        last=Subquery(steps.order_by("-step")[:1]),
        newest=Subquery(rolled_up[:1]),
    )
    more = Q(newest__isnull=True, last__gte=F("oldest") + NEWEST)
    more |= Q(last__gte=F("newest") * SIZE + NEWEST + 2 * SIZE - 1)
    found: dict[str, list[int]] = {}
    for job_id, number in rows.filter(more).order_by("job", "number").values_list("job_id", "number"):
        found.setdefault(job_id, []).append(number)
    return found


def roll_up(job: Job, attempt: int, *, before: datetime, whole: Spans, turns: int) -> tuple[int, int]:
    """Roll up steps of the attempt from before that moment, the oldest first, but for those that stay `whole`; in at
    most so many transactions. Returns how many rows went, and in how many transactions."""
    gone = used = 0
    steps = StepRecord.objects.filter(job=job, attempt=attempt).values_list("step", flat=True)
    last = steps.order_by("-step").first()
    newest = StepRollup.objects.filter(job=job, attempt=attempt).aggregate(newest=Max("bucket"))["newest"]
    bucket = 0 if newest is None else newest + 1
    end = 0 if last is None else (last + 1 - NEWEST) // SIZE
    while used < turns and (step := _next(steps, range(bucket * SIZE, end * SIZE), whole)) is not None:
        bucket = step // SIZE
        until = min(bucket + BUCKETS_A_TURN, end)
        with transaction.atomic():
            lock_row(Job, job.pk)
            removed, done = _turn(job, attempt, range(bucket, until), before, whole)
        gone, used = gone + removed, used + 1
        if not done:
            break
        bucket = until
    return gone, used


def _next(steps: QuerySet[StepRecord, int], among: range, whole: Spans) -> int | None:
    """The first of these steps that does not stay whole; what does is not read."""
    begin = among.start
    while (step := steps.filter(step__gte=begin, step__lt=among.stop).order_by("step").first()) is not None:
        stays = [last for first, last in whole if first <= step <= last]
        if not stays:
            return step
        begin = max(stays) + 1
    return None


def points(job: Job, attempt: int, *, since_step: int, limit: int, among: Collection[int] | None = None) -> list[Json]:
    """Of an attempt's chart, in sequence: each roll-up as its last step, with its means. `among`: those alone that have
    one of these steps."""
    rows = StepRollup.objects.filter(job=job, attempt=attempt, last__gte=since_step).order_by("bucket")
    if among is not None:
        rows = rows.filter(bucket__in={step // SIZE for step in among})
    return [_point(row) for row in rows[:limit]]


def ends_of(job: Job, attempt: int, since_step: int) -> tuple[int, int] | None:
    """First and last step that roll-ups tell of, from that one on."""
    rows = StepRollup.objects.filter(job=job, attempt=attempt, last__gte=since_step)
    found = rows.aggregate(low=Min("first"), high=Max("last"))
    return None if found["low"] is None else (max(found["low"], since_step), found["high"])


def _turn(job: Job, attempt: int, buckets: range, before: datetime, whole: Spans) -> tuple[int, bool]:
    """Rows that went; whether all of these buckets are done: none of them has a step that is too young."""
    rows = StepRecord.objects.filter(
        job=job, attempt=attempt, step__gte=buckets.start * SIZE, step__lt=buckets.stop * SIZE
    )
    wanted = micro_batch_count(spec_of(job).spec)
    of_bucket: dict[int, list[StepRecord]] = {bucket: [] for bucket in buckets}
    for row in with_parts(rows.order_by("step")):
        of_bucket[row.step // SIZE].append(row)
    made, old = list[StepRollup](), list[int]()
    done = True
    for bucket, steps in of_bucket.items():
        if any(row.at >= before for row in steps):
            done = False
            break
        going = [row for row in steps if not any(low <= row.step <= high for low, high in whole)]
        if going:
            made.append(_rolled_up(job, attempt, bucket, going, wanted))
            old += [row.pk for row in going]
    StepRollup.objects.bulk_create(made)
    StepRecord.objects.filter(pk__in=old).delete()
    return len(old), done


def _rolled_up(job: Job, attempt: int, bucket: int, rows: list[StepRecord], wanted: int) -> StepRollup:
    shown = [step_point(row, micro_batches=wanted) for row in rows]
    agree = [point["hashes_equal"] for point in shown if point["hashes_equal"] is not None]
    last = rows[-1]
    return StepRollup(
        job=job,
        attempt=attempt,
        bucket=bucket,
        first=rows[0].step,
        last=last.step,
        steps=len(rows),
        epoch=last.epoch,
        at=last.at,
        **{name: _mean(point[name] for point in shown) for name in ("loss", "grad_norm", "step_time_s", "exchange_s")},
        stall_s=sum(row.stall_s for row in rows),
        tokens=round(fmean(row.tokens for row in rows)),
        contributors=min(row.contributors for row in rows),
        exact=all(point["samples_exact"] for point in shown),
        equal=all(agree) if agree else None,
    )


def _mean(values: Any) -> float | None:
    """Of those that are there."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _point(row: StepRollup) -> Json:
    return {
        "attempt": row.attempt,
        "step": row.last,
        "epoch": row.epoch,
        "at": iso(row.at),
        "loss": row.loss,
        "grad_norm": row.grad_norm,
        "step_time_s": row.step_time_s,
        "exchange_s": row.exchange_s,
        "stall_s": row.stall_s,
        "tokens": row.tokens,
        "contributors": row.contributors,
        "samples_exact": row.exact,
        "hashes_equal": row.equal,
        "steps": row.steps,
    }
