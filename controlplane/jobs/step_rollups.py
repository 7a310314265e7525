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
from django.db.models import Max, Min

from controlplane.jobs.models import Job, StepRecord, StepRollup
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


def roll_up(job: Job, attempt: int, *, before: datetime, whole: Spans, turns: int) -> int:
    """Roll up steps of the attempt from before that moment, the oldest first, but for those that stay `whole`; in at
    most so many transactions. Returns how many rows went."""
    gone = 0
    steps = StepRecord.objects.filter(job=job, attempt=attempt).values_list("step", flat=True)
    oldest, last = steps.order_by("step").first(), steps.order_by("-step").first()
    if oldest is None or last is None:
        return 0
    newest = StepRollup.objects.filter(job=job, attempt=attempt).aggregate(newest=Max("bucket"))["newest"]
    bucket = oldest // SIZE if newest is None else newest + 1
    end = (last + 1 - NEWEST) // SIZE
    for _ in range(turns):
        until = min(bucket + BUCKETS_A_TURN, end)
        if bucket >= until:
            break
        with transaction.atomic():
            lock_row(Job, job.pk)
            removed, done = _turn(job, attempt, range(bucket, until), before, whole)
        gone += removed
        if not done:
            break
        bucket = until
    return gone


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
    }
