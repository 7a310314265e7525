"""One handler a kind of event: the edge of `changes.hearing`, and what else nodes tell."""

from collections.abc import Callable
from typing import Any

from controlplane.changes.answers import calls, frees
from controlplane.changes.devices import OF_DEVICES
from controlplane.changes.hearing import HEARD, hear
from controlplane.changes.speaker import Speaker
from controlplane.dispatch import services as dispatch
from controlplane.jobs.models import Rank
from controlplane.jobs.services import publish_job
from controlplane.policy.signals.nodes import NodeUnfit
from controlplane.protocol import frames
from controlplane.protocol.errors import IdentityMismatch
from controlplane.recovery import diagnostics, log_markers, signals, speed
from controlplane.recovery.answers import after_answer
from controlplane.recovery.commit import commit
from controlplane.recovery.heard import Heard
from controlplane.recovery.models import Signal
from controlplane.recovery.rows import JobRows
from controlplane.runtime import counters, events

SAID_MAX = 300


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
    """A word about a rank or a device: what it means is the core's to say."""
    job = None if type(body) in OF_DEVICES else facts.jobs.get(body.ref.job_id)
    rows = JobRows(job, seen_at=facts.at, heard=facts)
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


def _looked(facts: Heard, body: frames.StacksCollected) -> None:
    diagnostics.keep(facts.rank(body.ref), body, at=facts.at)


def _node_checked(facts: Heard, body: frames.NodeChecked) -> None:
    """One finding a node, with all that fails there; it is settled when everything passes. Which
    checks fail is news; what they say of it may change with every reading."""
    node = facts.node
    known = Signal.objects.filter(key=NodeUnfit.key_of(node.id), settled_at=None).first()
    if not body.failed:
        if known is not None:
            signals.settle([known], f"node {node.name} passes its checks again")
            facts.freed = True
        return
    detail = "; ".join(f"{check.name}: {check.detail}" for check in body.failed)[:SAID_MAX]
    names = ", ".join(sorted({check.name for check in body.failed}))
    found = NodeUnfit(node_id=node.id, detail=detail, checks=names, node=node.name)
    if known is None:
        signals.raise_signal(found, seen_at=facts.at)
    elif known.evidence != found.evidence:
        signals.amend(known, found.evidence, "" if known.evidence.get("checks") == names else found.sentence)


def _marked(facts: Heard, body: frames.LogMarked) -> None:
    log_markers.note(facts.rank(body.ref), body)


def _refused(facts: Heard, body: frames.InputRefused) -> None:
    """What the agent did not take from a rank, for the job's owner; or from its own journal, or did not say
    to a server that is older than itself."""
    node = facts.node
    counters.count(node.name, "refused_at_node", number=body.count, detail=body.reason)
    if body.ref is None:
        events.publish(
            "node.refused",
            f"The agent on {node.name} left {body.count} event(s) out: {body.reason}. Its log says more.",
            node_id=node.id,
        )
        return
    rank = facts.rank(body.ref)
    what = f"{body.count} message{'' if body.count == 1 else 's'}"
    closed = " and closed its connection" if body.closed else ""
    events.publish(
        "rank.refused",
        f"The agent on {node.name} dropped {what} of rank {rank.rank} of replica {rank.replica.index}{closed}:"
        f" {body.reason}. Training continues without what they reported. The program sent what the protocol"
        " does not allow (docs/protocol.md): fix it.",
        job_id=body.ref.job_id,
        node_id=node.id,
        data={"count": body.count, "reason": body.reason, "closed": body.closed, "rank": rank.rank},
    )


def _host_exited(facts: Heard, body: frames.HostExited) -> None:
    """A rank host's end is no rank's end: ranks outlive it and are told one by one."""
    job = facts.jobs.get(body.job_id)
    here = Rank.objects.filter(node=facts.node, replica__attempt__job_id=body.job_id)
    reserved = facts.node.devices.filter(reservation__job_id=body.job_id)
    if job is None or not (here.exists() or reserved.exists()):
        raise IdentityMismatch(f"job {body.job_id} has nothing on this node")
    facts.touched.add(body.job_id)
    publish_job(job, "host.exited", f"The rank host on {facts.node.name} ended with code {body.exit_code}.")


HANDLERS: dict[type, Callable[[Heard, Any], None]] = {
    **dict.fromkeys(HEARD, _heard),
    frames.CommandAnswer: _answer,
    frames.StacksCollected: _looked,
    frames.NodeChecked: _node_checked,
    frames.LogMarked: _marked,
    frames.InputRefused: _refused,
    frames.HostExited: _host_exited,
}
assert set(HANDLERS) == set(frames.EventBody.__args__), "every event has its handler"
