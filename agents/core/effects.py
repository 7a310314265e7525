"""What the agent does. The runtime carries effects out in order; none of them fails
into the core, outcomes come back as events."""

from dataclasses import dataclass
from enum import StrEnum

from agents.core.records import Record
from agents.core.state import Identity
from controlplane.protocol.commands import InjectDeviceFault, ResetDevice, VerifyCheckpoint
from controlplane.protocol.launch import RankRef, ReplicaLaunch
from controlplane.protocol.rank import ForkRank, ToRank


@dataclass(frozen=True, slots=True)
class Persist:
    """Append to the journal (written at once, not yet forced to disk)."""

    record: Record


@dataclass(frozen=True, slots=True)
class Commit:
    """Answer `Journaled` for these commands; `durable`: only after fsync."""

    command_ids: tuple[str, ...]
    durable: bool


@dataclass(frozen=True, slots=True)
class SendSoon:
    """A frame must leave within this time; events wait in the state."""

    within_s: float


@dataclass(frozen=True, slots=True)
class StartHost:
    """Start the rank host of the job, detached; `user` is the job's owner."""

    job_id: str
    user: str


@dataclass(frozen=True, slots=True)
class AskHost:
    """Ask the job's host which ranks live (after an agent restart)."""

    job_id: str


@dataclass(frozen=True, slots=True)
class ShutdownHost:
    """Send an idle host home."""

    job_id: str


@dataclass(frozen=True, slots=True)
class Fork:
    """Ask the job's host for one rank. The runtime puts the paths in: of the agent's socket and
    of the log."""

    order: ForkRank


@dataclass(frozen=True, slots=True)
class CheckNode:
    """Answer `NodeRead` for this start: may its ranks be started here? `node_id` as the ranks will
    know it."""

    command_id: str
    launch: ReplicaLaunch
    node_id: str = ""


@dataclass(frozen=True, slots=True)
class ReadMemory:
    """Answer `MemoryRead`, from a fresh sample if the driver gives one in time."""


@dataclass(frozen=True, slots=True)
class Spawn:
    """Start an entrypoint rank directly."""

    ref: RankRef
    launch: ReplicaLaunch
    device_index: int


class Reach(StrEnum):
    """Whom a signal is for."""

    PROCESS = "process"
    GROUP = "group"


@dataclass(frozen=True, slots=True)
class Signal:
    """Signal the rank's process or group, only while the identity still holds."""

    ref: RankRef
    identity: Identity
    number: int
    reach: Reach


@dataclass(frozen=True, slots=True)
class Watch:
    """Answer `RankProcessGone` when this process ends."""

    ref: RankRef
    identity: Identity


@dataclass(frozen=True, slots=True)
class SweepGroup:
    """Kill what is left of the group and answer `GroupGone` once it is empty."""

    ref: RankRef
    identity: Identity | None


@dataclass(frozen=True, slots=True)
class ToConnection:
    """A line to a connected rank."""

    conn_id: int
    message: ToRank


@dataclass(frozen=True, slots=True)
class CloseConnection:
    """After what was written has left."""

    conn_id: int


@dataclass(frozen=True, slots=True)
class TakeStacks:
    """Look at the rank and answer `StacksTaken`; `duration_s` of a profile."""

    ref: RankRef
    identity: Identity
    command_id: str
    look: str = "stacks"
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True)
class InjectDevice:
    """Answer `FaultInjected`."""

    command_id: str
    fault: InjectDeviceFault


@dataclass(frozen=True, slots=True)
class Reset:
    """Answer `DeviceReset`."""

    command_id: str
    wanted: ResetDevice


@dataclass(frozen=True, slots=True)
class ReadCheckpoint:
    """Answer `CheckpointProgress` now and then, and `CheckpointRead` at the end."""

    command_id: str
    wanted: VerifyCheckpoint


@dataclass(frozen=True, slots=True)
class StopReading:
    """End the reader of this command; it answers `CheckpointRead` as any other."""

    command_id: str


@dataclass(frozen=True, slots=True)
class DropLink:
    """Close the link after the pending frame has left, for `seconds`."""

    seconds: float


@dataclass(frozen=True, slots=True)
class WriteToLog:
    """A line for the rank's own log, where its owner looks."""

    ref: RankRef
    line: str


@dataclass(frozen=True, slots=True)
class RenewJournal:
    """Answer `JournalRenewed` with a fresh id, write the journal anew, and connect again."""


@dataclass(frozen=True, slots=True)
class Leave:
    """This agent ends, and with it its part of an outer scheduler's allocation."""


@dataclass(frozen=True, slots=True)
class Note:
    """A line for the agent's own log."""

    event: str
    fields: tuple[tuple[str, str], ...] = ()


Effect = (
    Persist
    | Commit
    | SendSoon
    | StartHost
    | AskHost
    | ShutdownHost
    | CheckNode
    | ReadMemory
    | Fork
    | Spawn
    | Signal
    | Watch
    | SweepGroup
    | ToConnection
    | CloseConnection
    | TakeStacks
    | InjectDevice
    | Reset
    | ReadCheckpoint
    | StopReading
    | DropLink
    | WriteToLog
    | RenewJournal
    | Leave
    | Note
)
