"""An agent's answer, and that none came: the edge of `changes.answers`. Decides nothing."""

from collections.abc import Callable
from datetime import datetime

from controlplane.changes.answers import KINDS, answered, frees
from controlplane.dispatch.models import Command
from controlplane.dispatch.statements import body_of, is_genuine
from controlplane.jobs.models import Job
from controlplane.protocol.states import CommandState
from controlplane.recovery import diagnostics, readers
from controlplane.recovery.commit import commit
from controlplane.recovery.row_facts import answered_of
from controlplane.recovery.rows import JobRows

BESIDE: dict[str, Callable[[Command], None]] = {"collect_stacks": diagnostics.gave_up, readers.KIND: readers.answered}
"""What an answer means to diagnostics and to who reads checkpoints back."""


def after_answer(command: Command, at: datetime, job: Job | None = None) -> bool:
    """Called in the unit that wrote the answer; `job` is the command's, locked. True when a device was freed."""
    return _commit(command, at, job, is_over=command.kind != "collect_stacks" or command.state == CommandState.FAILED)


def after_expiry(command: Command, at: datetime, job: Job | None = None) -> bool:
    """Called in a unit of its own, after the one that wrote it: nobody answered in time."""
    return _commit(command, at, job, is_over=True)


def beside(command: Command) -> None:
    """It was closed: what that means to diagnostics and to who reads checkpoints back. In the caller's unit."""
    if command.kind in BESIDE:
        BESIDE[command.kind](command)


def _commit(command: Command, at: datetime, job: Job | None, *, is_over: bool) -> bool:
    read = answered_of(command, None)
    ours = not (read.rejected or read.state == CommandState.EXPIRED) or is_genuine(command)
    freed = False
    if read.rejected or command.kind in KINDS:
        rows = JobRows(job or command.job, seen_at=at)
        changes = list(answered(rows, answered_of(command, body_of(command)) if ours else read))
        commit(changes, rows)
        freed = any(map(frees, changes))
    if ours and is_over:
        beside(command)
    return freed
