"""A source of notices: where this machine's provider says that it will be taken away.

A driver reads; it decides nothing and changes nothing. What it cannot read is an error with a sentence, never a notice:
a node that leaves by mistake costs its jobs a move.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

MAX_BYTES = 4096
"""Of a file or an answer. A notice is a line."""
MAX_REASON_CHARS = 200


class NoticeError(Exception):
    """What was read is no notice, or nothing could be read: one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """This machine leaves at `at_unix_s`, by its own wall clock."""

    at_unix_s: float
    reason: str


class Notices(Protocol):
    """One provider's way to say it."""

    def read(self, now_unix_s: float) -> Notice | None:
        """What holds at this moment of the machine's wall clock; None: nothing is said. May wait for a second or two.
        Raises NoticeError."""
        ...


def moment(text: object) -> float:
    """Unix seconds of an instant in ISO-8601 with a zone. Raises NoticeError."""
    if not isinstance(text, str) or len(text) > 40:
        raise NoticeError(f"{str(text)[:40]!r} is no instant")
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise NoticeError(f"{text!r} is no instant") from error
    if found.tzinfo is None:
        raise NoticeError(f"{text!r} names no time zone")
    return found.timestamp()
