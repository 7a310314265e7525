"""Many rows of one table at once, of which most columns say the same: PostgreSQL is given new ones by COPY and changes
as arrays, SQLite one after the other of a prepared statement. No model is made of a row, and no statement grows with
the rows.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import Any

from django.db import connection
from django.db.models import AutoField, Field, JSONField, Model


def insert(model: type[Model], same: Mapping[str, Any], names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Rows with `same` (as the model has it, by attribute; where nothing is said the field's default) that differ by
    `names`: of each row's these are text, numbers, None or bytes, JSON as its text. Raises IntegrityError."""
    fields: dict[str, Field[Any, Any]] = {
        field.attname: field for field in model._meta.concrete_fields if not isinstance(field, AutoField)
    }
    assert fields.keys() >= {*same, *names}, f"{model.__name__} has no such columns"
    alike = [name for name in fields if name not in names]
    fixed = tuple(_plain(fields[name], same[name] if name in same else fields[name].get_default()) for name in alike)
    columns = ", ".join(f'"{fields[name].column}"' for name in chain(alike, names))
    table = model._meta.db_table
    if connection.vendor == "postgresql":
        _copy(f'COPY "{table}" ({columns}) FROM STDIN', fixed, rows)
        return
    # Of our own models' names alone is the statement made.
    marks = ", ".join(["%s"] * len(fields))
    with connection.cursor() as cursor:
        statement = f'INSERT INTO "{table}" ({columns}) VALUES ({marks})'  # noqa: S608
        cursor.executemany(statement, [(*fixed, *row) for row in rows])


def update(model: type[Model], same: Mapping[str, Any], names: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Rows that are there get `same` (as the model has it, by attribute), and each its own of `names`: of each of
    `rows` comes its key first, then these, which are text, numbers or None. A key that is none changes nothing."""
    if not rows:
        return
    fields: dict[str, Field[Any, Any]] = {field.attname: field for field in model._meta.concrete_fields}
    assert fields.keys() >= {*same, *names}, f"{model.__name__} has no such columns"
    key, own = model._meta.pk, [fields[name] for name in names]
    alike = [f'"{fields[name].column}" = %s' for name in same]
    fixed = [fields[name].get_db_prep_save(value, connection) for name, value in same.items()]
    table = model._meta.db_table
    # Of our own models' names alone are the statements made.
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            arrays = ", ".join(f"%s::{field.rel_db_type(connection)}[]" for field in (key, *own))
            known = ", ".join(["k", *(f"c{number}" for number in range(len(own)))])
            each = [f'"{field.column}" = v.c{number}' for number, field in enumerate(own)]
            statement = f'UPDATE "{table}" AS t SET {", ".join([*alike, *each])} FROM unnest({arrays}) AS v({known})'  # noqa: S608
            cursor.execute(f'{statement} WHERE t."{key.column}" = v.k', [*fixed, *map(list, zip(*rows, strict=True))])
            return
        each = [f'"{field.column}" = %s' for field in own]
        statement = f'UPDATE "{table}" SET {", ".join([*alike, *each])} WHERE "{key.column}" = %s'  # noqa: S608
        cursor.executemany(statement, [(*fixed, *row[1:], row[0]) for row in rows])


def _copy(statement: str, fixed: tuple[Any, ...], rows: Iterable[Sequence[Any]]) -> None:
    with connection.cursor() as cursor, connection.wrap_database_errors, cursor.cursor.copy(statement) as copy:
        for row in rows:
            copy.write_row((*fixed, *row))


def _plain(field: "Field[Any, Any]", value: Any) -> Any:
    if isinstance(field, JSONField):
        return json.dumps(value)
    made = field.get_db_prep_save(value, connection)
    # PostgreSQL reads the text of a moment, and it is made once.
    return made.isoformat() if isinstance(made, datetime) else made
