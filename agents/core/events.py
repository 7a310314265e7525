"""What happens to the agent. `now_s` is the node's monotonic clock at that moment."""

from collections.abc import Mapping
from dataclasses import dataclass

from agents.core.policy import NodeRules
from agents.core.state import Finding, Identity
from controlplane.protocol.commands import CommandEnvelope
from controlplane.protocol.frames import NodeCheck, Welcome
from controlplane.protocol.launch import RankRef
from controlplane.protocol.rank import FromRank, RankForked, RankHello
from controlplane.protocol.samples import DeviceSample, XidEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    now_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick(_Event):
    """A deadline of the state passed (see `deadlines.next_deadline_s`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RulesRead(_Event):
    """The node's policy file was read again."""

    rules: NodeRules


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkUp(_Event):
    """The server welcomed us."""

    welcome: Welcome


@dataclass(frozen=True, slots=True, kw_only=True)
class ResyncAsked(_Event):
    """The server cannot go on in this journal: what it has and what we kept do not meet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalRenewed(_Event):
    """The journal begins anew under this id; answers `RenewJournal`."""

    journal_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkDown(_Event):
    """The session ended, for whatever reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAcked(_Event):
    """Events up to `seq` are committed there."""

    seq: int
    resend: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderReceived(_Event):
    """Verified commands, oldest first; repeats are ordinary. `rejected`: (id, reason) of those
    that the server did not sign for this node."""

    commands: tuple[CommandEnvelope, ...]
    rejected: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Journaled(_Event):
    """The journal answered for these commands. `error` empty: they are safe on disk."""

    command_ids: tuple[str, ...]
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankConnected(_Event):
    """A process said hello. `peer` and `session_pid` come from the kernel, not from it."""

    conn_id: int
    hello: RankHello
    peer: Identity
    session_pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankDisconnected(_Event):
    """Its connection ended; that says nothing about its life."""

    conn_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMessage(_Event):
    """A line from a connected rank."""

    conn_id: int
    message: FromRank


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLineRefused(_Event):
    """A line of a connected rank was dropped; `closed`: it was one too many, and its connection
    was closed."""

    conn_id: int
    reason: str
    closed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RankForkedHere(_Event):
    """The process of `ref` exists (by the host or spawned directly). `took_s` of spawning."""

    ref: RankRef
    identity: Identity
    took_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSpawnFailed(_Event):
    """It could not be started; no process exists."""

    ref: RankRef
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProcessGone(_Event):
    """The leader is gone. `known` False: the exit status is not (yet) known. `cause` and `hint`:
    what the node knows of an end without a status, or by SIGKILL.
    `pid` None: whichever process this ref had."""

    ref: RankRef
    pid: int | None
    exit_code: int | None
    signal: int | None
    known: bool
    log_tail: str = ""
    cause: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupGone(_Event):
    """No process of the rank's group is left."""

    ref: RankRef


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStarted(_Event):
    """The host's process exists."""

    job_id: str
    identity: Identity


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStartFailed(_Event):
    """It could not be started."""

    job_id: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReadied(_Event):
    """Its imports are done and it answers."""

    job_id: str
    import_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HostListed(_Event):
    """Every living rank it forked."""

    job_id: str
    ranks: tuple[RankForked, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostProcessGone(_Event):
    """The host's process is gone; its ranks may live on."""

    job_id: str
    exit_code: int | None
    log_tail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StacksTaken(_Event):
    """What one look at a rank found, from outside."""

    ref: RankRef
    command_id: str
    text: str
    method: str
    look: str = "stacks"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReset(_Event):
    """`error` empty: the driver has reset the device of this command."""

    command_id: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointProgress(_Event):
    """So much of the checkpoint of this command is read back."""

    command_id: str
    read_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRead(_Event):
    """Its reader has ended: with a `verdict` (JSON), or with none, and `error` says why."""

    command_id: str
    verdict: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultInjected(_Event):
    """The probe's answer to a device fault."""

    command_id: str
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicesSampled(_Event):
    """One round of readings."""

    samples: tuple[DeviceSample, ...]
    uuids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class XidRaised(_Event):
    """The driver reported an XID."""

    xid: XidEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRead(_Event):
    """Lines of a rank's log with markers, up to `read_bytes`; `last`: nothing more will be
    written to it."""

    ref: RankRef
    found: tuple[Finding, ...]
    read_bytes: int = 0
    last: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRead(_Event):
    """Which of the node's checks failed. `command_id`: the start that waits for them, "" for
    none; `launch_failed`: what that launch alone needs and does not find here."""

    failed: tuple[NodeCheck, ...]
    launch_failed: tuple[NodeCheck, ...] = ()
    command_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRead(_Event):
    """What is used of each device's memory; one that gives no reading is None or left out."""

    used_bytes: Mapping[int, int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeRead(_Event):
    """This machine leaves in so many seconds, as its provider says; None: nothing is said of an end."""

    leaves_in_s: float | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationEnds(_Event):
    """The outer scheduler that lent this node takes it back in `grace_s`."""

    grace_s: float
    reason: str


Event = (
    Tick
    | RulesRead
    | LinkUp
    | LinkDown
    | ResyncAsked
    | JournalRenewed
    | ServerAcked
    | OrderReceived
    | Journaled
    | RankConnected
    | RankDisconnected
    | RankMessage
    | RankLineRefused
    | RankForkedHere
    | RankSpawnFailed
    | RankProcessGone
    | GroupGone
    | HostStarted
    | HostStartFailed
    | HostReadied
    | HostListed
    | HostProcessGone
    | StacksTaken
    | FaultInjected
    | DeviceReset
    | CheckpointProgress
    | CheckpointRead
    | DevicesSampled
    | XidRaised
    | LogRead
    | NodeRead
    | MemoryRead
    | NoticeRead
    | AllocationEnds
)
