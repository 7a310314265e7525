"""What a transactional test leaves is taken out of the tables that hold any of it.

Django empties every table after each such test, and then asks every application to make its content types and
permissions anew. Most tests write into a dozen tables. So here only those are emptied, all of them in one
transaction (foreign keys are looked at when it is committed), and what Django would make anew stays as it is.
Numbers go on where they stood, as with Django. Where a test wrote much, Django's own way is quicker and leaves
the database no dead rows and no statistics: then it is taken. The project "default" is there again, as migrations
made it.
"""

from collections.abc import Callable

from django.db import connections, transaction
from django.test import TransactionTestCase

MANY_ROWS = 1_000
MADE_BY_DJANGO = frozenset({"django_content_type", "auth_permission"})
flush_everything: Callable[[TransactionTestCase], None] = TransactionTestCase._fixture_teardown  # type: ignore[attr-defined]


def tables_of(alias: str) -> tuple[str, ...]:
    """All tables of the models, but those of content types and permissions."""
    found = connections[alias].introspection.django_table_names(only_existing=True, include_views=False)
    return tuple(sorted(set(found) - MADE_BY_DJANGO))


def filled(alias: str) -> dict[str, bool]:
    """The tables with any row -> whether it has more than `MANY_ROWS`."""
    quote = connections[alias].ops.quote_name
    asked = " UNION ALL ".join(  # The names are those of our own models.
        f"SELECT '{name}', EXISTS (SELECT 1 FROM {quote(name)} LIMIT 1 OFFSET {MANY_ROWS}) "
        f"WHERE EXISTS (SELECT 1 FROM {quote(name)})"
        for name in tables_of(alias)
    )
    with connections[alias].cursor() as cursor:
        cursor.execute(asked)
        return {name: bool(many) for name, many in cursor.fetchall()}


def empty(case: TransactionTestCase) -> None:
    """In the place of `TransactionTestCase._fixture_teardown`."""
    for alias in case._databases_names(include_mirrors=False):  # type: ignore[attr-defined]
        found = filled(alias)
        if any(found.values()):
            flush_everything(case)
            default_project()
            return
        with transaction.atomic(using=alias), connections[alias].cursor() as cursor:
            for name in found:
                cursor.execute(f"DELETE FROM {connections[alias].ops.quote_name(name)}")
            default_project()


def default_project() -> None:
    """As migrations made it, where it was emptied too."""
    from controlplane.access.project_models import DEFAULT, Project, Visibility

    Project.objects.get_or_create(name=DEFAULT, defaults={"visibility": Visibility.OPEN})
