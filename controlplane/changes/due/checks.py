"""The checks of a recovery's certificate, each over the steps around the incident.

A check that has nothing to judge by says None and why, never True; one that judged only steps from before the
recovery has nothing to judge the recovery by. The fifth, that what was trained is what would have been trained, rests
on runs beside the job: its store makes it (`CertificateRows.equality`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from controlplane.changes.due.course import CourseRows, LeftOut, Mark, Step, hashes_equal, ledger, left_out

LOSSES, RECOMPUTED = "loss_matches_reference", "step_recomputed"
EQUALITY = (LOSSES, RECOMPUTED)
"""One of them is in each certificate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """`ok` None: nothing to judge by. `value` against `limit`, in the check's own unit."""

    name: str
    ok: bool | None
    detail: str
    value: float | None = None
    limit: float | None = None

    def json(self) -> dict[str, Any]:
        """As the API shows it."""
        return {"name": self.name, "ok": self.ok, "detail": self.detail, "value": self.value, "limit": self.limit}


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """`steps` by number, each from the newest attempt that trained it; `began` and `ended`: where the job was
    at the fault and when training was back; `left_out`: so many of the recovery's first steps, which are more than
    are compared; `late`: reports that are missing now will not come."""

    began: Mark
    ended: Mark
    steps: tuple[Step, ...]
    left_out: int
    late: bool

    @property
    def beside(self) -> str:
        """What of the recovery is not among the steps, for people."""
        return f"; its first {self.left_out} steps are not compared" if self.left_out else ""

    def reaches_beyond(self, judged: Sequence[Step]) -> bool:
        """One of the `judged` steps was trained after the fault by the membership that the recovery
        ended with, or by a later one."""
        return any(step.epoch >= self.ended.epoch and self.began.is_before(step) for step in judged)


class CheckRows(CourseRows, Protocol):
    """Of a job's steps and saves."""

    def micro_batch_count(self) -> int:
        """Of a step."""

    def ranks_of(self, attempt: int) -> int:
        """Of each of its replicas."""

    def missing(self, first: int, last: int) -> Sequence[int]:
        """Which of these steps no attempt has told of, in order."""

    def spans(self) -> Sequence[tuple[int, int]]:
        """Of each attempt that has told of steps: the one before its first, which it began with or has told of as the
        lowest, and the highest that it has told of."""

    def first_since(self, epoch: int) -> tuple[int, int] | None:
        """(attempt, step) of the first commit of this epoch or a later one."""

    def saves_before(self, epoch: int, *, attempt: int) -> Sequence[tuple[int, int, int]]:
        """(attempt, step, epoch) of saves of older epochs that were committed in that attempt or later."""

    def equality(self, incident: str, window: Window) -> Check:
        """That what was trained is what would have been."""


def all_of(rows: CheckRows, incident: str, window: Window) -> list[Check]:
    """In the order in which they are shown."""
    return [
        _hashes(rows, window),
        _ledger(rows, window),
        rows.equality(incident, window),
        _no_step_lost(rows, window),
        _fenced(rows, window),
    ]


def _hashes(rows: CheckRows, window: Window) -> Check:
    """After each step every replica holds the same bits: parameters, optimizer and random state."""
    name = "state_hashes_equal"
    told = [(step, hashes_equal(step)) for step in window.steps]
    judged = [step for step, equal in told if equal is not None]
    wrong = [step.step for step, equal in told if equal is False]
    if wrong:
        return Check(name=name, ok=False, detail=f"they differ after step {wrong[0]}", value=float(len(wrong)), limit=0)
    if not judged:
        return Check(name=name, ok=None, detail="no step was reported by two replicas")
    if not window.reaches_beyond(judged):
        return Check(name=name, ok=None, detail="no step after the recovery was reported by two replicas")
    ranks = rows.ranks_of(window.steps[-1].attempt)
    whole = [step for step in judged if _is_reported_whole(step, ranks)]
    if not window.reaches_beyond(whole):
        return Check(name=name, ok=None, detail=f"no step after the recovery was reported by all {ranks} ranks of each")
    detail = (
        f"parameters, optimizer and random state equal after each of {len(judged)} steps of {len(window.steps)},"
        f" {len(whole)} of them on all {ranks} ranks of each replica{window.beside}"
    )
    return Check(name=name, ok=True, detail=detail, value=0, limit=0)


def _is_reported_whole(step: Step, ranks: int) -> bool:
    """Of every rank each replica that contributed has told its state, and two at least."""
    least = max(2, step.contributors)
    return all(len(step.parameter_hashes.get(str(rank), {})) >= least for rank in range(ranks))


