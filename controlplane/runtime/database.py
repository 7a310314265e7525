"""What a database must be before anything is put into it."""

from collections.abc import Sequence
from typing import Any

from django.core.checks import CheckMessage, Error
from django.db import connections

NEEDED = "UTF8"


def check_encoding(*, databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Run by `manage.py migrate`: a PostgreSQL database that keeps text in another encoding cannot keep every
    report of a rank (it came in UTF-8), and would put those aside one by one."""
    found: list[CheckMessage] = []
    for alias in databases or ():
        if connections[alias].vendor != "postgresql":
            continue
        with connections[alias].cursor() as cursor:
            cursor.execute("SHOW server_encoding")
            (encoding,) = cursor.fetchone()
        if encoding != NEEDED:
            found.append(
                Error(
                    f"The database keeps text in {encoding}; Holdfast needs {NEEDED}.",
                    hint="Make another one: CREATE DATABASE holdfast OWNER holdfast ENCODING 'UTF8' TEMPLATE template0;",
                    id="holdfast.E001",
                )
            )
    return found
