"""A value with some of its fields changed: what `dataclasses.replace` gives, in a fraction of its time.

The core copies its state several times for each thing that happens. Its values are frozen and check nothing when
they are made, so a copy is one assignment a field, or one update of the dictionary of a value without slots.
"""

from collections.abc import Callable
from dataclasses import fields
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any

__all__ = ["replace"]
Setter = Callable[[Any, Any], None]
Getter = Callable[[Any], tuple[Any, ...]]


@cache
def _fields(kind: Any) -> tuple[Getter, tuple[Setter, ...], dict[str, Setter]]:
    """(what reads all of them at once, what writes each, the same by name)."""
    setters = {field.name: getattr(kind, field.name).__set__ for field in fields(kind)}
    return _all_of(tuple(setters)), tuple(setters.values()), setters


def _all_of(names: tuple[str, ...]) -> Getter:
    """Of one name alone the values would be no tuple."""
    return attrgetter(*names) if len(names) > 1 else lambda value: tuple(getattr(value, name) for name in names)


def _changed(value: Any, /, **changes: Any) -> Any:
    """A copy with these fields. Raises KeyError for one that there is not."""
    kind: Any = type(value)
    made = object.__new__(kind)
    if isinstance(held := getattr(value, "__dict__", None), dict):
        copy = made.__dict__
        copy.update(held, **changes)
        if len(copy) != len(held):
            raise KeyError(", ".join(changes.keys() - held.keys()))
        return made
    get, puts, setters = _fields(kind)
    for put, old in zip(puts, get(value), strict=True):
        put(made, old)
    for name, new in changes.items():
        setters[name](made, new)
    return made


if TYPE_CHECKING:
    from dataclasses import replace
else:
    replace = _changed
