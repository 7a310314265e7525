"""The changes, and the rows that they are about.

A store carries them out in their order, within one transaction; each means the same in every
store. Columns bear one name everywhere; one that ends in `_s` is a moment, in Unix seconds, unless it is of
`LENGTHS`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from controlplane.changes.disruption_kinds import BreakerChange
from controlplane.changes.end_kinds import NoteEnd
from controlplane.changes.rows import Attempt, Diagnostic, Marked
from controlplane.policy.signals.base import Finding
from controlplane.policy.snapshot import Placement
from controlplane.protocol.commands import Body
from controlplane.protocol.frames import RankReport
from controlplane.protocol.membership import View
from controlplane.protocol.states import CommandState, IncidentOutcome


@dataclass(frozen=True, slots=True)
class JobKey:
    """The job of the decision."""


@dataclass(frozen=True, slots=True)
class AttemptKey:
    """One of the job's attempts."""

    number: int


@dataclass(frozen=True, slots=True)
class ReplicaKey:
    """One incarnation of one replica slot."""

    attempt: int
    index: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class RankKey:
    """One process of one incarnation."""

    attempt: int
    replica: int
    incarnation: int
    rank: int


@dataclass(frozen=True, slots=True)
class ViewKey:
    """A view of the job, which its epoch names."""

    epoch: int


@dataclass(frozen=True, slots=True)
class NodeKey:
    """A node of the fleet."""

    id: str


@dataclass(frozen=True, slots=True)
class DeviceKey:
    """A device of a node."""

    node_id: str
    index: int


@dataclass(frozen=True, slots=True)
class RequestKey:
    """What a person asked for."""

    id: str


@dataclass(frozen=True, slots=True)
class IncidentKey:
    """An incident."""

    id: str


LENGTHS = frozenset({"out_of_section_s", "read_s"})
"""Columns that are a length of time, in seconds."""
Observed = JobKey | AttemptKey | ReplicaKey | RankKey | ViewKey | DeviceKey | IncidentKey
Moved = JobKey | AttemptKey | ReplicaKey | RankKey | NodeKey | RequestKey
MACHINES: dict[type, str] = {
    JobKey: "job", AttemptKey: "attempt", ReplicaKey: "replica", RankKey: "rank", NodeKey: "node",
    RequestKey: "request",
}  # fmt: skip
"""The state table of each row that moves."""


@dataclass(frozen=True, slots=True)
class Transition:
    """Move a row in its state table, by compare-and-set, and tell of it; `columns` are written with it."""

    subject: Moved
    to: str
    reason: str
    columns: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Observe:
    """Write columns that are no state. `publish`: whose summary that people see has changed by it; a replica's
    job is told with it."""

    subject: Observed
    columns: Mapping[str, Any]
    publish: Literal["", "job", "replica"] = ""


@dataclass(frozen=True, slots=True)
class Fence:
    """The job's epoch grows; everything older is void."""

    epoch: int


@dataclass(frozen=True, slots=True)
class CreateAttempt:
    """A new attempt, at whose checkpoint the job now stands."""

    attempt: Attempt


@dataclass(frozen=True, slots=True)
class CreateReplica:
    """The next incarnation of a slot takes its devices, from older ones of the job too; Conflict if one is gone."""

    key: ReplicaKey
    placements: tuple[Placement, ...]


@dataclass(frozen=True, slots=True)
class CreateView:
    """A view that is announced."""

    view: View


@dataclass(frozen=True, slots=True)
class CreateEviction:
    """The eviction of a replica is asked for, as a part of the request `drain`."""

    key: ReplicaKey
    drain: str


@dataclass(frozen=True, slots=True)
class CreatePreemption:
    """This attempt of the job `victim` is asked to yield devices to the job, see `plan.AskPreemption`."""

    victim: str
    attempt: int
    lost_gpu_s: float
    why: str
    gives: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Withdraw:
    """A request is taken back, `by` whom; who answers it is told."""

    request: str
    by: str


@dataclass(frozen=True, slots=True)
class Enqueue:
    """Commands of one kind, as (node, command), valid for `ttl_s`. `attempt` None: of no job."""

    commands: tuple[tuple[str, Body], ...]
    attempt: int | None
    ttl_s: float


