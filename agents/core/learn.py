"""A step timeout learned from the rank's own steps (S1.3): longest seen x 5, with a floor.

A step in which the membership changed, or was waited for, says nothing about how long a
step takes: left in, one hang of ten seconds makes the next one take fifty to be found.
The first steps of a process are slow and do not count either. Until enough are seen the
launch order's figure holds, which the server has learned from the job's earlier lives.
"""

from dataclasses import dataclass

from controlplane.protocol.launch import ReplicaLaunch
from controlplane.protocol.rank import StepReport

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
