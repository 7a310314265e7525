"""Keyset pages: stable while rows are added, and a cursor nobody needs to understand.

A cursor names the last row of the page before and the list it belongs to; used on
another list, or damaged, it is a 400 and not a surprise.
"""

import base64
import binascii
import re
from bisect import bisect_right
from functools import lru_cache
from typing import Annotated, Any, TypeVar

from django.core.exceptions import ValidationError
from django.db.models import Field, Model, QuerySet
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


class Paging(Schema):
    """Query parameters of a list."""

    limit: Limit = DEFAULT_LIMIT
    cursor: Annotated[str | None, Described(max_length=200, description="`next` of the page before.")] = None


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


def by_name(rows: QuerySet[Row], paging: Paging, *, name: str) -> tuple[list[Row], str | None]:
    """As `page`, by a unique column `name` in the order in which people count: n1, n2, n10. No database sorts
    so; the names alone are read for it."""
    after = decode(paging.cursor, name)
    names = sorted(rows.order_by().values_list("name", flat=True), key=natural)
    start = 0 if after is None else bisect_right(names, natural(after), key=natural)
    shown = names[start : start + paging.limit]
    found = {row.name: row for row in rows.filter(name__in=shown)}
    more = start + paging.limit < len(names)
    return [found[each] for each in shown if each in found], encode(shown[-1], name) if more else None


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
