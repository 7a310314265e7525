"""What the core reads: rows by question, each asked only by the act that needs it.

A store answers as of the last change that it carried out. What a core reads in order to move it, a
store on a database has locked: the job before anything of it, then the fleet, nodes and requests.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from controlplane.policy.timeouts import SectionTimeout
from controlplane.protocol.commands import StopRanks
from controlplane.protocol.launch import RankRef
from controlplane.protocol.membership import View
from controlplane.protocol.spec import Parallelism, TrainSpec
from controlplane.protocol.states import (
    AttemptState,
    CommandState,
    JobState,
    RankState,
    ReplicaState,
    RequestKind,
    RequestState,
)

if TYPE_CHECKING:
    from controlplane.changes.answers import Answered


@dataclass(frozen=True, slots=True)
class Job:
    """The job of the decision."""

    id: str
    name: str
    owner: str
    state: JobState
    epoch: int
    spec: TrainSpec
    inspections: int


@dataclass(frozen=True, slots=True)
class Attempt:
    """One launch of the job. `resume_path` "": it begins at step 0."""

    number: int
    state: AttemptState
    layout: Parallelism
    replicas: int
    resume_step: int
    resume_path: str
    checkpoint_dir: str
    max_contributors: int | None
    end_reason: str = ""
    yielded: int = 0


@dataclass(frozen=True, slots=True)
class Replica:
    """One incarnation of one replica slot, as `jobs.models.Replica` says. `leaving`: it was ordered out, or another
    takes its place. `caught_up`: it has said so since it began, or was last left out."""

    attempt: int
    index: int
    incarnation: int
    state: ReplicaState
    contributing: bool
    contributed: bool
    times_out: int
    out_s: float | None
    leaving: bool = False
    caught_up: bool = False


@dataclass(frozen=True, slots=True)
class Rank:
    """One process, of an incarnation in `replica_state`. `started`: it was reported to exist, `joined`: it has said
    hello. `fenced`: its incarnation is out, or its attempt over; what it reports must not count."""

    attempt: int
    replica: int
    incarnation: int
    rank: int
    node_id: str
    device_index: int
    state: RankState
    started: bool
    joined: bool
    replica_state: ReplicaState
    fenced: bool


@dataclass(frozen=True, slots=True)
class InView:
    """A view as one incarnation finds it, which `is_member` or not of its `members`. `commanded`: its install was,
    `installed`: a rank has said that it is in."""

    members: int
    is_member: bool
    commanded: bool
    installed: bool


@dataclass(frozen=True, slots=True)
class Standing:
    """How far the job is. `newest`: number of its newest attempt, 0 where there is none. `ahead`: what agents were
    told of it and these rows have lost."""

    name: str
    epoch: int
    newest: int
    trained: bool
    ahead: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Home:
    """A node with processes of an incarnation that are not proved gone."""

    index: int
    incarnation: int
    node_id: str


@dataclass(frozen=True, slots=True)
class Device:
    """A device of a node. `works`: it is there, and nothing is known against it; `holder`: the job whose process is
    on it, "" where there is none."""

    uuid: str
    reset_wanted: bool
    model: str = ""
    works: bool = True
    holder: str = ""


@dataclass(frozen=True, slots=True)
class Request:
    """What a person asked for."""

    id: str
    kind: RequestKind
    state: RequestState


@dataclass(frozen=True, slots=True)
class Terms:
    """What a start needs from outside of the job's rows. `limits`: the timeouts that its rows have taught."""

    store: str
    checkpoint_root: str
    outer_timeout_s: float
    limits: tuple[SectionTimeout, ...]
    env: dict[str, str]


@dataclass(frozen=True, slots=True)
class Open:
    """A finding that is open."""

    id: str
    evidence: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Marked:
    """Lines with one marker in the logs of the job's ranks that the timeline has not told yet: `lines` of them in
    `reports`, of which `last` (rank, node, text) came last. `said_s`: when it last told of the marker, None: never."""

    marker: str
    lines: int = 0
    reports: int = 0
    last: Mapping[str, Any] = field(default_factory=dict)
    said_s: float | None = None


@dataclass(frozen=True, slots=True)
class Command:
    """A command, and `what` it asks of ranks. `rule` of the `decision` that gave it, for this `incident`; "" of a
    person's, or where that is forgotten."""

    node_id: str
    job_id: str
    attempt: int
    what: str
    state: CommandState
    decision: str = ""
    rule: str = ""
    incident: str = ""


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """What one diagnostic of one rank found, see `recovery.models.RankLook`. `incident` "": it belongs to none."""

    command_id: str
    replica: int
    incarnation: int
    rank: int
    what: str
    method: str
    place: str
    text: str
    at_s: float
    incident: str = ""


