"""Who reads a checkpoint back: a node whose storage holds it, else the server's own machine, else nobody.

Called by `changes.due.readback`. One reader at a time. Nodes are asked in the order
given (the one whose rank reported the save first), each once a round, at most `MAX_ASKED` of them: the
others of a shared storage would say the same. The server reads only when no node has an answer.
"""

from collections.abc import Iterable
from dataclasses import dataclass

MAX_ASKED = 3
SILENT_S = 90.0
"""A reader tells how far it is every 15 s; after so long without a word another is asked."""
LATER_S = 600.0
"""When nobody had the bytes, and a node that may have them was away: then again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A node on which ranks of the job wrote it or run now. `able`: its agent knows the order;
    `busy`: it reads another checkpoint; `asked`: in this round, and it has `told` what it found."""

    node_id: str
    connected: bool
    able: bool = True
    busy: bool = False
    asked: bool = False
    told: bool = False


@dataclass(frozen=True, slots=True)
class Ask:
    """This node is next."""

    node_id: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Whoever may have the bytes is busy."""


@dataclass(frozen=True, slots=True)
class Here:
    """The server's own machine looks."""


def next_reader(holders: Iterable[Holder]) -> Ask | Wait | Here:
    """The next step of a round, where nobody is reading."""
    known = list(holders)
    asked = sum(holder.asked for holder in known)
    free = [holder for holder in known if holder.connected and holder.able and not holder.asked]
    if asked >= MAX_ASKED or not free:
        return Here()
    return next((Ask(holder.node_id) for holder in free if not holder.busy), Wait())


def is_worth_another_round(holders: Iterable[Holder]) -> bool:
    """Nobody had the bytes, and somebody who may have them was not there, or did not come to an end."""
    return any(not holder.told and (holder.asked or not holder.connected) for holder in holders)


def is_believed(*, ok: bool | None, absent: bool, wrote_it: bool) -> bool:
    """A node's verdict settles it. That something is missing is said, of a directory of its own that
    is called the same, by every node that does not share the storage: it counts from the node that wrote."""
    return ok is True or (ok is False and (wrote_it or not absent))


def is_silent(*, heard_s: float) -> bool:
    """Its reader has told nothing for `heard_s`: another is asked."""
    return heard_s > SILENT_S
