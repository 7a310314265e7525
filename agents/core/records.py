"""What the journal keeps: enough to rebuild the state after the agent was killed."""

import msgspec

from controlplane.protocol.bounds import JobEnd
from controlplane.protocol.commands import CommandEnvelope
from controlplane.protocol.frames import EventBody
from controlplane.protocol.launch import RankRef, ReplicaLaunch
from controlplane.protocol.membership import Install, View


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="record"):
    """Base: the stored form carries `record`."""


class Opened(_Record, frozen=True, tag="opened"):
    """First record of a journal, and again whenever the counters are written anew."""

    journal_id: str
    boot_id: str
    next_seq: int = 1


class CommandSeen(_Record, frozen=True, tag="command"):
    """Written before the command is acted on."""

    envelope: CommandEnvelope


class CommandClosed(_Record, frozen=True, tag="closed"):
    """The final answer."""

    command_id: str
    stage: str
    detail: str = ""
    data: str = ""


class EventKept(_Record, frozen=True, tag="event"):
    """A fact, until acknowledged. `at_s` monotonic seconds of this boot."""

    seq: int
    at_s: float
    body: EventBody


class EventsAcked(_Record, frozen=True, tag="acked"):
    """The server has everything up to `seq`."""

    seq: int


class RankKept(_Record, frozen=True, tag="rank"):
    """A rank's whole lasting part, rewritten when it changes. `pid` 0: not yet known."""

    ref: RankRef
    device_index: int
    launch: ReplicaLaunch
    launched_at_s: float
    pid: int = 0
    start_time_ticks: int = 0
    joined: bool = False
    admitted: bool = False
    done: bool = False
    expected: bool = False
    log_read_bytes: int = 0


class RankDropped(_Record, frozen=True, tag="rank_dropped"):
    """Proved gone and reported."""

    ref: RankRef


class HostKept(_Record, frozen=True, tag="host"):
    """A rank host that was started."""

    job_id: str
    pid: int
    start_time_ticks: int


class HostDropped(_Record, frozen=True, tag="host_dropped"):
    """It ended."""

    job_id: str


class JobKept(_Record, frozen=True, tag="job"):
    """A job's fence and newest orders of membership."""

    job_id: str
    attempt: int
    epoch: int
    incarnations: dict[int, int]
    view: View | None = None
    install: Install | None = None
    end: JobEnd = ""
    end_signature: str = ""
    ended_epoch: int = 0


class JobForgotten(_Record, frozen=True, tag="job_forgotten"):
    """The oldest fence made room."""

    job_id: str


Record = (
    Opened
    | CommandSeen
    | CommandClosed
    | EventKept
    | EventsAcked
    | RankKept
    | RankDropped
    | HostKept
    | HostDropped
    | JobKept
    | JobForgotten
)
