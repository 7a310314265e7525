"""Messages on the agent's WebSocket (MessagePack, one message a frame).

An agent sends one `AgentFrame` a second, and at once when it has events. Samples and
rank progress are hints: the newest wins, loss costs nothing but a point in a chart.
Events are facts: the agent keeps each in its journal until the server has acknowledged
its `seq`, and the server applies them once, in order, by (node, journal_id, seq).
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from controlplane.protocol.bounds import (
    MAX_DEVICES,
    MAX_NODE_CHECKS,
    MAX_RANKS_PER_NODE,
    Bytes,
    Cores,
    Count,
    Detail,
    DeviceIndex,
    ErrorText,
    ExitCode,
    Id,
    IdOrNone,
    Index,
    JobEnd,
    Label,
    Line,
    LookText,
    Marker,
    NodeName,
    NoticeSeconds,
    Pid,
    Reason,
    Repeats,
    Seconds,
    Segment,
    ServerKeys,
    SignalNumber,
    SignatureText,
    Step,
    UnixSeconds,
    Version,
    Word,
)
from controlplane.protocol.commands import SignedCommand
from controlplane.protocol.handshake import Challenge, KeyAccepted, NewKey, Proof, RotateKey
from controlplane.protocol.keeping import CheckpointsPruned
from controlplane.protocol.launch import RankRef
from controlplane.protocol.membership import Flush
from controlplane.protocol.rank import (
    CaughtUp,
    CheckpointReport,
    DeterminismReport,
    NumericsReport,
    OuterError,
    RecomputeReport,
    StepReport,
    TimingReport,
    TrainingDone,
    ViewInstalled,
)
from controlplane.protocol.samples import DeviceInfo, DeviceSample, XidEvent
from controlplane.protocol.states import Phase, RankState, Section

PROTOCOL_MIN = 2
PROTOCOL_MAX = 3
MAX_FRAME_BYTES = 256 * 1024
MAX_EVENT_BYTES = 144 * 1024
"""A rank's longest line, and what its agent adds."""
MAX_EVENTS_PER_FRAME = 500
MAX_SERVER_MESSAGE_BYTES = 4 * 1024 * 1024
MAX_ORDERS = 1024
SESSIONS_START_PER_S = 500.0
"""Sessions that a web process is taken to open in a second until it has measured it."""
RECONNECT_SHORTEST_S = 2.0
RECONNECT_LONGEST_S = 15.0
AnswerState = Literal["acknowledged", "succeeded", "failed", "superseded"]


class _Event(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="event"):
    """Base: the wire form carries `event`."""


class RankStarted(_Event, tag="rank_started"):
    """The process exists; `host_start_s` and `fork_s` are what it took."""

    ref: RankRef
    pid: Pid
    device_index: DeviceIndex
    host_start_s: Seconds = 0.0
    fork_s: Seconds = 0.0


class RankJoined(_Event, tag="rank_joined"):
    """The rank said hello: Megatron is built, it is parked and awaits a view."""

    ref: RankRef
    setup_s: Seconds = 0.0


class RankExited(_Event, tag="rank_exited"):
    """The process is gone (positive evidence). `expected` True: by our own order.
    `detect_s` from the exit's notice at the agent to this event. `log_tail` last lines,
    untrusted text. `out_of_section_s`: its longest time out of all sections, told by a rank
    that ended well and was watched from its first step on; else None. Neither code nor signal:
    nobody saw the end, and `cause` (out_of_memory, segfault, node_restarted, unobserved) with `hint` is the strongest
    thing that the node itself knows of it; they may say more of a SIGKILL too."""

    ref: RankRef
    exit_code: ExitCode | None
    signal: SignalNumber | None
    expected: bool
    log_tail: ErrorText = ""
    out_of_section_s: Seconds | None = None
    cause: Label = ""
    hint: Detail = ""


class RankOverdue(_Event, tag="rank_overdue"):
    """A rank sat longer in a phase that does not wait for others than its section
    allows. `silent_s` since its last word (SIGSTOP: as long as the age)."""

    ref: RankRef
    section: Section
    phase: Phase
    step: Step
    age_s: Seconds
    timeout_s: Seconds
    silent_s: Seconds


