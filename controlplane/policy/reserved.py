"""Nodes that are reserved for a project: who may start there, and for how long (ADR 0051).

While a reservation runs jobs of its project alone start on the node, and before it begins of others those alone that
are expected to be over by then. What runs there stays: nothing here ends anything. Asked by placement, the rule of the
spares, and the queue's count. Pure.
"""

from collections.abc import Iterable

import msgspec

ANOTHER = "another project"
"""What a project is called for readers who do not see it."""


class Reservation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A node is `project`'s own from `from_s` until `until_s` (server Unix seconds). `shown`: what the project is
    called in sentences ("": by its name)."""

    id: str
    project: str
    from_s: float
    until_s: float
    shown: str = ""

    def runs(self, now_s: float) -> bool:
        """It has begun, and is not over."""
        return self.from_s <= now_s < self.until_s

    @property
    def called(self) -> str:
        """Its project in words."""
        return self.shown or f"project {self.project}"


def against(reservations: Iterable[Reservation], project: str, now_s: float) -> Reservation | None:
    """The first one, of a node's, that keeps jobs of this project away, or will; None: none does."""
    others = (each for each in reservations if each.project != project and each.until_s > now_s)
    return min(others, key=lambda each: (each.from_s, each.id), default=None)


def takes(reservations: Iterable[Reservation], project: str, over_s: float | None, now_s: float) -> bool:
    """A job of this project that is expected to be over by `over_s` (None: nobody knows) may start on the node."""
    first = against(reservations, project, now_s)
    return first is None or (over_s is not None and now_s < first.from_s and over_s <= first.from_s)


def is_own(reservations: Iterable[Reservation], project: str, now_s: float) -> bool:
    """The node is this project's own now."""
    return any(each.project == project and each.runs(now_s) for each in reservations)
