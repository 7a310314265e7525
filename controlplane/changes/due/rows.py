"""What deadlines ask beside `changes.rows.Rows`. Every question is for what is due alone."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Protocol

from controlplane.changes.rows import Command, Job
from controlplane.policy.readers import Holder
from controlplane.protocol.commands import KeepCheckpoints
from controlplane.protocol.readback import Verdict
from controlplane.protocol.states import CheckpointState, CommandState


@dataclass(frozen=True, slots=True)
class Stranger:
    """An open finding of a kind that this release does not know."""

    id: str
    kind: str
    evidence: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Session:
    """A node's connection, which the web process `web` holds."""

    node_id: str
    id: str
    web: str


class FindingRows(Protocol):
    """Of findings, whatever they are about."""

    @property
    def now_s(self) -> float:
        """Server time."""

    def seen_before(self, kinds: Sequence[str], at_s: float) -> Sequence[str]:
        """Ids of open findings of these kinds that showed themselves before then."""

    def strangers(self, known: Sequence[str], *, without: str) -> Sequence[Stranger]:
        """Open findings of other kinds than these, but for those with this word in their evidence."""


class SessionRows(Protocol):
    """Of agents' connections."""

    @property
    def now_s(self) -> float:
        """Server time."""

    def living_webs(self) -> Set[str]:
        """Web processes that have lately said that they live."""

    def sessions(self, *, opened_before_s: float) -> Sequence[Session]:
        """Open ones that were opened before then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """A checkpoint, as reading it back sees it. `reader`: the command by which a node reads it ("": none does),
    heard of last at `heard_s`; `round_s`: since when somebody is sought who reads it. `shared`: it lies on a file
    system, of which a node may have more than this machine; `ours`: its path is one of its job's still; `here`: this
    machine reads it, or has, and nobody has taken the verdict; `loads`: its job wants it loaded once it is verified.
    `limit_s`: how long one reading may take; `read_s`: how long the longest took."""

    id: str
    job_id: str
    owner: str
    attempt: int
    path: str
    step: int
    epoch: int
    state: CheckpointState
    reason: str
    doubt: str
    written_on: str
    reader: str
    heard_s: float | None
    round_s: float | None
    read_s: float | None
    limit_s: float
    shared: bool
    ours: bool
    here: bool
    loads: bool
    over: bool


@dataclass(frozen=True, slots=True)
class Reading:
    """A command of this round to read, and what its node made of it; `live`: that may still come."""

    node: str
    live: bool
    detail: str
    verdict: Verdict | None


class ReadingRows(Protocol):
    """Of checkpoints that are read back, and of the nodes that may."""

    @property
    def now_s(self) -> float:
        """Server time."""

    def saved(self, save_id: str) -> Save | None:
        """Locked. None: it is no row any more."""

    def save_of(self, reader: str) -> Save | None:
        """That a node reads by this command; locked."""

    def command(self, command_id: str) -> Command | None:
        """None: it is no command that is kept."""

    def node_name(self, node_id: str) -> str:
        """For people."""

    def holders(self, save_id: str) -> Sequence[Holder]:
        """Nodes of the job, the one that wrote it first; of those away, one stands for all."""

    def readings(self, save_id: str) -> Sequence[Reading]:
        """Of this round, oldest first."""

    def verdict(self, data: str) -> Verdict | None:
        """Of a node's answer; None: it is none that can be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """An incident that began in this `attempt` needs a checkpoint, of this `step`, or (`let_go`) does not any more,
    which the job's ranks have still to hear. `taken`: a step is computed again for it."""

    incident: str
    checkpoint: str
    path: str
    step: int
    attempt: int
    let_go: bool
    taken: bool


@dataclass(frozen=True, slots=True)
class Sent:
    """A command to keep checkpoints. `body` None: it cannot be read."""

    body: KeepCheckpoints | None
    state: CommandState
    detail: str


@dataclass(frozen=True, slots=True)
class Saver:
    """Rank 0 of the replica that saves."""

    node_id: str
    attempt: int
    replica: int
    incarnation: int


class KeepingRows(Protocol):
    """Of what a job's ranks keep beyond its retention."""

    @property
    def job_id(self) -> str:
        """Whose."""

    def job(self) -> Job:
        """As it is now."""

    def has_trained(self) -> bool:
        """Its ranks have said that all its steps are committed."""

    def base_before(self, incident: str) -> str | None:
        """The newest trusted checkpoint from before its fault, by id. None: there is none that a single replica can
        load, or nothing of this job is computed again."""

    def needs(self) -> Sequence[Need]:
        """Those that are due some time, the oldest first."""

    def keeps_sent(self, limit: int) -> Sequence[Sent]:
        """So many, the newest first."""

    def saver(self) -> Saver | None:
        """Of the newest attempt; on a node that knows the command."""

    def computing(self, path: str) -> Sequence[tuple[int, int]]:
        """(replica, incarnation) of those that compute steps again from it."""

    def resumed(self) -> tuple[int, str] | None:
        """The newest attempt, and the id of the checkpoint that it resumed from, where that is trusted."""