RankReport = (
    StepReport
    | Flush
    | OuterError
    | CaughtUp
    | ViewInstalled
    | CheckpointReport
    | CheckpointsPruned
    | TimingReport
    | NumericsReport
    | DeterminismReport
    | TrainingDone
    | RecomputeReport
)


class RankSaid(_Event, tag="rank_said"):
    """A rank's own report, passed on unchanged."""

    ref: RankRef
    report: RankReport


class XidSeen(_Event, tag="xid_seen"):
    """An XID on one of this node's devices."""

    xid: XidEvent


class DeviceLost(_Event, tag="device_lost"):
    """A device that was present is gone from the bus."""

    index: DeviceIndex
    uuid: Label


class CommandAnswer(_Event, tag="command_answer"):
    """`state`: acknowledged (journaled), succeeded, failed or superseded (stale epoch,
    expired). `detail` for people; `data` small JSON text for the server."""

    command_id: Id
    state: AnswerState
    detail: Detail = ""
    data: Detail = ""


class StacksCollected(_Event, tag="stacks_collected"):
    """What a look at one rank found (untrusted text): its stacks, or what `look` names.
    `method`: how it was got; "none" when it could not be, and `text` says why."""

    ref: RankRef
    text: LookText
    method: Label
    command_id: IdOrNone = ""
    look: Word = "stacks"


class LogMarked(_Event, tag="log_marked"):
    """A line of a rank's log with a marker (`protocol.markers`, or one of the job's own).
    `line` is untrusted text; `count` lines since this marker was last told, it among them."""

    ref: RankRef
    marker: Marker
    line: Line
    count: Repeats = 1


class InputRefused(_Event, tag="input_refused"):
    """What this node's agent did not take, `count` times since it was last told: lines or events
    of a rank (`ref`), or records of its own journal that it cannot read (`ref` None). `reason` is
    the last one's; `closed`: the rank's connection was closed for it."""

    ref: RankRef | None
    count: Repeats
    reason: Line
    closed: bool = False


