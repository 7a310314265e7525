"""Rows and objects to text: table, wide, json, yaml, name, jsonl.

A terminal gets a table cut to its width, with colour beside the state's word; a pipe
gets the same words uncut and without colour. A missing value is "-", never 0.

`put` is the one door to the terminal: every other function here, and so every command, writes
through it (a house test sees to that). What the server says came from nodes, jobs and people:
characters that a terminal obeys, hides or turns are written as escapes (`protocol.plain.shown`).
"""

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Any, TextIO

from controlplane.protocol.plain import shown

Row = Mapping[str, Any]
ABSENT = "-"


class Format(StrEnum):
    """-o"""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"
    JSONL = "jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """`show` makes the text of a row; `wide` columns appear with -o wide alone."""

    title: str
    show: Callable[[Row], str]
    wide: bool = False
    state: bool = False


GREEN, YELLOW, RED, DIM = "32", "33", "31", "2"
COLOURS = {
    "running": GREEN, "succeeded": GREEN, "ready": GREEN, "active": GREEN, "resolved": GREEN, "training": GREEN,
    "complete": GREEN, "verified": GREEN, "green": GREEN,
    "starting": YELLOW, "recovering": YELLOW, "pending": YELLOW, "preempted": YELLOW, "resuming": YELLOW,
    "degraded": YELLOW,
    "incomplete": YELLOW, "cordoned": YELLOW,
    "catching_up": YELLOW, "suspect": YELLOW, "open": YELLOW,
    "failed": RED, "lost": RED, "quarantined": RED, "corrupt": RED, "evicted": RED, "hung": RED, "red": RED,
    "cancelled": DIM, "exited": DIM, "ended": DIM,
}  # fmt: skip

_OWN_COLOURS = re.compile(r"(\x1b\[(?:0|2|31|32|33)m)")


@dataclass(frozen=True, slots=True)
class Screen:
    """Where data goes. `width` None: do not cut."""

    out: TextIO
    colour: bool
    width: int | None

    @staticmethod
    def of(out: TextIO, *, no_color: bool = False) -> "Screen":
        """Ask the stream: a terminal has a width and, unless NO_COLOR or --no-color, colour."""
        if not out.isatty():
            return Screen(out, False, None)
        wanted = not no_color and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        return Screen(out, wanted, shutil.get_terminal_size().columns)


def emit_rows(rows: Iterable[Row], columns: Sequence[Column], form: Format, screen: Screen, *, name: str) -> None:
    """A list. `name`: the field that -o name prints."""
    match form:
        case Format.JSON:
            _line(screen, to_json({"items": list(rows)}, indent=2))
        case Format.YAML:
            _line(screen, to_yaml({"items": list(rows)}).rstrip())
        case Format.JSONL:
            for row in rows:
                _line(screen, to_json(row))
        case Format.NAME:
            for row in rows:
                _line(screen, _cell(str(row[name])))
        case Format.TABLE | Format.WIDE:
            _table(list(rows), [c for c in columns if form is Format.WIDE or not c.wide], screen)


def emit_object(row: Row, columns: Sequence[Column], form: Format, screen: Screen, *, name: str) -> None:
    """One thing: `title: text` lines in the human forms."""
    match form:
        case Format.JSON:
            _line(screen, to_json(row, indent=2))
        case Format.JSONL:
            _line(screen, to_json(row))
        case Format.YAML:
            _line(screen, to_yaml(row).rstrip())
        case Format.NAME:
            _line(screen, _cell(str(row[name])))
        case Format.TABLE | Format.WIDE:
            width = max(len(column.title) for column in columns) + 1
            for column in columns:
                text = _painted(_cell(column.show(row)), column, screen)
                _line(screen, f"{(column.title.lower() + ':').ljust(width)} {text}")


def to_json(value: Any, *, indent: int | None = None, sort_keys: bool = False) -> str:
    """ASCII, so that nothing in it steers a terminal; a reader gets every text as it came."""
    return json.dumps(value, indent=indent, sort_keys=sort_keys).replace("\x7f", "\\u007f")


def to_yaml(value: Any) -> str:
    """Block style, keys in the order given; ASCII where a text has what a terminal must not get."""
    import yaml

    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100)
    if shown(text) != text:
        text = yaml.safe_dump(value, sort_keys=False, allow_unicode=False, width=100)
    return text


def put(out: TextIO, text: str, *, colour: bool = False) -> None:
    """Write one text and a line's end: the only place of the program that does. `colour`: our own
    colour codes stay; a caller that asks for them has passed what it shows through `_cell`."""
    pieces = _OWN_COLOURS.split(text) if colour else [text]
    print("".join(piece if colour and _OWN_COLOURS.fullmatch(piece) else shown(piece) for piece in pieces), file=out)


def say(text: str = "") -> None:
    """Data for people, on stdout."""
    put(sys.stdout, text)


def note(text: str) -> None:
    """To people, on stderr."""
    put(sys.stderr, text)


def text(key: str) -> Callable[[Row], str]:
    """A field as it is."""

    def show(row: Row) -> str:
        value = row.get(key)
        return ABSENT if value is None or value == "" else str(value)

    return show


def number(key: str, digits: int, unit: str = "") -> Callable[[Row], str]:
    """A field with `digits` after the point."""

    def show(row: Row) -> str:
        value = row.get(key)
        return ABSENT if value is None else f"{value:.{digits}f}{unit}"

    return show


def percent(key: str) -> Callable[[Row], str]:
    """A ratio as percent."""

    def show(row: Row) -> str:
        value = row.get(key)
        return ABSENT if value is None else f"{100 * value:.1f}%"

    return show


SAME_CLOCK = timedelta(seconds=2)


class ServerClock:
    """Instants are the server's: how old they are is told by its clock, and not by that of this machine."""

    ahead = timedelta(0)

    def note(self, date: str) -> None:
        """`Date` of an answer, in whole seconds: within two of ours the clocks are taken for the same."""
        try:
            ahead = parsedate_to_datetime(date) - datetime.now(UTC)
        except ValueError:
            return
        self.ahead = ahead if abs(ahead) > SAME_CLOCK else timedelta(0)

    def now(self) -> datetime:
        """As the server says it."""
        return datetime.now(UTC) + self.ahead


