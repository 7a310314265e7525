"""To which incident each second belongs in which training stood still: to one, or to none.

A job may have several unrelated incidents at a time, and a stop of its training lies in all that are open. So that
no second is told twice it belongs to the incident whose decision first changed who trains in that step: what stopped
the job first. Where only decisions of no incident did (a drain, a replica more), it belongs to none; where none did,
to the incident that was opened first and is not over. What others have of it is named beside it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from controlplane.changes.due.course import Mark


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Training stood still for `stood_s` before this step (from 0) of an attempt was committed, in `epoch`;
    `since_epoch`: that of the commit before it (0: there is none). `between`: no rank of the attempt had committed
    yet, so that nobody measured it: from the last commit of the attempt before."""

    attempt: int
    step: int
    epoch: int
    since_epoch: int
    stood_s: float
    between: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Where the job was when an incident began and ended."""

    incident: str
    began: Mark
    ended: Mark

    def has(self, stop: Stop) -> bool:
        """It was open then. One that began with the attempt already there saw only the end of what was before it."""
        here = (stop.attempt, stop.step)
        if stop.between and stop.attempt <= self.began.attempt:
            return False
        return (self.began.of_attempt, self.began.step) < here <= (self.ended.of_attempt, self.ended.step)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """A decision that changed who trains, so that `epoch` began; None: it belongs to no incident."""

    epoch: int
    incident: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """Seconds in which training stood still while an incident was open: its own, and those that belong to others."""

    own_s: float = 0.0
    others_s: float = 0.0


def owner(stop: Stop, spans: Sequence[Span], moved: Iterable[Moved]) -> str | None:
    """The incident that a stop belongs to. `spans` in the order in which they were opened."""
    there = {span.incident: span for span in spans if span.has(stop)}
    within = sorted((each for each in moved if stop.since_epoch < each.epoch <= stop.epoch), key=lambda e: e.epoch)
    if within:
        return next((each.incident for each in within if each.incident in there), None)
    return next(iter(there), None)


def stall_of(incident: str, stops: Iterable[Stop], spans: Sequence[Span], moved: Sequence[Moved]) -> Stall:
    """Of one that is among `spans`."""
    mine = next(span for span in spans if span.incident == incident)
    own_s = others_s = 0.0
    for stop in stops:
        if mine.has(stop):
            of = owner(stop, spans, moved)
            own_s += stop.stood_s if of == incident else 0.0
            others_s += stop.stood_s if of not in (incident, None) else 0.0
    return Stall(own_s=own_s, others_s=others_s)
