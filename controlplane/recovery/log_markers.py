"""Marked lines of ranks' logs on the timeline, told by job and not by rank.

A marker that a job's first rank prints is told at once. What follows is counted, whoever
prints it, and told as one event a minute: a thousand ranks that lose the same collective are
one sentence, not a thousand rows. Nothing is decided by any of it.
"""

from typing import Any

from django.db.models import F

from controlplane.jobs.models import Rank
from controlplane.protocol.frames import LogMarked
from controlplane.protocol.markers import meaning
from controlplane.recovery.models import MarkedLines
from controlplane.runtime import events
from controlplane.runtime.clock import ago, now

EVERY_S = 60.0
MAX_TOLD = 200
LINE_MAX = 300


def note(rank: Rank, body: LogMarked) -> None:
    """Count what a rank printed; tell it unless its job has told of that marker just now. In
    the unit of work, and under the lock, of the job's events."""
    row, _ = MarkedLines.objects.get_or_create(job_id=body.ref.job_id, marker=body.marker[:LINE_MAX])
    last = {
        "node_id": rank.node_id,
        "node": rank.node.name,
        "replica": rank.replica.index,
        "incarnation": rank.replica.incarnation,
        "rank": rank.rank,
        "line": body.line[:LINE_MAX],
    }
    MarkedLines.objects.filter(pk=row.pk).update(lines=F("lines") + body.count, reports=F("reports") + 1, last=last)
    row.refresh_from_db()
    if row.told_at is None or row.told_at <= ago(EVERY_S):
        _tell(row)


def tell_due() -> None:
    """What was counted and nobody has added to since."""
    due = MarkedLines.objects.filter(reports__gt=0, told_at__lte=ago(EVERY_S)).order_by("told_at")
    for row in due[:MAX_TOLD]:
        with events.unit_of_work():
            _tell(row)


def _tell(row: MarkedLines) -> None:
    """Once, whoever comes first."""
    same = MarkedLines.objects.filter(pk=row.pk, told_at=row.told_at, reports=row.reports)
    if not same.update(lines=0, reports=0, told_at=now()):
        return
    last: dict[str, Any] = row.last
    events.publish(
        "rank.log",
        _sentence(row, last),
        job_id=row.job_id,
        node_id=last["node_id"],
        data={
            "marker": row.marker,
            "line": last["line"],
            "count": row.lines,
            "reports": row.reports,
            "replica": last["replica"],
            "incarnation": last["incarnation"],
            "rank": last["rank"],
        },
    )


def _sentence(row: MarkedLines, last: dict[str, Any]) -> str:
    who = f"{last['rank']} of replica {last['replica']} on {last['node']}"
    if row.reports > 1:
        what = f"{row.lines} more lines, reported {row.reports} times"
        return f'{what} ({meaning(row.marker)}), the last of rank {who}: "{last["line"]}"'
    often = f", {row.lines} such lines" if row.lines > 1 else ""
    return f'Rank {who} ({meaning(row.marker)}{often}): "{last["line"]}"'
