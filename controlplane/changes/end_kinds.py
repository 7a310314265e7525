"""A change to what is known of a node's end (ADR 0050)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NoteEnd:
    """By its agent the node leaves at `leaves_s`, server Unix seconds, as its provider says; None: it stays. Its jobs
    are looked at."""

    node: str
    leaves_s: float | None
    reason: str
