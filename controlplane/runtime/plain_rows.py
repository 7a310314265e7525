"""Values of many rows as the database's driver gives them.

Of twelve thousand rows Django's conversion of each value costs three times the query. Here the SQL is Django's own
and the values are not touched: on SQLite a boolean is 0 or 1 and JSON is text, on both databases. For numbers, text,
booleans that are made `bool`, and JSON that its reader decodes; moments differ between the databases and do not belong
here.
"""

from typing import Any

from django.core.exceptions import EmptyResultSet
from django.db import connection
from django.db.models import QuerySet


def plain(rows: "QuerySet[Any, Any]") -> list[tuple[Any, ...]]:
    """What a queryset of `values_list` finds, all of it."""
    try:
        text, parameters = rows.query.sql_with_params()
    except EmptyResultSet:
        return []
    with connection.cursor() as cursor:
        cursor.execute(text, parameters)
        return list(cursor.fetchall())
