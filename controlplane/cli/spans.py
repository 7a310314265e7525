"""Moments and lengths of time as people write them: 30m, 2h, 3d from now, or an instant."""

from datetime import datetime, timedelta

from controlplane.cli.commands.ledger import UNITS_S, instant
from controlplane.cli.exits import CliError


def begins(words: str) -> datetime:
    """So long from now, or that instant. Raises CliError."""
    unit = UNITS_S.get(words[-1:])
    if unit is not None and words[:-1].isdigit():
        return datetime.now().astimezone() + timedelta(seconds=int(words[:-1]) * unit)
    return instant(words)


def length_of(words: str) -> timedelta:
    """Raises CliError for what is none."""
    unit = UNITS_S.get(words[-1:])
    if unit is None or not words[:-1].isdigit() or not int(words[:-1]):
        raise CliError(f"{words!r} is no length of time", fix="write 30m, 2h or 3d")
    return timedelta(seconds=int(words[:-1]) * unit)
