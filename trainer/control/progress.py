"""Where this rank is: section, phase, step, and since when.

Written by the training loop at each border, read by the control link's thread once a
second. Reading and writing are single tuple assignments, so no lock is held by either.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from controlplane.protocol.rank import RankProgress
from controlplane.protocol.states import Phase, Section


@dataclass(frozen=True, slots=True)
class _Place:
    section: Section
    phase: Phase
    section_since_s: float
    phase_since_s: float
    step: int
    epoch: int


class Progress:
    """`on_border` is called after each change (the link's bell)."""

    def __init__(self, *, step: int) -> None:
        now_s = time.monotonic()
        self._place = _Place(Section.SETUP, Phase.PARKED, now_s, now_s, step, 0)
        self.on_border: Callable[[], None] = _silent

    def enter(self, section: Section, phase: Phase, *, step: int, epoch: int) -> None:
        """Cross a border; ages restart only for what changed. A new step restarts both."""
        old, now_s = self._place, time.monotonic()
        same_section = old.section is section and old.step == step
        same_phase = same_section and old.phase is phase
        if same_phase and old.epoch == epoch:
            return
        self._place = _Place(
            section=section,
            phase=phase,
            section_since_s=old.section_since_s if same_section else now_s,
            phase_since_s=old.phase_since_s if same_phase else now_s,
            step=step,
            epoch=epoch,
        )
        self.on_border()

    def renew(self) -> None:
        """The loop is getting on where it is: its ages begin anew."""
        now_s = time.monotonic()
        self._place = replace(self._place, section_since_s=now_s, phase_since_s=now_s)
        self.on_border()

    def report(self) -> RankProgress:
        """The message of this moment."""
        place, now_s = self._place, time.monotonic()
        return RankProgress(
            section=place.section,
            phase=place.phase,
            phase_age_s=now_s - place.phase_since_s,
            section_age_s=now_s - place.section_since_s,
            step=place.step,
            epoch=place.epoch,
        )

    @property
    def epoch(self) -> int:
        """The newest installed epoch, 0 before the first."""
        return self._place.epoch


def _silent() -> None:
    return None
