"""What the agent knows, as immutable values. Times are the node's monotonic seconds.

Those that change with each event, and have many fields, keep them in a dictionary (no slots), which is copied at
once (`values`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from agents.core import limits
from agents.core.learn import NEVER_ASIDE, NO_STEPS, StepTimes, TimeAside
from agents.core.policy import DEFAULT_RULES, NodeRules
from controlplane.protocol.bounds import JobEnd
from controlplane.protocol.commands import CommandEnvelope
from controlplane.protocol.frames import EventBody, NodeCheck
from controlplane.protocol.launch import RankRef, ReplicaLaunch
from controlplane.protocol.membership import Install, View
from controlplane.protocol.states import Phase, Section


@dataclass(frozen=True, slots=True)
class Identity:
    """A process, never mistaken for another: pid and field 22 of /proc/<pid>/stat."""

    pid: int
    start_time_ticks: int


class ProcessState(StrEnum):
    """A rank's process as seen from outside."""

    LAUNCHING = "launching"  # asked for, identity not yet known
    ALIVE = "alive"
    GONE = "gone"  # the leader is gone; its process group is not yet proved empty


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`count` lines with this marker, `line` the last of them (printable, cut)."""

    marker: str
    line: str
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """When a marker was last told, and what came since."""

    told_s: float
    unsaid: Finding | None = None


Marks = Mapping[str, Mark]


@dataclass(frozen=True, slots=True)
class Refused:
    """What was refused of a rank: when that was last told (None: never), and what came since.
    `closed`: a connection was closed for it; `told_closed`: and that was told once."""

    told_s: float | None = None
    count: int = 0
    reason: str = ""
    closed: bool = False
    told_closed: bool = False


NOTHING_REFUSED = Refused()


@dataclass(frozen=True, slots=True)
class Waiting:
    """Events about one rank that the server has not acknowledged."""

    count: int = 0
    bytes: int = 0


NONE_WAITS = Waiting()


@dataclass(frozen=True, slots=True)
class Away:
    """This process did not run for `missed_s` before `until_s`, as a machine that stood still; so many `times`
    in a row."""

    until_s: float = 0.0
    missed_s: float = 0.0
    times: int = 0


NEVER_AWAY = Away()


@dataclass(frozen=True, kw_only=True)
class Rank:
    """One process of one incarnation. `conn_id` None: not connected.
    `expected`: we ordered its end. `admitted`: it was a member of a view we handed on.
    `place_said_s`: when it last said where it is, of all its words the newest is at `last_word_s`.
    `step_said`: of its steps one was said at once since it was late last, or since this process began.
    `looked_at`: its end waits for a look at it, at most until `kill_at_s`.
    `log_read_bytes`: of its log nothing before this is left to be told."""

    ref: RankRef
    device_index: int
    launch: ReplicaLaunch
    launched_at_s: float
    process: ProcessState = ProcessState.LAUNCHING
    identity: Identity | None = None
    conn_id: int | None = None
    joined: bool = False
    admitted: bool = False
    done: bool = False
    expected: bool = False
    section: Section = Section.SETUP
    phase: Phase = Phase.IMPORTING
    step: int = 0
    epoch: int = 0
    phase_since_s: float = 0.0
    last_word_s: float = 0.0
    place_said_s: float = 0.0
    overdue_sent: bool = False
    step_said: bool = False
    steps: StepTimes = NO_STEPS
    aside: TimeAside = NEVER_ASIDE
    marks: Marks = field(default_factory=dict)
    refused: Refused = NOTHING_REFUSED
    log_read_bytes: int = 0
    kill_at_s: float | None = None
    looked_at: bool = False
    exit_due_s: float | None = None
    exit_log_tail: str = ""
    exit_cause: str = ""
    exit_hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Emptying:
    """A start waits for memory of `devices` since `since_s`; at `due_s` it asks again or goes
    on. `full_bytes`: what is used of those that were not empty when last read."""

    devices: frozenset[int]
    since_s: float
    due_s: float
    full_bytes: Mapping[int, int] = field(default_factory=dict)
    done: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingLaunch:
    """An accepted start that waits for old processes to be gone, for the node's checks
    (`checked` None: not asked for yet), for the host, or for its devices to be empty."""

    command_id: str
    launch: ReplicaLaunch
    since_s: float
    checked: bool | None = None
    emptying: Emptying | None = None
    asked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingStop:
    """An accepted stop that waits for these to be proved gone."""

    command_id: str
    refs: frozenset[RankRef]


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingStacks:
    """A collection that waits for these answers: (rank, what is looked at)."""

    command_id: str
    looks: frozenset[tuple[RankRef, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The rank host of one job. `idle_at_s`: when it is sent home, None while in use."""

    job_id: str
    since_s: float
    identity: Identity | None = None
    ready: bool = False
    import_s: float = 0.0
    idle_at_s: float | None = None
    waiting_commands: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Job:
    """The fence of one job: nothing older than (`attempt`, `epoch`) is obeyed, no
    incarnation at or below `incarnations[replica]` is started again, and nothing of the attempt that was
    ordered up to `ended_epoch`, in which it was ended here. `end`: how the job ended, as
    far as this node was told; `end_signature`: the server's of it, where the server ordered it."""

    job_id: str
    attempt: int = 0
    epoch: int = 0
    incarnations: Mapping[int, int] = field(default_factory=dict)
    view: View | None = None
    install: Install | None = None
    end: JobEnd = ""
    end_signature: str = ""
    ended_epoch: int = 0


