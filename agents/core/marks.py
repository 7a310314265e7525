"""What of a rank's log lines is told, and how often: each marker at once, then rarely.

A rank that prints the same line for hours costs one event a minute for each marker, and
there are few markers; how many lines an event stands for is in it. When the rank is gone,
whatever was only counted is told.
"""

from dataclasses import replace

from agents.core.events import LogRead
from agents.core.state import Finding, Mark, Marks
from agents.core.turn import Turn
from controlplane.protocol.frames import LogMarked

REPEAT_S = 60.0


def take(marks: Marks, found: tuple[Finding, ...], now_s: float, *, last: bool) -> tuple[Marks, tuple[Finding, ...]]:
    """(marks after these findings, what is to be told now). `last`: the log is over."""
    after = dict(marks)
    for finding in found:
        mark = after.get(finding.marker) or Mark(told_s=now_s - REPEAT_S)
        before = mark.unsaid.count if mark.unsaid is not None else 0
        after[finding.marker] = replace(mark, unsaid=replace(finding, count=finding.count + before))
    told = []
    for name, mark in after.items():
        if mark.unsaid is not None and (last or now_s - mark.told_s >= REPEAT_S):
            told.append(mark.unsaid)
            after[name] = Mark(told_s=now_s)
    return after, tuple(told)


def on_log_read(turn: Turn, event: LogRead) -> None:
    """Tell, and remember what was told; the journal keeps how far, once nothing is only counted.
    A rank that is forgotten already has nothing to keep."""
    rank = turn.state.ranks.get(event.ref)
    marks, told = take(rank.marks if rank is not None else {}, event.found, turn.now_s, last=event.last)
    for finding in told:
        turn.report(LogMarked(event.ref, finding.marker, finding.line, finding.count))
    if rank is None:
        return
    all_told = all(mark.unsaid is None for mark in marks.values())
    read_bytes = event.read_bytes if all_told else rank.log_read_bytes
    turn.put_rank(replace(rank, marks=marks, log_read_bytes=read_bytes), keep=bool(told) and all_told)
