"""How long a section may last: given by the spec, learned from this job, or not known yet.

As in nvidia-resiliency-ext a learned timeout is the longest time seen x `SAFETY_FACTOR`.
`step_s: auto` is learned after `MIN_STEPS` steps, of which those that a start or a view
change made longer do not count, and never below its floor. The other sections are given:
setup and saves are rare and their limits generous, and a save in the background would teach
nothing about one that holds training up.

What is learned rests on rows of the control plane, so the next attempt starts from it, and
travels in the launch order, which the agent keeps in its journal over its own restart.
"""

from enum import StrEnum

import msgspec

from controlplane.protocol.spec import Timeouts
from controlplane.protocol.states import Section

SAFETY_FACTOR = 5.0
MIN_STEPS = 16
WARM_UP_STEPS = 1
"""Steps of each epoch of membership that do not count: they pay for what was built."""
UNLEARNED_STEP_S = 60.0


class Source(StrEnum):
    """Where a timeout comes from."""

    GIVEN = "given"
    LEARNED = "learned"
    DEFAULT = "default"


class Observed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The longest step seen, in seconds, and of how many. None: none seen."""

    step_max_s: float | None = None
    steps: int = 0


class SectionTimeout(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One section's limit. `samples` it was learned from, `longest_s` of them; `why` it is so."""

    section: Section
    value_s: float
    source: Source
    samples: int = 0
    longest_s: float | None = None
    why: str = ""


def section_timeouts(wish: Timeouts, seen: Observed) -> tuple[SectionTimeout, ...]:
    """One for each section, in the order of a rank's life."""
    return (
        SectionTimeout(section=Section.SETUP, value_s=wish.setup_s, source=Source.GIVEN),
        _step(wish, seen),
        SectionTimeout(section=Section.CHECKPOINTING, value_s=wish.checkpoint_s, source=Source.GIVEN),
        SectionTimeout(section=Section.OUT_OF_SECTION, value_s=wish.out_of_section_s, source=Source.GIVEN),
    )


def timeout_of(found: tuple[SectionTimeout, ...], section: Section) -> float:
    """The section's limit in seconds."""
    return next(timeout.value_s for timeout in found if timeout.section is section)


def _step(wish: Timeouts, seen: Observed) -> SectionTimeout:
    if wish.step_s != "auto":
        return SectionTimeout(section=Section.STEP, value_s=float(wish.step_s), source=Source.GIVEN)
    longest_s = seen.step_max_s
    if longest_s is None or seen.steps < MIN_STEPS:
        return SectionTimeout(
            section=Section.STEP,
            value_s=max(wish.step_floor_s, UNLEARNED_STEP_S),
            source=Source.DEFAULT,
            samples=seen.steps,
            longest_s=longest_s,
            why=f"{seen.steps} of {MIN_STEPS} steps seen",
        )
    learned_s = longest_s * SAFETY_FACTOR
    return SectionTimeout(
        section=Section.STEP,
        value_s=max(wish.step_floor_s, learned_s),
        source=Source.LEARNED,
        samples=seen.steps,
        longest_s=longest_s,
        why="" if learned_s >= wish.step_floor_s else f"not below its floor of {wish.step_floor_s:g} s",
    )
