"""Faults a rank can be given on purpose, and who carries each of them out.

The agent sends signals from outside; everything else the rank does to itself when its
agent tells it to. Both refuse unless the job allows faults. A schedule in a job spec
(`resiliency.faults`) names the same faults by the words of S1.5.
"""

from collections.abc import Mapping
from types import MappingProxyType

from controlplane.protocol.spec import FaultSchedule, TrainSpec

# Sent to the rank's process by its agent.
SIGNALS: Mapping[str, int] = MappingProxyType({"sigkill": 9, "sigstop": 19, "sigcont": 18})
# Done by the trainer itself. `value`: seconds of hang and gil_lock (0 for ever), seconds
# more per micro-batch of slow (0 heals); the others take none.
INSIDE = frozenset({"hang", "slow", "exception", "nan", "abort", "segfault", "gil_lock", "communication"})
FAULTS = frozenset(SIGNALS) | INSIDE

# A schedule's word for it -> the fault, and the value a schedule gives it.
SCHEDULED: Mapping[str, tuple[str, float]] = MappingProxyType(
    {
        "rank_killed": ("sigkill", 0.0),
        "rank_hung": ("sigstop", 0.0),
        "slow": ("slow", 0.5),
        "nan": ("nan", 0.0),
        "exception": ("exception", 0.0),
        "abort": ("abort", 0.0),
        "segfault": ("segfault", 0.0),
        "gil_lock": ("gil_lock", 0.0),
        "communication": ("communication", 0.0),
    }
)
RANDOM = "random"


def kinds_for(spec: TrainSpec) -> tuple[str, ...]:
    """What `random` chooses from, sorted. A program of the job's own is reached by
    signals alone, and one replica has nobody to be cut off from."""
    if spec.entrypoint is not None:
        return tuple(sorted(kind for kind, (fault, _) in SCHEDULED.items() if fault in SIGNALS))
    return tuple(sorted(SCHEDULED))


def is_scheduled(schedule: FaultSchedule) -> bool:
    """The job wants faults at all."""
    return schedule.kind != "none"
