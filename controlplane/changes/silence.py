"""When a node under a job counts as silent, and when not any more: the deadline of its next word.

Whether our own side could have heard it is the caller's to know; what follows from silence is the policy's to say.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from controlplane.changes.kinds import Change, Raise, Settle, Wake
from controlplane.changes.rows import Rows
from controlplane.policy.signals.nodes import NodeSilent

HEARD_AGAIN = "the node is heard again, or has no rank of this job any more"
MISSED_FRAMES = 2.0
"""So many frames that did not come are no silence, however little a job allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """`node_id` was not heard for `silent_s`, its job allows `limit_s`."""

    node_id: str
    job_id: str
    silent_s: float
    limit_s: float

    def began_s(self, now_s: float) -> float:
        """When its limit was over."""
        return now_s - self.silent_s + self.limit_s


def silence_of(
    node_id: str, job_id: str, *, silent_s: float, allowed_s: float, frame_interval_s: float
) -> Silence | None:
    """None: it may still be so long without a word."""
    limit_s = max(allowed_s, MISSED_FRAMES * frame_interval_s)
    if silent_s < limit_s:
        return None
    return Silence(node_id=node_id, job_id=job_id, silent_s=silent_s, limit_s=limit_s)


def fell_silent(rows: Rows, found: Silence) -> Iterator[Change]:
    """Of the job of these rows; once, until it is heard."""
    if rows.finding(NodeSilent.key_of(found.node_id, found.job_id)) is not None:
        return
    node = rows.node_name(found.node_id)
    yield Raise(
        NodeSilent(
            job_id=found.job_id, node_id=found.node_id, node=node, silent_s=found.silent_s, limit_s=found.limit_s
        )
    )
    yield Wake()


def is_heard(rows: Rows, node_id: str) -> Iterator[Change]:
    """Or it has no rank of the job any more."""
    known = rows.finding(NodeSilent.key_of(node_id, rows.job_id))
    if known is not None:
        yield Settle((known.id,), HEARD_AGAIN)
        yield Wake()
