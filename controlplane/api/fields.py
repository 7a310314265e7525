"""`fields=`: the fields of an answer that are asked for, by their names."""

from collections.abc import Collection, Iterable
from typing import Annotated, Any

import msgspec
from pydantic import Field as Described

from controlplane.api.problems import Kind, Problem
from controlplane.protocol.rest import FieldError

MAX_CHARS = 1000
Fields = Annotated[
    str, Described(max_length=MAX_CHARS, description="Names of fields, by commas: these alone. Absent: as they are.")
]


def chosen(asked: str, known: Collection[str], default: Collection[str], *, of: str) -> tuple[str, ...]:
    """The names that are asked for, each once and in the sequence of `known`; none asked for: `default`. `of`: what
    has these fields, for people. Raises Problem (422) that names what is not known."""
    names = {name.strip() for name in asked.split(",")} - {""}
    strangers = sorted(names - set(known))
    if strangers:
        detail = f"{strangers[0][:64]!r} is no field of {of}"
        told = FieldError("/query/fields", detail, f"use {', '.join(known)}")
        raise Problem(Kind.INVALID, "A parameter is not valid.", errors=[told])
    return tuple(name for name in known if name in (names or default))


def of_rows(asked: str, kind: type[msgspec.Struct], *, of: str) -> tuple[str, ...] | None:
    """As `chosen`, of the rows of a list, which are of this type; None: nothing was asked for, so all of them."""
    known = tuple(field.encode_name for field in msgspec.structs.fields(kind))
    return chosen(asked, known, known, of=of) if asked else None


def only(items: Iterable[dict[str, Any]], names: Collection[str] | None) -> list[dict[str, Any]]:
    """Each without its other fields."""
    if names is None:
        return list(items)
    return [{name: item[name] for name in names if name in item} for item in items]
