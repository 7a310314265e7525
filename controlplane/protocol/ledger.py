"""What a second of a device was: the classes of the GPU-second ledger."""

from enum import StrEnum


class TimeClass(StrEnum):
    """Each second of each device is of exactly one. What a job that waits asks for is no device's second: it is
    counted beside them, as "queued"."""

    PRODUCTIVE = "productive"
    DEGRADED = "degraded"
    CHECKPOINT = "checkpoint"
    STALL = "stall"
    RECOVERY = "recovery"
    LOST_WORK = "lost_work"
    PREEMPTED = "preempted"
    IDLE_SPARE = "idle_spare"
    IDLE = "idle"
    CORDONED = "cordoned"
    DOWN = "down"
    NOT_OBSERVED = "not_observed"


class CauseKind(StrEnum):
    """Who or what a second is due to. NONE: nothing has to be explained (it trained, or nobody asked for it).
    RESERVATION: it was free for the jobs of one project alone."""

    NONE = ""
    INCIDENT = "incident"
    DECISION = "decision"
    JOB = "job"
    PERSON = "person"
    NODE = "node"
    RESERVATION = "reservation"


CHARGED = "productive,degraded,checkpoint,recovery,idle_spare"
"""What jobs did with the devices they had: trained, saved, started, and kept spares that they had asked for. Not what
stood still, was done twice, made room for others, or was not seen."""


def charged_classes(text: str) -> tuple[TimeClass, ...]:
    """Names of classes, by commas. Raises ValueError for one that is none, or that no job holds."""
    held = [of for of in TimeClass if of not in (TimeClass.IDLE, TimeClass.CORDONED, TimeClass.DOWN)]
    names = [part.strip() for part in text.split(",") if part.strip()]
    for name in names:
        if name not in held:
            raise ValueError(f"{name!r} is no class that a job's devices can be in: use {', '.join(held)}")
    return tuple(of for of in held if of in names)