def _ledger(rows: CheckRows, window: Window) -> Check:
    """Each step holds each of its micro-batches exactly once. One of which no rank 0 has told what it holds contradicts
    nothing."""
    name, wanted = "sample_ledger_exact", list(range(rows.micro_batch_count()))
    steps = list(window.steps)
    while steps and ledger(steps[-1]) != wanted and _may_grow(steps[-1], wanted):
        steps.pop()  # The reports of the newest steps are still on their way.
    differ = [step for step in steps if ledger(step) != wanted]
    wrong = [step for step in differ if ledger(step)]
    if differ and not wrong:
        return Check(name=name, ok=None, detail=f"what step {differ[0].step} holds is not reported")
    if wrong:
        final = window.late or not all(_may_grow(step, wanted) for step in wrong)
        detail = f"step {wrong[0].step} holds {ledger(wrong[0])}, not {wanted}"
        return Check(name=name, ok=False if final else None, detail=detail, value=float(len(wrong)), limit=0)
    if not window.reaches_beyond(steps):
        return Check(name=name, ok=None, detail="no step after the recovery is reported by all its replicas")
    detail = f"{len(wanted)} micro-batches once in each of {len(steps)} steps{window.beside}"
    return Check(name=name, ok=True, detail=detail, value=0, limit=0)


def _may_grow(step: Step, wanted: list[int]) -> bool:
    """What is told contradicts nothing: reports are missing, none is doubled."""
    told = ledger(step)
    return len(told) == len(set(told)) and set(told) <= set(wanted)


def _no_step_lost(rows: CheckRows, window: Window) -> Check:
    """No number is missing between the first and the last, those that are not compared included. Ranks count: where an
    attempt began before and has told of steps after, one was committed, and what is missing is the word of it, as an
    agent loses it that ends while its disk is full."""
    name = "no_step_lost"
    if not window.steps:
        return Check(name=name, ok=None, detail="no step in the window")
    first, last = window.steps[0].step, window.steps[-1].step
    if window.left_out:
        first = min(first, window.began.step + 1)
    if missing := rows.missing(first, last):
        spans = rows.spans()
        lost = [number for number in missing if not any(low < number < high for low, high in spans)]
        if not lost:
            detail = f"no report of step {missing[0]} is there; the steps after it count it as committed"
            return Check(name=name, ok=None, detail=detail)
        detail = f"step {lost[0]} was never committed"
        return Check(name=name, ok=False, detail=detail, value=float(len(lost)), limit=0)
    return Check(name=name, ok=True, detail=f"steps {first} to {last} are all there", value=0, limit=0)


def _fenced(rows: CheckRows, window: Window) -> Check:
    """From the first view without it on, nothing of an incarnation that is out was accepted."""
    name = "old_incarnation_fenced"
    out = left_out(rows, began=window.began, ended=window.ended)
    if not out:
        return Check(name=name, ok=True, detail="no incarnation was left out", value=0, limit=0)
    judged = [each for each in out if each.epoch is not None]
    breaches = {what for each in out for what in _breaches(rows, window, each)}
    if breaches:
        detail = "accepted from an old incarnation: " + "; ".join(sorted(breaches))
        return Check(name=name, ok=False, detail=detail, value=float(len(breaches)), limit=0)
    if len(judged) < len(out):
        waiting = next(each for each in out if each.epoch is None)
        return Check(name=name, ok=None, detail=f"no view leaves {waiting.name} out yet")
    views = ", ".join(f"{each.name} from view {each.epoch}" for each in judged)
    return Check(name=name, ok=True, detail=f"nothing was accepted of {views} on", value=0, limit=0)


def _breaches(rows: CheckRows, window: Window, out: LeftOut) -> list[str]:
    """What came of one incarnation after the first view without it had gone on, by the order of commits."""
    found = [f"view {epoch} has {out.name} as a member" for epoch in out.back]
    if out.epoch is None:
        return found
    first = rows.first_since(out.epoch)
    if first is None:
        return found
    steps = [s.step for s in window.steps if s.epoch < out.epoch and (s.attempt, s.step) > first]
    saves = [each for each in rows.saves_before(out.epoch, attempt=first[0]) if each[:2] > first]
    found += [f"step {number} of an epoch before view {out.epoch}" for number in steps]
    return found + [f"the save of step {step} of epoch {epoch}" for _, step, epoch in saves]
