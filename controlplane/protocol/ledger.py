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
