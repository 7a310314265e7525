"""Which incidents of a job one undisturbed run can judge together. Pure.

Recoveries that follow each other quickly ask for runs over nearly the same steps; a run from before the
first of them through the last shows the same, and its program is started once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

MAX_STEPS = 300
"""Of a shared run: beyond that, two sums in another order may differ by as much as is allowed at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRange:
    """An incident waits for a run from `from_step` (committed steps of its checkpoint) to `until_step`."""

    incident_id: str
    from_step: int
    until_step: int


def together(ranges: Sequence[StepRange], *, max_steps: int = MAX_STEPS) -> tuple[StepRange, ...]:
    """The earliest, which leads, and those that a run from there of at most `max_steps` covers whole.
    The leader is first, however long its own run is; () for no ranges."""
    if not ranges:
        return ()
    lead, *others = sorted(ranges, key=lambda one: (one.from_step, one.until_step, one.incident_id))
    return (lead, *(one for one in others if one.until_step - lead.from_step <= max_steps))
