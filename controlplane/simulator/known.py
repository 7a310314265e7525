"""Known ends of nodes in the simulated server's rows: what `fleet.ends` is to the database."""

from controlplane.changes.end_kinds import NoteEnd
from controlplane.policy.known_end import KnownEnd
from controlplane.protocol.states import EndSource
from controlplane.simulator.rows import NodeRow


def noted(row: NodeRow, said: NoteEnd, now_s: float) -> None:
    """What its agent says of it."""
    row.ends.pop(EndSource.SPOT, None)
    if said.leaves_s is not None:
        row.ends[EndSource.SPOT] = KnownEnd(
            id=f"notice_{row.id}_{now_s:.3f}",
            source=EndSource.SPOT,
            leaves_s=said.leaves_s,
            said_s=now_s,
            reason=said.reason,
        )


def end_of(row: NodeRow, now_s: float) -> KnownEnd | None:
    """The first that is not over."""
    holds = [end for end in row.ends.values() if end.back_s is None or end.back_s > now_s]
    return min(holds, key=lambda end: (end.leaves_s, end.id), default=None)