SERVER = ServerClock()


def age(key: str, now: Callable[[], datetime] = SERVER.now) -> Callable[[Row], str]:
    """Time since an instant; what is none is shown as it came."""

    def show(row: Row) -> str:
        value = row.get(key)
        if not value:
            return ABSENT
        try:
            return span((now() - parse(str(value))).total_seconds())
        except ValueError:
            return str(value)

    return show


def seconds(key: str) -> Callable[[Row], str]:
    """A duration in seconds, for people."""

    def show(row: Row) -> str:
        value = row.get(key)
        return ABSENT if value is None else span(float(value))

    return show


def span(duration_s: float) -> str:
    """4.2s, 3m10s, 5h12m, 3d4h; what lies ahead has a sign."""
    if duration_s < 0:
        return f"-{span(-duration_s)}"
    if duration_s < 10:
        return f"{duration_s:.1f}s"
    whole = int(duration_s)
    for unit_s, unit, below_s, below in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= unit_s:
            return f"{whole // unit_s}{unit}{whole % unit_s // below_s}{below}"
    return f"{whole}s"


def parse(instant: str) -> datetime:
    """ISO-8601 with Z or an offset."""
    return datetime.fromisoformat(instant.replace("Z", "+00:00"))


def _table(rows: list[Row], columns: Sequence[Column], screen: Screen) -> None:
    cells = [[_cell(column.show(row).replace("\n", " ")) for column in columns] for row in rows]
    widths = [max([len(c.title), *(len(line[i]) for line in cells)]) for i, c in enumerate(columns)]
    _line(screen, "  ".join(c.title.ljust(w) for c, w in zip(columns, widths, strict=True)).rstrip(), cut=True)
    for line in cells:
        padded = [value.ljust(width) for value, width in zip(line, widths, strict=True)]
        plain = "  ".join(padded).rstrip()
        if screen.width is not None and len(plain) > screen.width:
            _line(screen, plain, cut=True)
            continue
        painted = [_painted(value, column, screen) for value, column in zip(padded, columns, strict=True)]
        _line(screen, "  ".join(painted).rstrip())


def _cell(text: str) -> str:
    """On one line, and without anything that looks like a colour code of ours."""
    return shown(text, layout=False)


def _painted(value: str, column: Column, screen: Screen) -> str:
    colour = COLOURS.get(value.strip()) if screen.colour and column.state else None
    return f"\x1b[{colour}m{value}\x1b[0m" if colour else value


def _line(screen: Screen, line: str, *, cut: bool = False) -> None:
    if cut and screen.width is not None and len(line) > screen.width:
        line = line[: max(1, screen.width - 1)] + ">"
    put(screen.out, line, colour=screen.colour)
