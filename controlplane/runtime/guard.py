"""The one way a state column changes: table check, then compare-and-set."""

from typing import Any, TypeVar

from django.db import models

from controlplane.policy.transitions import check
from controlplane.runtime.clock import now
from controlplane.runtime.errors import LostRace

M = TypeVar("M", bound=models.Model)


def move(row: M, machine: str, to: str, **columns: Any) -> str:
    """Set `row.state` to `to` if it still is what `row` says. `columns` are written with
    it (`state_since` by itself where the model has one). Returns the table's reason.
    Raises IllegalTransition (the table forbids it) or LostRace (somebody was first)."""
    before = str(row.state)  # type: ignore[attr-defined]
    reason = check(machine, before, to)
    names = {field.name for field in row._meta.get_fields()}
    changes: dict[str, Any] = {"state": str(to), **columns}
    if "state_since" in names:
        changes.setdefault("state_since", now())
    changed = type(row)._default_manager.filter(pk=row.pk, state=before).update(**changes)
    if not changed:
        raise LostRace(f"{machine} {row.pk} is not {before} any more")
    for name, value in changes.items():
        setattr(row, name, value)
    return reason