class Rows(Protocol):
    """The questions. Those of a job are asked of a store that has one. LookupError: a plan names what is not there."""

    @property
    def now_s(self) -> float:
        """Server time."""

    @property
    def job_id(self) -> str:
        """ "" where these are of no job."""

    def job(self) -> Job:
        """As it is now."""

    def attempt(self, number: int | None = None) -> Attempt:
        """That one, or the newest."""

    def unended_attempts(self) -> Sequence[Attempt]:
        """Those of which something may run."""

    def replicas(self, attempt: int) -> Sequence[Replica]:
        """Every incarnation of the attempt, by index and incarnation."""

    def replica(self, index: int, incarnation: int) -> Replica:
        """That one."""

    def incarnation(self, attempt: int, index: int, incarnation: int) -> Replica | None:
        """That one, however old. None: it is no row."""

    def ranks(self, attempt: int, *, node_id: str = "", of: tuple[int, int] | None = None) -> Sequence[Rank]:
        """Of the attempt, those of one (replica, incarnation), on one node; by replica, incarnation and rank."""

    def held(self, node_id: str) -> Sequence[Rank]:
        """Of any attempt, on this node, not proved gone; [] of no job."""

    def rank(self, ref: RankRef, node_id: str) -> Rank | None:
        """None: it was never placed on this node; or the rows are of no job."""

    def newest_on(self, node_id: str, attempt: int) -> Mapping[int, int]:
        """The newest incarnation of each slot of which that attempt has placed a rank on this node."""

    def stops_under_way(self, node_id: str) -> Sequence[StopRanks]:
        """Orders to stop ranks of any job on this node that may still be carried out."""

    def under_way(self, node_id: str) -> "Sequence[Answered]":
        """Commands of the job to this node that were acknowledged and not answered."""

    def is_our_end(self, signature: str, attempt: int, end: str) -> bool:
        """We have signed that the job ended so."""

    def standing(self) -> Standing:
        """As it is now."""

    def has_trained(self) -> bool:
        """Its ranks have said that all its steps are committed."""

    def stop_stands(self, attempt: int, index: int, incarnation: int) -> bool:
        """A decision's command to stop the incarnation has neither failed nor expired, on some node."""

    def newest_incarnations(self) -> Mapping[int, int]:
        """Of each slot that ever had one, over the whole job."""

    def homes(self, attempt: int, *, replica: Replica | None = None, revision: int = 0) -> Sequence[Home]:
        """Where processes of the attempt, or of that incarnation alone, are not proved gone, on nodes of this
        revision of the protocol or newer."""

    def rank_homes(self, replica: Replica, ranks: tuple[int, ...]) -> Sequence[tuple[int, str]]:
        """(rank, node) of those that are not proved gone, by rank."""

    def within_reach(self, attempt: int) -> bool:
        """A process that is not proved gone is on a node that is connected."""

    def view(self, epoch: int) -> View:
        """The view of that epoch."""

    def in_view(self, epoch: int, index: int, incarnation: int) -> InView | None:
        """In the view of that epoch; None: there is none."""

    def was_left_out(self, index: int, incarnation: int, *, since_epoch: int) -> bool:
        """By a view after that one."""

    def flushes_beside(self, epoch: int, replica: int, rank: int) -> int:
        """How many ranks, but for this one, have answered the view of that epoch."""

    def has_reported_save(self, path: str, rank: Rank) -> bool:
        """A node on which the rank's incarnation runs has told of the save at `path`."""

    def has_view(self, attempt: int) -> bool:
        """One was announced."""

    def terms(self, loads: str) -> Terms:
        """For starts of an attempt that loads this checkpoint ("": none)."""

    def node_name(self, node_id: str) -> str:
        """As other nodes resolve it."""

    def device(self, node_id: str, index: int) -> Device | None:
        """None: it is no row any more."""

    def xid_counts(self, node_id: str, index: int, xid: int, *, at_s: float, link: int | None) -> Mapping[str, int]:
        """How often this XID came to this device within the day until then, this time included, and to how many
        others; of an NVLink (`link`) on that one alone."""

    def is_on(self, node_id: str) -> bool:
        """The job has, or had, ranks on this node, or devices of it wait for the job; no: the rows are of no job."""

    def command(self, command_id: str) -> Command | None:
        """None: it is no command that is kept."""

    def commands_of(self, decision: str) -> Sequence[tuple[str, CommandState]]:
        """(id, state) of that decision's commands to collect stacks."""

    def recorders_of(self, decision: str) -> Sequence[Diagnostic]:
        """Flight Recorders that came with answers to them, oldest first."""

    def recorders(self, incident: str, replica: int, incarnation: int) -> Sequence[Diagnostic]:
        """Flight Recorders of that life that belong to the incident, oldest first."""

    def open_incident(self) -> str:
        """The job's newest that is not closed; "": there is none."""

    def texts_of(self, incident: str, place: str) -> int:
        """How many ranks that stand at this place keep their text."""

    def verdicts(self, incident: str) -> Sequence[dict[str, Any]]:
        """What the Flight Recorders of its replicas have said."""

    def marked(self, marker: str) -> Marked:
        """As it is; of one that never came, nothing."""

    def marks(self) -> Sequence[Marked]:
        """That the timeline has not told all of."""

    def finding(self, key: str) -> Open | None:
        """The open one with this key."""

    def findings(self) -> Sequence[tuple[str, str]]:
        """(id, kind) of each open finding about the job."""

    def requests(self) -> Sequence[Request]:
        """What is asked of the job and has not ended, oldest first."""

    def request(self, request_id: str) -> Request | None:
        """None: it is no row any more."""

    def makes_room(self) -> Sequence[tuple[str, str]]:
        """Requests that have not ended and ask other jobs to yield their devices to this one: the id of each, and what
        those who read it are told that this job is called."""

    def parts(self, request_id: str) -> Sequence[Request]:
        """Of a drain, those that have not ended and that nobody takes back."""
