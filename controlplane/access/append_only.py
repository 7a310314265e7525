"""Rows that are written once: the mixin and manager of the audit tables.

Called by Django through `access.models`. It stops a mistake in our own code, not somebody with
access to the database: that is what the chain (`access.chain`) and the database's own rights
(docs/access.md) are for.
"""

from typing import Any, NoReturn

from django.db import models


class AppendOnlyError(RuntimeError):
    """Code tried to change or delete an audit row: a mistake of ours, never of a caller."""


def _refuse() -> NoReturn:
    raise AppendOnlyError("audit rows are appended, never changed or deleted")


class AppendOnlyQuerySet(models.QuerySet[Any]):
    """Reads and inserts; everything else is refused."""

    def update(self, **_: Any) -> NoReturn:
        """Never."""
        _refuse()

    def delete(self) -> NoReturn:
        """Never."""
        _refuse()

    def bulk_update(self, *_: Any, **__: Any) -> NoReturn:
        """Never."""
        _refuse()


class AppendOnly:
    """Before `models.Model` in a model's bases."""

    _state: Any

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Insert; a row that is there already is refused."""
        if not self._state.adding:
            _refuse()
        super().save(*args, **kwargs)  # type: ignore[misc]

    def delete(self, *_: Any, **__: Any) -> NoReturn:
        """Never."""
        _refuse()
