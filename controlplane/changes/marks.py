"""Marked lines of ranks' logs on the timeline, told by job and not by rank.

A marker that a job's first rank prints is told at once. What follows is counted, whoever
prints it, and told as one event a minute: a thousand ranks that lose the same collective are
one sentence, not a thousand rows. Nothing is decided by any of it.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from controlplane.changes.kinds import Change, Mark, Publish
from controlplane.changes.rows import Marked, Rows
from controlplane.changes.speaker import Speaker, rank_of
from controlplane.protocol.frames import LogMarked
from controlplane.protocol.markers import meaning

EVERY_S = 60.0
LINE_CHARS = 300


def _marked(rows: Rows, body: LogMarked, speaker: Speaker) -> Iterator[Change]:
    """Counted; told unless its job has told of that marker just now."""
    rank, was = rank_of(rows, body.ref, speaker), rows.marked(body.marker[:LINE_CHARS])
    last = {
        "node_id": rank.node_id,
        "node": speaker.node,
        "replica": rank.replica,
        "incarnation": rank.incarnation,
        "rank": rank.rank,
        "line": body.line[:LINE_CHARS],
    }
    row = replace(was, lines=was.lines + body.count, reports=was.reports + 1, last=last)
    if row.said_s is None or _is_due(row, rows.now_s):
        yield from _said(row, rows.now_s)
    else:
        yield Mark(row)


def tell_marked(rows: Rows) -> Iterator[Change]:
    """What was counted and nobody has added to since."""
    for row in rows.marks():
        if _is_due(row, rows.now_s):
            yield from _said(row, rows.now_s)


def _is_due(row: Marked, now_s: float) -> bool:
    return row.reports > 0 and row.said_s is not None and row.said_s <= now_s - EVERY_S


def _said(row: Marked, now_s: float) -> Iterator[Change]:
    yield Mark(replace(row, lines=0, reports=0, said_s=now_s))
    place = {name: row.last[name] for name in ("line", "replica", "incarnation", "rank")}
    data = {"marker": row.marker, "count": row.lines, "reports": row.reports, **place}
    yield Publish("rank.log", _sentence(row), beside=row.last["node_id"], data=data)


def _sentence(row: Marked) -> str:
    last = row.last
    who = f"{last['rank']} of replica {last['replica']} on {last['node']}"
    if row.reports > 1:
        what = f"{row.lines} more lines, reported {row.reports} times"
        return f'{what} ({meaning(row.marker)}), the last of rank {who}: "{last["line"]}"'
    often = f", {row.lines} such lines" if row.lines > 1 else ""
    return f'Rank {who} ({meaning(row.marker)}{often}): "{last["line"]}"'


OF_LOGS: dict[type, Callable[[Rows, Any, Speaker], Iterator[Change]]] = {LogMarked: _marked}