class CommandStage(StrEnum):
    """Where a command stands here; the last three are final."""

    JOURNALING = "journaling"
    ACKNOWLEDGED = "acknowledged"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SUPERSEDED = "superseded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command once seen. `envelope` is dropped when it is closed."""

    command_id: str
    stage: CommandStage
    envelope: CommandEnvelope | None = None
    detail: str = ""
    data: str = ""


@dataclass(frozen=True, slots=True)
class KeptEvent:
    """A fact that the server has not acknowledged; `at_s` when it happened, `size_bytes` in a
    frame."""

    seq: int
    at_s: float
    body: EventBody
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class Link:
    """The session with the server. `since_s` of the current up or down. `leaves_s`: what was not sent yet stays here
    until then (infinite: there is nothing)."""

    up: bool = False
    since_s: float = 0.0
    node_id: str = ""
    demo: bool = False
    frame_seq: int = 0
    sent_seq: int = 0
    oldest_sent_s: float | None = None
    leaves_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeSaid:
    """What was told last of this node's end, at `at_s`: that it leaves at `leaves_s` (None: that it stays); monotonic
    seconds."""

    at_s: float
    leaves_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterEnd:
    """An outer scheduler takes this node back at `leaves_s`, as it said at `at_s`; monotonic seconds. `waited`: no
    start is on its way any more; `asked`: ranks of which nothing was asked were asked to end; `killed`: what was left
    was killed; `hosts_asked`: hosts were sent home; `left`: this agent was let go."""

    at_s: float
    leaves_s: float
    waited: bool = False
    asked: bool = False
    killed: bool = False
    hosts_asked: bool = False
    left: bool = False


@dataclass(frozen=True, kw_only=True)
class State:
    """Everything. Mappings are never changed in place. `node_failed`: checks of the node that
    failed when it was last looked at; None: not yet. `left_devices`: those that a rank has left
    since this agent began; a start waits up to `memory_wait_s` until no more than
    `empty_device_bytes` are used there. `rules`: what this node allows; `refused_by_policy`:
    orders that they have refused since this agent began. `reading`: the command whose checkpoint is being
    read back, "" for none. `notice`: None: nothing was told of an end yet. `outer_end`: None: no outer
    scheduler takes the node back. `seen_s`: of the last event, as near as
    `away.notice` needs it. `unsent_seq`: the first number of an event that this agent has given since it began, until
    its first session."""

    started_s: float
    boot_id: str
    journal_id: str
    link: Link = Link()
    seen_s: float | None = None
    away: Away = NEVER_AWAY
    ranks: Mapping[RankRef, Rank] = field(default_factory=dict)
    connections: Mapping[int, RankRef] = field(default_factory=dict)
    hosts: Mapping[str, Host] = field(default_factory=dict)
    jobs: Mapping[str, Job] = field(default_factory=dict)
    commands: Mapping[str, Command] = field(default_factory=dict)
    launches: tuple[PendingLaunch, ...] = ()
    stops: tuple[PendingStop, ...] = ()
    stacks: tuple[PendingStacks, ...] = ()
    events: tuple[KeptEvent, ...] = ()
    rebooted: bool = False
    next_seq: int = 1
    unsent_seq: int | None = None
    waiting: Mapping[RankRef, Waiting] = field(default_factory=dict)
    shed_reports: int = 0
    absent_devices: frozenset[int] = frozenset()
    node_failed: tuple[NodeCheck, ...] | None = None
    left_devices: frozenset[int] = frozenset()
    memory_wait_s: float = limits.MEMORY_WAIT_S
    empty_device_bytes: int = limits.EMPTY_DEVICE_BYTES
    emergency_at_s: float | None = None
    rules: NodeRules = DEFAULT_RULES
    refused_by_policy: int = 0
    reading: str = ""
    notice: NoticeSaid | None = None
    outer_end: OuterEnd | None = None
