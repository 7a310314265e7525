"""Writes the rows of the GPU-second ledger: its only writer, which decides nothing.

Called by `ledger_runs` in the transaction of a batch of step reports, by `ledger_pass` and what it calls, and by
`clock_set` when the server's clock was set.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime
from functools import reduce
from operator import or_

from django.db.models import F, Min, Model, Q

from controlplane.jobs.models import Job
from controlplane.policy.ledger.facts import Cause
from controlplane.policy.ledger.runs import Grown
from controlplane.policy.stepped import AHEAD_S, ClockSet, said_before
from controlplane.recovery.ledger_models import LedgerHold, LedgerMark, LedgerRun, LedgerStanding, LedgerTurn
from controlplane.runtime.locks import lock_row
from controlplane.runtime.pieces import batched

ALL = "all"
PLAIN = ("attempt", "since_epoch", "epoch", "from_s", "until_s", "kind", "since", "done", "lost", "saved_s")
"""Columns of a run that are fields of `policy.ledger.runs.Grown`."""
AT_ONCE = 200
FORGET_ROWS = 20_000
MOMENTS: tuple[tuple[type[Model], tuple[str, ...]], ...] = (
    (LedgerRun, ("from_s", "until_s")),
    (LedgerHold, ("from_s", "until_s")),
    (LedgerStanding, ("from_s", "until_s")),
    (LedgerTurn, ("from_s",)),
    (LedgerMark, ("began_s", "judged_s")),
)


CHAINS: tuple[tuple[type[Model], str, tuple[str, ...]], ...] = (
    (LedgerRun, "job_id", ("from_s", "until_s")),
    (LedgerHold, "id", ("from_s", "until_s")),
    (LedgerStanding, "node_id", ("from_s", "until_s")),
    (LedgerTurn, "replica_id", ("from_s",)),
)
"""Whose rows are written one after the other, and so are their moments; a hold is alone."""


def extend_run(pk: int, grown: Grown) -> None:
    """More gaps went into it."""
    LedgerRun.objects.filter(pk=pk).update(until_s=grown.until_s, done=grown.done, saved_s=grown.saved_s)


def add_runs(job: Job, begun: Iterable[Grown]) -> None:
    """Of a job, in sequence."""
    LedgerRun.objects.bulk_create([LedgerRun(job=job, **{name: getattr(run, name) for name in PLAIN}) for run in begun])


def restate_lost(rows: Sequence[LedgerRun], cause: Cause, now: datetime, *, judged_s: float) -> None:
    """`lost` of these was raised, because of that."""
    for row in rows:
        row.lost_cause_kind, row.lost_cause_id = cause.kind, cause.id
        row.restated_at = now if row.until_s <= judged_s else row.restated_at
    names = ["lost", "lost_cause_kind", "lost_cause_id", "restated_at"]
    LedgerRun.objects.bulk_update(rows, names, AT_ONCE)


def keep_causes(rows: Sequence[LedgerRun]) -> None:
    """As they were judged."""
    LedgerRun.objects.bulk_update(rows, ["cause_kind", "cause_id", "preempted", "judged", "restated_at"], AT_ONCE)


def keep_standings(ended: Iterable[LedgerStanding], begun: Iterable[LedgerStanding]) -> None:
    """First what ends: of each node one goes on. What ended as it began never was, whatever pieces it came in."""
    rows = list(ended)
    brief = [row.pk for row in rows if row.until_s == row.from_s]
    LedgerStanding.objects.filter(pk__in=brief).delete()
    LedgerStanding.objects.bulk_update([row for row in rows if row.until_s != row.from_s], ["until_s"])
    LedgerStanding.objects.bulk_create(row for row in begun if row.until_s is None or row.until_s > row.from_s)


def add_turns(rows: Iterable[LedgerTurn]) -> None:
    """In sequence."""
    LedgerTurn.objects.bulk_create(rows)


def replace_holds(replicas: Collection[int], rows: Iterable[LedgerHold]) -> None:
    """All that these replicas hold and held is this."""
    if replicas:
        LedgerHold.objects.filter(replica__in=replicas).delete()
        LedgerHold.objects.bulk_create(rows)


def begin_mark() -> None:
    """Nothing, where it is there."""
    LedgerMark.objects.get_or_create(name=ALL)


def lock_mark() -> LedgerMark:
    """Held until commit: passes follow one another."""
    found = lock_row(LedgerMark, ALL)
    assert found is not None, "it was begun"
    return found


def keep_mark(mark: LedgerMark) -> None:
    """As the pass has moved it."""
    mark.save()


def forget(before_s: float) -> int:
    """Remove spans that ended before, so many a call; what is known begins then. Returns how many."""
    removed = 0
    for model in (LedgerRun, LedgerHold, LedgerStanding):
        old = list(model._default_manager.filter(until_s__lt=before_s).values_list("pk", flat=True)[:FORGET_ROWS])
        removed += len(old)
        model._default_manager.filter(pk__in=old).delete()
    held = LedgerHold.objects.values("replica_id")
    LedgerTurn.objects.filter(from_s__lt=before_s).exclude(replica__in=held).delete()
    LedgerMark.objects.filter(name=ALL, began_s__lt=before_s).update(began_s=before_s)
    return removed


def move(by: ClockSet) -> None:
    """The clock was set: each moment that the present one did not say is moved, as if it had always been the present
    one. A gap in which it was set loses the step by that: its end is of this clock, its beginning is moved. A clock
    that was set back says some moments once more: those are told apart by what was written after them."""
    late = [found for chain in CHAINS for found in _said_before(by, *chain)] if by.step_s < 0.0 else []
    for model, columns in MOMENTS:
        for column in columns:
            model._default_manager.exclude(_present(column, by)).update(**{column: F(column) + by.step_s})
    for model, column, keys in late:
        for some in batched(keys, AT_ONCE):
            model._default_manager.filter(pk__in=some).update(**{column: F(column) + by.step_s})


def _present(column: str, by: ClockSet) -> Q:
    return Q(**{f"{column}__gte": by.since_s, f"{column}__lte": by.now_s + AHEAD_S})


def _said_before(
    by: ClockSet, model: type[Model], owner: str, columns: tuple[str, ...]
) -> Iterator[tuple[type[Model], str, list[int]]]:
    """By column the rows whose moment could be of the present clock and is of the one before: a later one of the same
    owner lies before it."""
    found = defaultdict[str, list[int]](list)
    near = reduce(or_, (_present(column, by) for column in columns))
    first = dict(model._default_manager.filter(near).values_list(owner).annotate(first=Min("pk")))
    for some in batched(sorted(first), AT_ONCE):
        rows = defaultdict[int, list[tuple[int, str, float]]](list)
        wanted = {f"{owner}__in": some, "pk__gte": min(first[each] for each in some)}
        for its, pk, *moments in (
            model._default_manager.filter(**wanted).order_by("pk").values_list(owner, "pk", *columns)
        ):
            rows[its] += [(pk, name, at_s) for name, at_s in zip(columns, moments, strict=True) if at_s is not None]
        for each in rows.values():
            for pk, column, at_s in each[: said_before([at_s for _, _, at_s in each])]:
                if by.moved_s(at_s) == at_s:
                    found[column].append(pk)
    return ((model, column, keys) for column, keys in found.items())
