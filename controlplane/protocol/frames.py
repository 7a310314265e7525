"""Messages on the agent's WebSocket (MessagePack, one message a frame).

An agent sends one `AgentFrame` a second, and at once when it has events. Samples and
rank progress are hints: the newest wins, loss costs nothing but a point in a chart.
Events are facts: the agent keeps each in its journal until the server has acknowledged
its `seq`, and the server applies them once, in order, by (node, journal_id, seq).
"""

import msgspec

from controlplane.protocol.commands import CommandEnvelope
from controlplane.protocol.handshake import Challenge, KeyAccepted, NewKey, Proof, PublicKey, RotateKey
from controlplane.protocol.launch import RankRef
from controlplane.protocol.membership import Flush
from controlplane.protocol.rank import (
    CaughtUp,
    CheckpointReport,
    DeterminismReport,
    NumericsReport,
    OuterError,
    StepReport,
    TimingReport,
    TrainingDone,
    ViewInstalled,
)
from controlplane.protocol.samples import DeviceInfo, DeviceSample, XidEvent
from controlplane.protocol.states import Phase, RankState, Section

PROTOCOL_MIN = 2
PROTOCOL_MAX = 2
MAX_FRAME_BYTES = 256 * 1024
MAX_EVENTS_PER_FRAME = 500
RECONNECTS_PER_S = 500
RECONNECT_SHORTEST_S = 2.0
RECONNECT_LONGEST_S = 15.0


class _Event(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="event"):
    """Base: the wire form carries `event`."""


class RankStarted(_Event, tag="rank_started"):
    """The process exists; `host_start_s` and `fork_s` are what it took."""

    ref: RankRef
    pid: int
    device_index: int
    host_start_s: float = 0.0
    fork_s: float = 0.0


class RankJoined(_Event, tag="rank_joined"):
    """The rank said hello: Megatron is built, it is parked and awaits a view."""

    ref: RankRef
    setup_s: float = 0.0


class RankExited(_Event, tag="rank_exited"):
    """The process is gone (positive evidence). `expected` True: by our own order.
    `detect_s` from the exit's notice at the agent to this event. `log_tail` last lines,
    untrusted text. `out_of_section_s`: its longest time out of all sections, told by a rank
    that ended well and was watched from its first step on; else None."""

    ref: RankRef
    exit_code: int | None
    signal: int | None
    expected: bool
    log_tail: str = ""
    out_of_section_s: float | None = None


class RankOverdue(_Event, tag="rank_overdue"):
    """A rank sat longer in a phase that does not wait for others than its section
    allows. `silent_s` since its last word (SIGSTOP: as long as the age)."""

    ref: RankRef
    section: Section
    phase: Phase
    step: int
    age_s: float
    timeout_s: float
    silent_s: float


class RankSaid(_Event, tag="rank_said"):
    """A rank's own report, passed on unchanged."""

    ref: RankRef
    report: (
        StepReport
        | Flush
        | OuterError
        | CaughtUp
        | ViewInstalled
        | CheckpointReport
        | TimingReport
        | NumericsReport
        | DeterminismReport
        | TrainingDone
    )


class XidSeen(_Event, tag="xid_seen"):
    """An XID on one of this node's devices."""

    xid: XidEvent


class DeviceLost(_Event, tag="device_lost"):
    """A device that was present is gone from the bus."""

    index: int
    uuid: str


class CommandAnswer(_Event, tag="command_answer"):
    """`state`: acknowledged (journaled), succeeded, failed or superseded (stale epoch,
    expired). `detail` for people; `data` small JSON text for the server."""

    command_id: str
    state: str
    detail: str = ""
    data: str = ""


class StacksCollected(_Event, tag="stacks_collected"):
    """What a look at one rank found (untrusted text): its stacks, or what `look` names.
    `method`: how it was got; "none" when it could not be, and `text` says why."""

    ref: RankRef
    text: str
    method: str
    command_id: str = ""
    look: str = "stacks"


class LogMarked(_Event, tag="log_marked"):
    """A line of a rank's log with a marker (`protocol.markers`, or one of the job's own).
    `line` is untrusted text; `count` lines since this marker was last told, it among them."""

    ref: RankRef
    marker: str
    line: str
    count: int = 1


