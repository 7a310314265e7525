"""The life of a command's row: what an answer makes of it, when it is sent and when it expires, what makes it void.

One table for every store. A command is sent until its agent has journaled it (`acknowledged`), and is over with
its first final answer: what comes later, or again, changes nothing.
"""

from dataclasses import dataclass

from controlplane.protocol.commands import Body, DeliverInstall, DeliverView, StartRanks, StopRanks
from controlplane.protocol.states import CommandState

RESEND_S = 2.0
WORK_S = 300.0
"""An acknowledged order may still be at work when its time to be received is over."""
UNSENT = (CommandState.QUEUED, CommandState.DELIVERED)
LIVE = (*UNSENT, CommandState.ACKNOWLEDGED)
ANSWERS = {
    "acknowledged": CommandState.ACKNOWLEDGED,
    "succeeded": CommandState.SUCCEEDED,
    "failed": CommandState.FAILED,
    "superseded": CommandState.SUPERSEDED,
}
STARTS, STOPS, VIEWS, INSTALLS = "start_ranks", "stop_ranks", "deliver_view", "deliver_install"
SENT_IN_DOUBT = (STOPS, VIEWS, INSTALLS, "request_save")
"""Where it is in doubt who the node is, nothing begins; what runs is kept in step and can be ended."""


@dataclass(frozen=True, slots=True)
class Heard:
    """What an answer makes of a row. `again`: it is at work still and says how far, the state stays as it is.
    `due_in_s`: until then it may go on, None where it
    is over."""

    to: CommandState
    again: bool = False
    due_in_s: float | None = None


def heard(state: str, said: str, data: str, *, ttl_s: float) -> Heard | None:
    """None: the answer says nothing new; an acknowledgement that comes again with `data` does."""
    to = ANSWERS.get(said)
    if to is None or state not in LIVE:
        return None
    again = state == to
    if again and not (to == CommandState.ACKNOWLEDGED and data):
        return None
    return Heard(to, again, ttl_s + WORK_S if to == CommandState.ACKNOWLEDGED else None)


def is_sent_now(state: str, send_due_s: float | None, due_s: float, now_s: float) -> bool:
    """For the first time, or again because nothing says that it was journaled."""
    if now_s >= due_s:
        return False
    again = state == CommandState.DELIVERED and send_due_s is not None and send_due_s <= now_s
    return state == CommandState.QUEUED or again


def is_overdue(state: str, due_s: float, now_s: float) -> bool:
    """Nobody answered in its time."""
    return state in LIVE and due_s <= now_s


@dataclass(frozen=True, slots=True)
class Sent:
    """What of a command for one job and node tells whether another makes it void. `replica` -1: it is about all
    of the attempt."""

    kind: str
    epoch: int
    attempt: int
    replica: int = -1
    incarnation: int = -1


VOIDED: dict[str, tuple[str, ...]] = {
    VIEWS: (VIEWS, INSTALLS),
    INSTALLS: (INSTALLS,),
    STOPS: (STARTS,),
}
"""Of each kind, those of which it may make an older one void."""


def sent(body: Body, *, epoch: int) -> Sent | None:
    """As much of a command; None: it makes nothing void, and nothing does so to it."""
    match body:
        case DeliverView(view=view):
            return Sent(VIEWS, epoch, view.attempt)
        case DeliverInstall(install=install):
            return Sent(INSTALLS, epoch, install.attempt)
        case StartRanks(launch=launch):
            return Sent(STARTS, epoch, launch.attempt, launch.replica, launch.incarnation)
        case StopRanks():
            return Sent(STOPS, epoch, body.attempt, body.replica, body.incarnation)
        case _:
            return None


def is_void(old: Sent, new: Sent) -> bool:
    """Of two for the same job and node, where `old` is not journaled yet: a newer epoch's view or install makes
    older ones void, and a stop the start of what it stops, which would come up when its end was told already."""
    if old.kind not in VOIDED.get(new.kind, ()):
        return False
    if new.kind != STOPS:
        return old.epoch < new.epoch
    return old.attempt == new.attempt and new.replica in (-1, old.replica) and new.incarnation in (-1, old.incarnation)
