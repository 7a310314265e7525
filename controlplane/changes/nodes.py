"""What a node tells of itself means: its own checks, what its agent did not take, the end of a rank host."""

from collections.abc import Callable, Iterator
from typing import Any

from controlplane.changes.end_kinds import NoteEnd
from controlplane.changes.kinds import Amend, Change, Count, Free, Publish, Raise, Settle, Wake
from controlplane.changes.rows import Rows
from controlplane.changes.speaker import Speaker, rank_of
from controlplane.policy.signals.nodes import NodeUnfit
from controlplane.protocol.errors import IdentityMismatch
from controlplane.protocol.frames import HostExited, InputRefused, NodeChecked, NodeNotice

DETAIL_CHARS = 300


def _checked(rows: Rows, body: NodeChecked, speaker: Speaker) -> Iterator[Change]:
    """One finding a node, with all that fails there; it is settled when everything passes. Which
    checks fail is news; what they say of it may change with every reading."""
    known = rows.finding(NodeUnfit.key_of(speaker.node_id))
    if not body.failed:
        if known is not None:
            yield Settle((known.id,), f"node {speaker.node} passes its checks again")
            yield Free()
        return
    detail = "; ".join(f"{check.name}: {check.detail}" for check in body.failed)[:DETAIL_CHARS]
    names = ", ".join(sorted({check.name for check in body.failed}))
    found = NodeUnfit(node_id=speaker.node_id, detail=detail, checks=names, node=speaker.node)
    if known is None:
        yield Raise(found)
    elif known.evidence != found.evidence:
        yield Amend(known.id, found.evidence, "" if known.evidence.get("checks") == names else found.sentence)


def _refused(rows: Rows, body: InputRefused, speaker: Speaker) -> Iterator[Change]:
    """What the agent did not take from a rank, for the job's owner; or from its own journal, or did not say
    to a server that is older than itself."""
    yield Count(speaker.node, "refused_at_node", body.reason, body.count)
    if body.ref is None:
        sentence = f"The agent on {speaker.node} left {body.count} event(s) out: {body.reason}. Its log says more."
        yield Publish("node.refused", sentence, beside=speaker.node_id)
        return
    rank = rank_of(rows, body.ref, speaker)
    what = f"{body.count} message{'' if body.count == 1 else 's'}"
    closed = " and closed its connection" if body.closed else ""
    yield Publish(
        "rank.refused",
        f"The agent on {speaker.node} dropped {what} of rank {rank.rank} of replica {rank.replica}{closed}:"
        f" {body.reason}. Training continues without what they reported. The program sent what the protocol"
        " does not allow (docs/protocol.md): fix it.",
        beside=speaker.node_id,
        data={"count": body.count, "reason": body.reason, "closed": body.closed, "rank": rank.rank},
    )


def _host_exited(rows: Rows, body: HostExited, speaker: Speaker) -> Iterator[Change]:
    """A rank host's end is no rank's end: ranks outlive it and are told one by one."""
    if not rows.is_on(speaker.node_id):
        raise IdentityMismatch(f"job {body.job_id} has nothing on this node")
    yield Wake()
    yield Publish("host.exited", f"The rank host on {speaker.node} ended with code {body.exit_code}.")


def _noticed(rows: Rows, body: NodeNotice, speaker: Speaker) -> Iterator[Change]:
    """It speaks of itself alone: who says so leaves. How long is left is counted from when it was said."""
    leaves_s = None if body.leaves_in_s is None else speaker.at_s + body.leaves_in_s
    yield NoteEnd(speaker.node_id, leaves_s, body.reason)
    if leaves_s is None:
        yield Free()


OF_NODES: dict[type, Callable[[Rows, Any, Speaker], Iterator[Change]]] = {
    NodeChecked: _checked,
    NodeNotice: _noticed,
    InputRefused: _refused,
    HostExited: _host_exited,
}