class NodeCheck(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A check of the node that failed: driver, storage, network, nvlink, library
    or external. `detail` says what is wrong and how to mend it."""

    name: str
    detail: str


class NodeChecked(_Event, tag="node_checked"):
    """Which checks of this node fail now; none: it is healthy. Told when that changes and
    once after each start of the agent."""

    failed: tuple[NodeCheck, ...]


class HostExited(_Event, tag="host_exited"):
    """A rank host ended; `log_tail` untrusted."""

    job_id: str
    exit_code: int | None
    log_tail: str = ""


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
    | NodeChecked
    | HostExited
)


class AgentEvent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`seq` is gap-free per journal, from 1. `age_s`: how long ago it happened, at
    the moment of sending."""

    seq: int
    age_s: float
    body: EventBody


class RankStatus(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the agent knows of one rank. Ages by the agent's monotonic clock."""

    ref: RankRef
    state: RankState
    pid: int
    device_index: int
    section: Section
    phase: Phase
    step: int
    phase_age_s: float
    silent_s: float


class AgentHello(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="type", tag="hello"):
    """First message after the `Proof` of a session. `ranks` are those alive here (re-adopted ones too).
    `segment`: nodes that name the same one are near each other (an NVLink domain, a block of the
    network); "": nothing is known."""

    protocol_min: int
    protocol_max: int
    node_name: str
    agent_version: str
    boot_id: str
    journal_id: str
    devices: tuple[DeviceInfo, ...]
    ranks: tuple[RankStatus, ...] = ()
    first_unacked_seq: int = 1
    segment: str = ""


class AgentFrame(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="type", tag="frame"):
    """`seq` counts frames of this session from 1; `uptime_s` is the agent's monotonic age.
    `cpu_ratio` of one core and `rss_bytes` are the agent's own cost. `age_s` above 0: its
    device samples were taken so long ago, while the link was down (backfill)."""

    seq: int
    uptime_s: float
    devices: tuple[DeviceSample, ...] = ()
    ranks: tuple[RankStatus, ...] = ()
    events: tuple[AgentEvent, ...] = ()
    cpu_ratio: float = 0.0
    rss_bytes: int = 0
    age_s: float = 0.0


FromAgent = Proof | AgentHello | AgentFrame | NewKey


class Welcome(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="type", tag="welcome"):
    """Session accepted. `acked_seq`: events up to here are applied for this journal.
    `reconnect_within_s`: the longest wait between two tries should the session end.
    `server_keys`: the public keys with which the server signs; an agent takes a changed set only
    with a `server_keys_signature` of a key that it has pinned."""

    protocol: int
    node_id: str
    session_id: str
    acked_seq: int
    frame_interval_s: float
    sample_interval_s: float
    demo: bool = False
    reconnect_within_s: float = RECONNECT_LONGEST_S
    server_keys: tuple[PublicKey, ...] = ()
    server_keys_signature: bytes = b""


def reconnect_within_s(nodes: int) -> float:
    """How long the agents of so many nodes spread their return after an outage of ours: at
    most `RECONNECTS_PER_S` ask at a time, nobody waits longer than he must."""
    return min(RECONNECT_LONGEST_S, max(RECONNECT_SHORTEST_S, nodes / RECONNECTS_PER_S))


class Acked(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="acked"):
    """Events up to `seq` are committed; resend from `seq` + 1 if `resend`."""

    seq: int
    resend: bool = False


class Order(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="order"):
    """Commands for this node, oldest first."""

    commands: tuple[CommandEnvelope, ...]


class Refused(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="refused"):
    """The session ends. `code`: bad_protocol, unknown_node, revoked, identity_mismatch,
    frame_too_large, malformed_frame, replaced, overloaded, in_doubt (another session with this
    node's key is being asked), cloned (the key is used in two places), resync (send the events
    again in a new journal). `retry_after_s` None: not soon."""

    code: str
    detail: str
    retry_after_s: float | None = None


ToAgent = Challenge | Welcome | Acked | Order | Refused | RotateKey | KeyAccepted
