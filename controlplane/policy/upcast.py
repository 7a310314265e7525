"""Snapshots of earlier shapes, as today's types read them.

A stored snapshot carries the number of its shape. Who takes a field away or gives it another meaning raises `SHAPE`,
writes the step from the one before here, and keeps a fixture of it (`tests/unit/policy/snapshots`); a new field with a
default needs none of that. Pure: plain data in, plain data out.
"""

from collections.abc import Callable
from typing import Any

Raw = dict[str, Any]
SHAPE = 1
"""Of today's `JobSnapshot` and `FleetSnapshot`; 0: what was stored before shapes had numbers."""


def upcast(raw: Raw, shape: int) -> Raw:
    """The snapshot in today's shape. Raises ValueError for one of a newer release."""
    if not 0 <= shape <= SHAPE:
        raise ValueError(f"a snapshot of shape {shape} is of a newer release; this one reads up to {SHAPE}")
    for number in range(shape, SHAPE):
        raw = STEPS[number](raw)
    return raw


def _from_0(raw: Raw) -> Raw:
    """A replica said only whether it had been left out before; it says now how often."""
    replicas = []
    for replica in raw.get("replicas", ()):
        kept = {name: value for name, value in replica.items() if name != "left_out_before"}
        if replica.get("left_out_before"):
            kept.setdefault("times_out", 1)
        replicas.append(kept)
    return raw | {"replicas": replicas} if "replicas" in raw else raw


STEPS: tuple[Callable[[Raw], Raw], ...] = (_from_0,)
"""From shape 0 to 1, and so on."""
assert len(STEPS) == SHAPE, "each shape has a step to the next"