@dataclass(frozen=True, slots=True)
class Publish:
    """An event on the job's stream, of the job or of its `subject`, or (`node`) about a node and on the stream of
    the job where there is one; or (`beside`) of nothing that has a summary, on that of the node too ("": of none)."""

    kind: str
    sentence: str
    node: str = ""
    subject: ReplicaKey | RankKey | None = None
    beside: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Settle:
    """Findings are dealt with."""

    signals: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Resolve:
    """What is open for the job is closed, or `incident` alone."""

    note: str
    outcome: IncidentOutcome
    incident: str = ""


@dataclass(frozen=True, slots=True)
class Reserve:
    """Devices of these nodes wait for the job."""

    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Release:
    """The job's spares on these nodes are free again; None: all of them."""

    nodes: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Demote:
    """Nothing resumes from this checkpoint any more."""

    checkpoint: str
    reason: str


@dataclass(frozen=True, slots=True)
class Suspect:
    """What was trained from this checkpoint, and saved at `step`, went bad."""

    checkpoint: str
    step: int


@dataclass(frozen=True, slots=True)
class Bar:
    """Start nothing on the device; `reset`: it is wanted reset."""

    subject: DeviceKey
    why: str
    reset: bool


@dataclass(frozen=True, slots=True)
class Audit:
    """A line in the audit log, about the job where no `subject` is named."""

    actor: str
    action: str
    reason: str
    data: Mapping[str, Any]
    subject: str = ""
    before: Mapping[str, Any] | None = None
    after: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Judge:
    """A device works again, and its node may return with it; or it does not, and a person must look at it."""

    subject: DeviceKey
    works: bool
    why: str


@dataclass(frozen=True, slots=True)
class Lose:
    """A device is not on its bus any more."""

    subject: DeviceKey
    why: str


@dataclass(frozen=True, slots=True)
class Raise:
    """Something was found, unless it is open already. `late`: about a life that was ended before; it belongs to
    what ended it."""

    found: Finding
    late: bool = False


@dataclass(frozen=True, slots=True)
class Amend:
    """An open finding says something else now; a `sentence` tells of it where that is news."""

    signal: str
    evidence: Mapping[str, Any]
    sentence: str


@dataclass(frozen=True, slots=True)
class Mark:
    """How often a marker came since the timeline told of it."""

    marked: Marked


@dataclass(frozen=True, slots=True)
class Free:
    """A node takes work again: jobs that wait for one are looked at."""


@dataclass(frozen=True, slots=True)
class Wake:
    """The job (of the rows, if none is named) is looked at when this is written; `sure`: something is to be decided."""

    sure: bool = False
    job: str = ""


@dataclass(frozen=True, slots=True)
class Keep:
    """What a rank has said is kept: each kind as the store keeps it."""

    subject: RankKey
    said: RankReport


@dataclass(frozen=True, slots=True)
class KeepDiagnostic:
    """What a diagnostic of a rank found is kept, as long as there is room for it."""

    found: Diagnostic


@dataclass(frozen=True, slots=True)
class Refuse:
    """Ranks could not load the checkpoint at `path`, and what the one has `said` of it."""

    path: str
    said: str


@dataclass(frozen=True, slots=True)
class Close:
    """A command of this node is over, though its agent will not say so."""

    node: str
    command: str
    state: CommandState
    detail: str


@dataclass(frozen=True, slots=True)
class Count:
    """Input of a node that was refused or dropped, by its name."""

    node: str
    what: str
    detail: str = ""
    number: int = 1


Change = (
    Transition
    | Observe
    | Fence
    | CreateAttempt
    | CreateReplica
    | CreateView
    | CreateEviction
    | CreatePreemption
    | Withdraw
    | Enqueue
    | Publish
    | Settle
    | Resolve
    | Reserve
    | Release
    | Demote
    | Suspect
    | Bar
    | Audit
    | Judge
    | Lose
    | Raise
    | Amend
    | Mark
    | Free
    | Wake
    | Keep
    | KeepDiagnostic
    | Refuse
    | Close
    | Count
    | BreakerChange
    | NoteEnd
)
