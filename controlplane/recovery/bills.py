"""Bills of projects: read of the ledger while their month goes on, closed once when it is over, and never changed then.

`close_due` is called with each pass of the ledger: a month is closed `BILL_CLOSES_AFTER_DAYS` after its end, by when
causes and restarts that came late have been judged, and each of its projects gets one row. What the ledger says of a
closed month later is a line of its own, the restatement, as long as the ledger keeps that month.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from django.conf import settings
from django.db import transaction

from controlplane.jobs.models import Job
from controlplane.policy.ledger.bill import (
    SAME_GPU_S,
    Entry,
    Terms,
    charged_gpu_s,
    ends_s,
    entries,
    month_of,
)
from controlplane.protocol.ledger import TimeClass, charged_classes
from controlplane.recovery import bill_rows, ledger_pass
from controlplane.recovery.bill_models import Bill
from controlplane.recovery.ledger_load import Scope
from controlplane.recovery.ledger_models import LedgerHold
from controlplane.recovery.ledger_view import judged
from controlplane.runtime import events
from controlplane.runtime.clock import from_s, iso, now
from controlplane.runtime.pieces import batched

Json = dict[str, Any]
ALL_CLOSED = ""
A_PASS = 20
"""So many projects are closed with one pass."""
A_QUERY = 500
DAY_S = 86_400.0


def terms() -> Terms:
    """As this installation charges now."""
    return Terms(
        classes=charged_classes(settings.BILL_CLASSES), incidents=settings.BILL_INCIDENTS, price=settings.GPU_HOUR_PRICE
    )


def bill(project: str, month: str, *, limit: int) -> Json:
    """`rest.Bill`: closed as it was, or open as the ledger has it now; `limit` jobs at most, the largest first. Raises
    ValueError for what is no month."""
    seq, ends = events.newest_seq(), ends_s(month)
    rows = Bill.objects.filter(project__in=(project, ALL_CLOSED), month=month)
    # Of a project that had nothing in a month that is closed there is the month's row alone.
    closed = rows.order_by("-project").first()
    by = terms() if closed is None else msgspec.convert(closed.terms, Terms)
    present, mark = _present(project, ends, by), ledger_pass.mark()
    found, names = (present, None) if closed is None else _kept(closed)
    charged, all_gpu_s = charged_gpu_s(found), sum(each.gpu_s for each in found)
    jobs = _jobs(found, names, by)
    return {
        "project": project,
        "month": month,
        "since": iso(from_s(ends[0])),
        "until": iso(from_s(ends[1])),
        "state": "open" if closed is None else "closed",
        "closed_at": None if closed is None else iso(closed.closed_at),
        "judged_until": None if mark is None else iso(from_s(mark.judged_s)),
        "price": by.price,
        "currency": None if by.price is None else (closed.currency if closed else settings.GPU_HOUR_CURRENCY),
        "charged_gpu_s": charged,
        "charged_money": by.money(charged),
        "not_charged_gpu_s": all_gpu_s - charged,
        "lines": _lines(found, by),
        "jobs": jobs[:limit],
        "jobs_left_out": max(0, len(jobs) - limit),
        "left_out_gpu_s": sum(row["charged_gpu_s"] for row in jobs[limit:]),
        "restated": None if closed is None else _restated(closed, found, present, by),
        "as_of_seq": seq,
    }


def close_due(judged_s: float) -> int:
    """Close what is due of the oldest month that is not closed; returns how many rows were written."""
    mark = ledger_pass.mark()
    if mark is None or mark.began_s is None:
        return 0
    newest = month_of(judged_s - settings.BILL_CLOSES_AFTER_DAYS * DAY_S)
    done = set(Bill.objects.filter(project=ALL_CLOSED).values_list("month", flat=True))
    month = month_of(mark.began_s)
    while month in done:
        month = month_of(ends_s(month)[1])
    return _close(month) if month < newest else 0


def _close(month: str) -> int:
    """The next projects of a month; the month itself when none is left."""
    ends, by = ends_s(month), terms()
    mark = ledger_pass.mark()
    assert mark is not None, "it was asked before"
    assert mark.began_s is not None, "it was asked before"
    held = LedgerHold.objects.filter(from_s__lt=ends[1]).exclude(until_s__lte=ends[0])
    charged = set(held.order_by().values_list("job__project", flat=True).distinct())
    left = sorted(charged - set(Bill.objects.filter(month=month).values_list("project", flat=True)))
    for project in left[:A_PASS]:
        _keep(project, month, mark.began_s, by, _present(project, ends, by))
    if len(left) <= A_PASS:
        _keep(ALL_CLOSED, month, mark.began_s, by, ())
    return min(len(left), A_PASS) + (len(left) <= A_PASS)


@transaction.atomic
def _keep(project: str, month: str, known_since_s: float, by: Terms, found: Sequence[Entry]) -> None:
    """Whoever is first: two passes at once close it once."""
    names = _names({each.job for each in found})
    rows = [
        [each.job, names.get(each.job, each.job), str(each.of), each.incident, each.charged, each.gpu_s]
        for each in found
    ]
    row = Bill(
        project=project, month=month, closed_at=now(), terms=msgspec.to_builtins(by),
        currency=settings.GPU_HOUR_CURRENCY, entries=rows, known_since_s=known_since_s,
    )  # fmt: skip
    bill_rows.close(row)


def _kept(row: Bill) -> tuple[tuple[Entry, ...], dict[str, str]]:
    """As they were closed, and what jobs were called then."""
    found = tuple(
        Entry(job=job, of=TimeClass(of), incident=incident, charged=charged, gpu_s=gpu_s)
        for job, _, of, incident, charged, gpu_s in row.entries
    )
    return found, {job: name for job, name, *_ in row.entries}


def _present(project: str, ends: tuple[float, float], by: Terms) -> tuple[Entry, ...]:
    """As the ledger has it now."""
    return entries(judged(Scope(project=project), *ends).amounts, by)


def _restated(row: Bill, found: Sequence[Entry], present: Sequence[Entry], by: Terms) -> Json | None:
    """What is charged by the ledger now beyond what was charged, by the terms of then; None: as much, or the ledger
    does not keep as much of that month any more."""
    mark, (since_s, _) = ledger_pass.mark(), ends_s(row.month)
    known_s = None if mark is None else mark.began_s
    if known_s is None or max(known_s, since_s) > max(row.known_since_s, since_s) + SAME_GPU_S:
        return None
    more = charged_gpu_s(present) - charged_gpu_s(found)
    return None if abs(more) < SAME_GPU_S else {"gpu_s": more, "money": by.money(more)}


def _lines(found: Iterable[Entry], by: Terms) -> list[Json]:
    """By class, and whether an incident is what it is due to."""
    sums = defaultdict[tuple[TimeClass, bool, bool], float](float)
    for each in found:
        sums[each.of, each.incident, each.charged] += each.gpu_s
    places = {of: place for place, of in enumerate(TimeClass)}
    return [
        {
            "of": of.value, "incident": incident, "charged": charged, "gpu_s": gpu_s,
            "money": by.money(gpu_s) if charged else by.money(0.0),
        }
        for (of, incident, charged), gpu_s in sorted(sums.items(), key=lambda each: (places[each[0][0]], each[0]))
    ]  # fmt: skip


def _jobs(found: Iterable[Entry], names: dict[str, str] | None, by: Terms) -> list[Json]:
    """The largest first."""
    sums = defaultdict[str, list[float]](lambda: [0.0, 0.0])
    for each in found:
        sums[each.job][0 if each.charged else 1] += each.gpu_s
    called = _names(sums) if names is None else names
    rows = [
        {
            "id": job, "name": called.get(job, job), "charged_gpu_s": charged, "money": by.money(charged),
            "not_charged_gpu_s": free,
        }
        for job, (charged, free) in sums.items()
    ]  # fmt: skip
    return sorted(rows, key=lambda row: (-row["charged_gpu_s"], row["id"]))


def _names(jobs: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for some in batched(sorted(jobs), A_QUERY):
        found |= dict(Job.objects.filter(pk__in=some).values_list("pk", "name"))
    return found
