"""Moments and lengths of time as people write them: 90s, 30m, 2h, 3d, 1w from now or back, or an instant."""

import re
from datetime import datetime, timedelta

from controlplane.cli.exits import CliError

UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_SPAN = re.compile(r"(\d{1,6}(?:\.\d{1,3})?)([smhdw])")


def span_of(words: str) -> timedelta | None:
    """A number below a million and a unit; None: it is none."""
    found = _SPAN.fullmatch(words.strip())
    return timedelta(**{UNITS[found[2]]: float(found[1])}) if found else None


def length_of(words: str) -> timedelta:
    """As `span_of`, and longer than nothing. Raises CliError."""
    found = span_of(words)
    if not found:
        raise CliError(f"{words!r} is no time span", fix="for example 90s, 30m, 24h or 7d")
    return found


def instant(words: str) -> datetime:
    """Raises CliError for what is none."""
    try:
        found = datetime.fromisoformat(words)
    except ValueError as error:
        raise CliError(f"{words!r} is no instant", fix="write 7d, or 2026-03-01T00:00:00+00:00") from error
    return found if found.tzinfo else found.astimezone()


def begins(words: str) -> datetime:
    """So long from now, or that instant. Raises CliError."""
    return _moved(words, datetime.now().astimezone(), 1)


def since(words: str, until: datetime) -> datetime:
    """So long before `until`, or that instant. Raises CliError."""
    return _moved(words, until, -1)


def _moved(words: str, moment: datetime, way: int) -> datetime:
    span = span_of(words)
    if span is None:
        return instant(words)
    try:
        return moment + way * span
    except OverflowError as error:
        raise CliError(f"{words!r} is no instant: no calendar goes so far", fix="write 7d, or an instant") from error
