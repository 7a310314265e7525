"""The recovery's certificate: what must hold if nothing was lost, and when that is judged for good.

Written after an incident is over, over the steps around it. It is judged again while reports may still come; what
could not be judged until then is not proved either.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol

from controlplane.changes.due import checks
from controlplane.changes.due.checks import EQUALITY, Check, CheckRows, Window
from controlplane.changes.due.course import Mark, Step
from controlplane.changes.due.kinds import Certify

PENDING, GREEN, RED, INCOMPLETE = "pending", "green", "red", "incomplete"
"""Verdicts: not yet; each check holds; one does not; some could not be judged, the others hold."""
BEFORE_S = 15.0
# The last reports of a step come this much after its first.
SETTLE_S = 1.5
FIRST_S, RETRY_S = 1.0, 2.0
PUT_OFF_RETRY_S = 15.0
GIVE_UP_S = 30.0
MAX_BEFORE, MAX_STEPS = 500, 2000
STEPS_AFTER_MAX = 60
"""Of those that came after the recovery: what is proved does not grow for as long as the job trains."""


class CertificateRows(CheckRows, Protocol):
    """Of a job, for one incident that is over."""

    def course(self, incident: str) -> tuple[Mark, Mark]:
        """Where the job was at the fault, and when training was back."""

    def over_s(self, incident: str) -> float:
        """Seconds since training was back."""

    def newest_until(self, mark: Mark, limit: int) -> Sequence[Step]:
        """So many that were committed by then, the newest first."""

    def newest_between(self, began: Mark, ended: Mark, limit: int) -> tuple[Sequence[Step], int]:
        """So many that were committed after the one and by the other, the newest first; and of how many."""

    def oldest_after(self, mark: Mark, limit: int) -> Sequence[Step]:
        """So many that were committed later, in order."""

    def since_report_s(self, step: Step) -> float:
        """Seconds since it was told of first."""

    def apart_s(self, one: Step, other: Step) -> float:
        """Seconds between the two by what the clock told then, whichever came first."""

    def newest_step(self) -> int:
        """How many steps of the job are committed."""

    def equality_comes(self, incident: str) -> bool:
        """What its one check rests on is still on its way."""

    def equality_put_off(self, incident: str) -> bool:
        """It cannot begin yet: it is waited for however long it takes."""

    def equality_given_up(self, incident: str) -> bool:
        """It was waited for long enough."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What the checks say; the newest `step` that they are about."""

    state: str
    checks: tuple[Check, ...]
    step: int


def certified(rows: CertificateRows, incident: str) -> Iterator[Certify]:
    """What is judged of an incident whose time has come."""
    yield concluded(rows, incident, judged(rows, incident))


def judged(rows: CertificateRows, incident: str) -> Judged:
    """By what was told until now."""
    window = window_of(rows, incident)
    found = checks.all_of(rows, incident, window)
    step = window.steps[-1].step if window.steps else rows.newest_step()
    return Judged(state_of(found, reference_comes=rows.equality_comes(incident)), tuple(found), step)


def concluded(rows: CertificateRows, incident: str, found: Judged) -> Certify:
    """For good, or until it is judged again."""
    put_off = rows.equality_put_off(incident)
    if found.state != PENDING:
        return Certify(incident, found.state, found.checks, found.step, None)
    if not put_off and rows.equality_given_up(incident):
        # Nothing contradicts it; but what could not be judged is not proved either.
        return Certify(incident, INCOMPLETE, found.checks, found.step, None)
    return Certify(incident, PENDING, found.checks, found.step, PUT_OFF_RETRY_S if put_off else RETRY_S)


def state_of(found: Sequence[Check], *, reference_comes: bool) -> str:
    """Red where a check fails, green only where each holds. What cannot be judged is waited for,
    except losses to which no reference run comes, or a step that nobody computes again any more:
    without them it is incomplete."""
    if any(check.ok is False for check in found):
        return RED
    open_checks = [check for check in found if check.ok is None]
    if not open_checks:
        return GREEN
    waits = reference_comes or any(check.name not in EQUALITY for check in open_checks)
    return PENDING if waits else INCOMPLETE


def window_of(rows: CertificateRows, incident: str) -> Window:
    """Steps from shortly before the fault until now, at most STEPS_AFTER_MAX of them after the
    recovery, less those still being told."""
    began, ended = rows.course(incident)
    before = rows.newest_until(began, MAX_BEFORE)
    # Without a hole: across a step of the clock the times are no measure, and it ends there.
    near = list(takewhile(lambda row: rows.apart_s(before[0], row) <= BEFORE_S, before))
    within, of = rows.newest_between(began, ended, MAX_STEPS)
    left_out = of - len(within)
    after = [*reversed(within), *rows.oldest_after(ended, STEPS_AFTER_MAX)]
    while after and rows.since_report_s(after[-1]) < SETTLE_S:
        after.pop()
    # Of a recovery with more steps than are compared one by one it is the newest.
    newest = {row.step: row for row in (*(() if left_out else reversed(near)), *after)}
    steps = tuple(newest[number] for number in sorted(newest))
    return Window(began=began, ended=ended, steps=steps, left_out=left_out, late=rows.over_s(incident) >= GIVE_UP_S)
