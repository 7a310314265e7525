"""What apps above add to the summary of a row of an app below: told in lists and in the patches of events.

A job's summary is made by `jobs`, which knows nothing of the apps above it. Such an app says once, at its
start, how to read its part for many rows at once; `present` functions ask here. It reads nothing itself.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal

Entity = Literal["job", "node"]
Reader = Callable[[Collection[str]], Mapping[str, Any]]
"""Ids to values by id; a row that is not there has the empty list."""

_readers: dict[Entity, dict[str, Reader]] = {"job": {}, "node": {}}


def tell(entity: Entity, field: str, reader: Reader) -> None:
    """Each summary of this kind of row has `field`, read so."""
    _readers[entity][field] = reader


def beside(entity: Entity, ids: Collection[str]) -> dict[str, dict[str, Any]]:
    """The added fields of each of these rows, by id."""
    read = {field: reader(ids) for field, reader in _readers[entity].items()} if ids else {}
    return {row_id: {field: found.get(row_id, []) for field, found in read.items()} for row_id in ids}
