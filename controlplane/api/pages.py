"""Keyset pages: stable while rows are added, and a cursor nobody needs to understand.

A cursor names the last row of the page before and the list it belongs to; used on
another list, or damaged, it is a 400 and not a surprise.
"""

import base64
import binascii
import re
from bisect import bisect_right
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any, TypeVar

from django.core.exceptions import ValidationError
from django.db.models import Field, Model, Q, QuerySet
from ninja import Schema
from pydantic import Field as Described

from controlplane.api.problems import Kind, Problem
from controlplane.protocol.plain import first_fault, text_fault

MAX_LIMIT = 500
DEFAULT_LIMIT = 50
MAX_STEPS = 2000
UNCHANGED = "Use `next` of the page before, unchanged, on the same list."

Limit = Annotated[int, Described(ge=1, le=MAX_LIMIT, description="Rows of a page.")]
Row = TypeVar("Row", bound=Model)
COLUMNS = {"created": "id", "opened": "id", "priority": "priority", "name": "name"}
"""By which lists can be sorted; each is indexed. Keys are ULIDs, which are in the order of their making."""


class Paging(Schema):
    """Query parameters of a list."""

    limit: Limit = DEFAULT_LIMIT
    cursor: Annotated[str | None, Described(max_length=300, description="`next` of the page before.")] = None


class Listing(Paging):
    """Query parameters of a list whose rows can be counted."""

    count: Annotated[bool, Described(description="Count the rows of all pages together, as `total`.")] = False


def counted(listing: Listing, rows: QuerySet[Any]) -> int | None:
    """`total` of an answer: how many there are, where that was asked for, as counting can cost more than the page."""
    return rows.count() if listing.count else None


def page(
    rows: QuerySet[Row], paging: Paging, *, name: str, key: str = "id", ascending: bool = False
) -> tuple[list[Row], str | None]:
    """Newest first by `key` (unique; a ULID, a number, a name), or the other way round. Returns
    the rows and the next cursor."""
    after = decode(paging.cursor, name)
    if after is not None:
        rows = rows.filter(**{f"{key}__{'gt' if ascending else 'lt'}": _typed(rows, key, after)})
    found = list(rows.order_by(key if ascending else f"-{key}")[: paging.limit + 1])
    if len(found) <= paging.limit:
        return found, None
    found.pop()
    return found, encode(str(getattr(found[-1], key)), name)


def sorted_page(rows: QuerySet[Row], paging: Paging, sort: str, *, name: str) -> tuple[list[Row], str | None]:
    """By a column of `COLUMNS`, "-" before it for downwards; rows that are equal are in the order of their making, the
    same way round. A cursor holds both, so that pages stay whole while rows are added."""
    descending = sort.startswith("-")
    column = COLUMNS[sort.removeprefix("-")]
    if column == "id":
        return page(rows, paging, name=name if descending else f"{name}:{sort}", ascending=not descending)
    name, beyond = f"{name}:{sort}", "lt" if descending else "gt"
    after = decode(paging.cursor, name)
    if after is not None:
        key, _, value = after.partition(" ")
        at = _typed(rows, column, value)
        rows = rows.filter(
            Q(**{f"{column}__{beyond}": at}) | Q(**{column: at, f"id__{beyond}": _typed(rows, "id", key)})
        )
    found = list(rows.order_by(*((f"-{column}", "-id") if descending else (column, "id")))[: paging.limit + 1])
    if len(found) <= paging.limit:
        return found, None
    found.pop()
    return found, encode(f"{found[-1].pk} {getattr(found[-1], column)}", name)


def in_turn(
    rows: QuerySet[Row], paging: Paging, turns: Mapping[str, str], *, name: str, descending: bool = False
) -> tuple[list[Row], str | None]:
    """As `page`, of rows with a unique column `name`, each at its turn (text without spaces), and at equal ones by the
    name as people count: n1, n2, n10. No database sorts so; names and turns alone are read for it."""
    line = sorted(turns, key=lambda each: (turns[each], natural(each)), reverse=descending)
    after, start = decode(paging.cursor, name), 0
    if after is not None:
        turn, _, last = after.partition(" ")
        place = (turn, natural(last))
        start = sum((turns[each], natural(each)) >= place for each in line) if descending else bisect_right(
            line, place, key=lambda each: (turns[each], natural(each))
        )  # fmt: skip
    shown = line[start : start + paging.limit]
    found = {row.name: row for row in rows.filter(name__in=shown)}  # type: ignore[attr-defined]
    more = start + paging.limit < len(line)
    here = [found[each] for each in shown if each in found]
    return here, encode(f"{turns[shown[-1]]} {shown[-1]}", name) if more else None


@lru_cache(maxsize=65_536)
def natural(name: str) -> tuple[tuple[str | int, ...], str]:
    """A key to sort by: digits as numbers, letters without their case, equal ones as they are."""
    parts = re.split("([0-9]+)", name)
    return tuple(int(part) if place % 2 else part.casefold() for place, part in enumerate(parts)), name


def encode(key: str, name: str) -> str:
    """The cursor after row `key` of list `name`."""
    return base64.urlsafe_b64encode(f"{name}\n{key}".encode()).decode().rstrip("=")


def decode(cursor: str | None, name: str) -> str | None:
    """The key in a cursor of list `name`. Raises Problem for any other text."""
    if cursor is None:
        return None
    try:
        text = base64.b64decode(cursor.encode() + b"=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        text = ""
    of, _, key = text.partition("\n")
    if of != name or not key or text_fault(key):
        raise Problem(Kind.BAD_CURSOR, UNCHANGED)
    return key


def listing(items: list[Any], next_cursor: str | None, as_of_seq: int, *, total: int | None = None) -> dict[str, Any]:
    """The shape of every list answer. `total`: rows on all pages together, where they are counted."""
    return {"items": items, "next": next_cursor, "as_of_seq": as_of_seq, "total": total}


def _typed(rows: QuerySet[Row], key: str, after: str) -> Any:
    field = rows.model._meta.get_field(key)
    assert isinstance(field, Field), "pages are keyed by a column"
    try:
        value = field.to_python(after)
    except ValidationError as error:
        raise Problem(Kind.BAD_CURSOR, UNCHANGED) from error
    if first_fault(value):
        raise Problem(Kind.BAD_CURSOR, UNCHANGED)
    return value
