"""What a rank's own times teach (S1.3): a step timeout of longest seen x 5, with a floor.

A step in which the membership changed, or was waited for, says nothing about how long a
step takes: left in, one hang of ten seconds makes the next one take fifty to be found.
The first steps of a process are slow and do not count either. Until enough are seen the
launch order's figure holds, which the server has learned from the job's earlier lives.

The longest time out of all sections is told to the server when the rank ends well, for the
job's next launches: one that was killed may have been in the middle of a longer one.
"""

from dataclasses import dataclass

from agents.core.values import replace
from controlplane.protocol.launch import ReplicaLaunch
from controlplane.protocol.rank import RankProgress, StepReport
from controlplane.protocol.states import Section

FACTOR = 5.0
WARM_UP_STEPS = 2
MIN_STEPS = 16


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Of one process. `seen` counts all its steps, `counted` those that `longest_s` is of."""

    seen: int = 0
    counted: int = 0
    longest_s: float = 0.0

    def after(self, report: StepReport) -> "StepTimes":
        """With one more step."""
        if self.seen < WARM_UP_STEPS or report.stall_s > 0.0:
            return StepTimes(self.seen + 1, self.counted, self.longest_s)
        return StepTimes(self.seen + 1, self.counted + 1, max(self.longest_s, report.step_time_s))


NO_STEPS = StepTimes()


def step_timeout_s(launch: ReplicaLaunch, times: StepTimes) -> float:
    """How long a step may take now. Learning only ever tightens what the order allows."""
    if launch.step_floor_s is None or times.counted < MIN_STEPS:
        return launch.step_timeout_s
    return min(launch.step_timeout_s, max(launch.step_floor_s, times.longest_s * FACTOR))


@dataclass(frozen=True, slots=True)
class TimeAside:
    """Out of all sections, of one process. `since_s` of the present time aside (monotonic),
    None while in a section. `whole` False: it was not watched from its beginning."""

    longest_s: float = 0.0
    since_s: float | None = None
    whole: bool = True

    def after(self, said: RankProgress, now_s: float, steps: StepTimes) -> "TimeAside":
        """With one more word of where the rank is; its warm-up teaches nothing."""
        began_s = now_s - said.section_age_s
        ended_s = now_s if said.section is Section.OUT_OF_SECTION else began_s
        since_s = began_s if said.section is Section.OUT_OF_SECTION else None
        known = self if since_s == self.since_s else replace(self, since_s=since_s)
        measured_from_s = since_s if since_s is not None else self.since_s
        if measured_from_s is None or steps.seen < WARM_UP_STEPS:
            return known
        return replace(known, longest_s=max(self.longest_s, ended_s - measured_from_s))

    def at_close(self, now_s: float, steps: StepTimes) -> float | None:
        """Seconds of the longest, at the end of a rank that ended well; None: not known."""
        if not self.whole or steps.counted == 0:
            return None
        last_s = now_s - self.since_s if self.since_s is not None else 0.0
        return max(self.longest_s, last_s)


NEVER_ASIDE = TimeAside()
UNWATCHED = TimeAside(whole=False)