class NodeCheck(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A check of the node that failed: driver, storage, network, nvlink, nvswitch, library,
    program or external. `detail` says what is wrong and how to mend it."""

    name: Word
    detail: Line


class NodeChecked(_Event, tag="node_checked"):
    """Which checks of this node fail now; none: it is healthy. Told when that changes and
    once after each start of the agent."""

    failed: Annotated[tuple[NodeCheck, ...], Meta(max_length=MAX_NODE_CHECKS)]


class NodeNotice(_Event, tag="node_notice"):
    """This node leaves in `leaves_in_s` seconds, as its provider says, for that reason; None: it stays, by now.
    Said when that changes, and once after each start of an agent that reads notices."""

    leaves_in_s: NoticeSeconds | None
    reason: Reason


class HostExited(_Event, tag="host_exited"):
    """A rank host ended; `log_tail` untrusted."""

    job_id: Id
    exit_code: ExitCode | None
    log_tail: ErrorText = ""


EventBody = (
    RankStarted
    | RankJoined
    | RankExited
    | RankOverdue
    | RankSaid
    | XidSeen
    | DeviceLost
    | CommandAnswer
    | StacksCollected
    | LogMarked
    | InputRefused
    | NodeChecked
    | NodeNotice
    | HostExited
)


class AgentEvent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`seq` is gap-free per journal, from 1. `age_s`: how long ago it happened, at
    the moment of sending."""

    seq: Count
    age_s: Seconds
    body: EventBody


class RankStatus(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the agent knows of one rank. Ages by the agent's monotonic clock."""

    ref: RankRef
    state: RankState
    pid: Pid
    device_index: DeviceIndex
    section: Section
    phase: Phase
    step: Step
    phase_age_s: Seconds
    silent_s: Seconds


MAX_JOBS_SEEN = 256


class JobSeen(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The newest that a node was told of a job: its fence, and how the job ended ("" if it was not
    told). `incarnations`: newest started here, by replica. `end_signature`: the server's own of that end,
    "" where none ordered it. A server whose database is older than that was set back, and goes on from
    here."""

    job_id: Id
    attempt: Index
    epoch: Count
    incarnations: Annotated[dict[Index, Index], Meta(max_length=MAX_RANKS_PER_NODE)] = {}
    end: JobEnd = ""
    end_signature: SignatureText = ""


class AgentHello(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="type", tag="hello"):
    """First message after the `Proof` of a session. `ranks` are those alive here (re-adopted ones too).
    `segment`: nodes that name the same one are near each other (an NVLink domain, a block of the
    network); "": nothing is known. `jobs`: what this node was told of jobs, ended ones too."""

    protocol_min: Index
    protocol_max: Index
    node_name: NodeName
    agent_version: Version
    boot_id: Id
    journal_id: Id
    devices: Annotated[tuple[DeviceInfo, ...], Meta(max_length=MAX_DEVICES)]
    ranks: Annotated[tuple[RankStatus, ...], Meta(max_length=MAX_RANKS_PER_NODE)] = ()
    first_unacked_seq: Count = 1
    segment: Segment = ""
    jobs: Annotated[tuple[JobSeen, ...], Meta(max_length=MAX_JOBS_SEEN)] = ()


class AgentFrame(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="type", tag="frame"):
    """`seq` counts frames of this session from 1; `uptime_s` is the agent's monotonic age.
    `cpu_ratio` of one core and `rss_bytes` are the agent's own cost, None in a frame that does
    not measure it. `age_s` above 0: its
    device samples were taken so long ago, while the link was down (backfill)."""

    seq: Count
    uptime_s: Seconds
    devices: Annotated[tuple[DeviceSample, ...], Meta(max_length=MAX_DEVICES)] = ()
    ranks: Annotated[tuple[RankStatus, ...], Meta(max_length=MAX_RANKS_PER_NODE)] = ()
    events: Annotated[tuple[AgentEvent, ...], Meta(max_length=MAX_EVENTS_PER_FRAME)] = ()
    cpu_ratio: Cores | None = None
    rss_bytes: Bytes | None = None
    age_s: Seconds = 0.0


FromAgent = Proof | AgentHello | AgentFrame | NewKey


class Welcome(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="type", tag="welcome"):
    """Session accepted. `acked_seq`: events up to here are applied for this journal.
    `reconnect_within_s`: the longest wait between two tries should the session end.
    `server_keys`: public keys of the server, the current one first; where they are not those
    that the node has pinned it takes them only if a pinned one made `server_keys_signature`."""

    protocol: Index
    node_id: Id
    session_id: Id
    acked_seq: Count
    frame_interval_s: Seconds
    sample_interval_s: Seconds
    demo: bool = False
    reconnect_within_s: Seconds = RECONNECT_LONGEST_S
    server_keys: ServerKeys = ()
    server_keys_signature: SignatureText = ""


def reconnect_within_s(nodes: int, sessions_per_s: float) -> float:
    """How long the agents of so many nodes spread their return after an outage of ours, of which so many sessions are
    opened in a second (`live.intake` measures it): nobody waits longer than he must. Who comes too early is refused
    with the time until it is his turn."""
    return min(RECONNECT_LONGEST_S, max(RECONNECT_SHORTEST_S, nodes / sessions_per_s))


class Acked(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="acked"):
    """Events up to `seq` are committed; resend from `seq` + 1 if `resend`."""

    seq: Count
    resend: bool = False


class Order(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="order"):
    """Commands for this node, oldest first. `server_time_s`: Unix time at the server when it
    sent them; the only clock by which their age is told."""

    commands: Annotated[tuple[SignedCommand, ...], Meta(max_length=MAX_ORDERS)]
    server_time_s: UnixSeconds


class Refused(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="refused"):
    """The session ends. `code`: bad_protocol, unknown_node, revoked, identity_mismatch,
    frame_too_large, malformed_frame, replaced, overloaded, in_doubt (another session with this
    node's key is being asked), cloned (the key is used in two places), resync (send the events
    again in a new journal). `retry_after_s` None: not soon."""

    code: Word
    detail: ErrorText
    retry_after_s: Seconds | None = None


ToAgent = Challenge | Welcome | Acked | Order | Refused | RotateKey | KeyAccepted
