"""When this node leaves, as its provider says: told when that changes, and once after each start of the agent.

A source that says another moment all the time is told of now and then; what is no moment at all is not told.
"""

from agents.core.events import NoticeRead
from agents.core.state import NoticeSaid
from agents.core.turn import Turn
from controlplane.protocol.bounds import MAX_NOTICE_S
from controlplane.protocol.frames import NodeNotice

SAME_S = 2.0
"""Two readings of one moment differ by less."""
AGAIN_S = 5.0
"""So soon after the last nothing is told: the next reading is."""


def on_read(turn: Turn, event: NoticeRead) -> None:
    """The server hears how long is left; it counts by its own clock."""
    left_s, last = event.leaves_in_s, turn.state.notice
    if left_s is not None and not 0.0 <= left_s <= MAX_NOTICE_S:
        turn.note("notice ignored: it is no time that a provider gives notice of", leaves_in_s=left_s)
        return
    leaves_s = None if left_s is None else event.now_s + left_s
    if last is not None and (event.now_s - last.at_s < AGAIN_S or _same(last.leaves_s, leaves_s)):
        return
    turn.set(notice=NoticeSaid(at_s=event.now_s, leaves_s=leaves_s))
    turn.note("this node leaves" if left_s is not None else "this node stays", leaves_in_s=left_s, reason=event.reason)
    turn.report(NodeNotice(left_s, event.reason))


def _same(said_s: float | None, found_s: float | None) -> bool:
    if said_s is None or found_s is None:
        return said_s is found_s
    return abs(said_s - found_s) < SAME_S
