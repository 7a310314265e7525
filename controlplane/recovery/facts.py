"""One handler a kind of event: the edge of `changes.hearing`, and of answers to commands."""

from collections.abc import Callable
from typing import Any

from controlplane.changes.answers import calls, frees
from controlplane.changes.hearing import HEARD, hear
from controlplane.changes.speaker import Speaker
from controlplane.dispatch import services as dispatch
from controlplane.protocol import frames
from controlplane.recovery import identity, speed
from controlplane.recovery.answers import after_answer
from controlplane.recovery.commit import commit
from controlplane.recovery.heard import Heard
from controlplane.recovery.rows import JobRows


def finish(facts: Heard) -> None:
    """Write the merged steps; score the jobs whose ranks have all told a new window."""
    facts.points = facts.merge.write()
    # A joiner may have waited for the first step of the view.
    facts.touched |= facts.merge.resumed
    facts.touched |= {job_id for job_id in sorted(facts.timed) if speed.score_if_due(facts.jobs[job_id])}


def apply_event(facts: Heard, body: frames.EventBody) -> None:
    """Raises IdentityMismatch."""
    HANDLERS[type(body)](facts, body)


def _heard(facts: Heard, body: Any) -> None:
    """A word about a rank, a device or the node: what it means is the core's to say."""
    rows = JobRows(facts.jobs.get(identity.job_id_of(body)), seen_at=facts.at, heard=facts)
    changes = hear(rows, body, Speaker(facts.node.id, facts.node.name, facts.at.timestamp()))
    commit(changes, rows)
    facts.freed |= any(map(frees, changes))


def _answer(facts: Heard, body: frames.CommandAnswer) -> None:
    command = dispatch.answer(facts.node.id, body.command_id, body.state, body.detail, body.data)
    if command is None:
        return
    # Rows that the answer changes are read anew by whatever follows in this batch.
    facts.ranks.clear()
    if after_answer(command, facts.at, facts.jobs.get(command.job_id or "")):
        facts.freed = True
    if command.job_id and calls(command.kind, command.state):
        facts.wake(command.job_id)


HANDLERS: dict[type, Callable[[Heard, Any], None]] = {
    **dict.fromkeys(HEARD, _heard),
    frames.CommandAnswer: _answer,
}
assert set(HANDLERS) == set(frames.EventBody.__args__), "every event has its handler"
