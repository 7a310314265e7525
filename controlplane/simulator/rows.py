"""What the simulated server keeps: the rows that the real one has in its database."""

from collections import deque
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import msgspec

from controlplane.changes.assembly.counted import Announced
from controlplane.changes.assembly.measured import RECENT
from controlplane.changes.assembly.snapshot import OFF_THE_LADDER, End
from controlplane.changes.kinds import RankKey
from controlplane.changes.rows import Diagnostic, Marked
from controlplane.policy.known_end import KnownEnd
from controlplane.policy.recommendation import Recommendation
from controlplane.policy.request_facts import RequestFact
from controlplane.policy.snapshot import BarFact, CheckpointFact, Placement, SignalFact
from controlplane.protocol.commands import CommandEnvelope
from controlplane.protocol.frames import RankStatus
from controlplane.protocol.membership import Flush, Install, View
from controlplane.protocol.rank import StepReport
from controlplane.protocol.spec import Parallelism, TrainSpec
from controlplane.protocol.states import (
    AttemptState,
    CheckpointState,
    CommandState,
    JobState,
    NodeState,
    RankState,
    ReplicaState,
)
from controlplane.simulator.budget import Budget, Charge
from controlplane.simulator.course import Course
from controlplane.simulator.shared import YieldRow

JOB_ID = "job_sim"
MAX_DIAGNOSTICS, MAX_STEPS, NEWEST_STEPS = 256, 1000, 20


@dataclass(frozen=True, slots=True)
class Order:
    """Commands on their way to a node, unsigned: the cores sign and verify nothing (ADR 0017)."""

    commands: tuple[CommandEnvelope, ...]


@dataclass(slots=True)
class ReplicaRow:
    """One incarnation of a slot. `states` of the ranks that have moved. `phase_since_s` and `spoke_s` (server time of
    its last word to its agent) are hints by rank; `told` is the newest of each, in the same phase since
    `told_since_s`. `times_out`: how often it was left out, `out_s`: when last. `caught_up`: the role in which its last
    catch-up ended. `ordered_out`: the person who ordered it out, at `ordered_s`."""

    index: int
    incarnation: int
    state: ReplicaState
    state_since_s: float
    placements: tuple[Placement, ...]
    attempt: int = 1
    started: set[int] = field(default_factory=set)
    joined: set[int] = field(default_factory=set)
    exited: set[int] = field(default_factory=set)
    states: dict[int, RankState] = field(default_factory=dict)
    told: dict[int, RankStatus] = field(default_factory=dict)
    told_since_s: dict[int, float] = field(default_factory=dict)
    phase_since_s: dict[int, float] = field(default_factory=dict)
    spoke_s: dict[int, float] = field(default_factory=dict)
    times_out: int = 0
    out_s: float | None = None
    contributing: bool = False
    contributed: bool = False
    stop_requested: bool = False
    caught_up: str = ""
    committed_step: int = 0
    stopped: bool = False
    relieved: str = ""
    ordered_out: str = ""
    ordered_s: float | None = None
    refused: bool = False

    def prove_gone(self, rank: int) -> None:
        """Its process; with the last one the incarnation."""
        self.exited.add(rank)
        self.stopped = len(self.exited) == len(self.placements)

    def note(self, status: RankStatus, now_s: float) -> None:
        """What a rank's agent says of it, with the age of its phase by what was told before."""
        rank, was = status.ref.rank, self.told.get(status.ref.rank)
        if was is None or (was.phase, was.step) != (status.phase, status.step):
            self.told_since_s[rank] = now_s
        self.told[rank] = msgspec.structs.replace(status, phase_age_s=now_s - self.told_since_s[rank])


@dataclass(slots=True)
class AttemptRow:
    """One launch of the job. `saved`: a checkpoint beyond `resume_step`. `yielded`, `grown_s`: see `jobs.Attempt`."""

    number: int
    state: AttemptState
    layout: Parallelism
    replicas: int
    started_s: float
    resume_step: int
    saved: bool = False
    resume_path: str = ""
    checkpoint_dir: str = ""
    max_contributors: int | None = None
    end_code: str = ""
    end_reason: str = ""
    ended_s: float | None = None
    yielded: int = 0
    grown_s: float | None = None


@dataclass(slots=True)
class NodeRow:
    """`seen_s` last frame, `ranks_s` by job the last that told of ranks; up to `applied_seq` of the journal
    `journal_id` is applied, `session` is the newest. `reserved_for`: the job whose spare it is, "" for none.
    `connected`: its connection, which `web` holds, is open since `opened_s`; `closed_s`: when it was closed.
    `emptied`: by a drain that is done. `barred`: devices that take no work, of which `resets` wait for a reset since
    then. `reason` of its state. `model`, `memory_bytes` of its devices, `risks` of those with samples, `ends`."""

    id: str
    devices: int
    ends: dict[str, KnownEnd] = field(default_factory=dict)
    state: NodeState = NodeState.READY
    seen_s: float = 0.0
    session: int = 0
    connected: bool = True
    web: str = ""
    opened_s: float = 0.0
    closed_s: float | None = None
    journal_id: str = ""
    boot_id: str = ""
    applied_seq: int = 0
    reserved_for: str = ""
    ranks_s: dict[str, float] = field(default_factory=dict)
    lost_devices: set[int] = field(default_factory=set)
    barred: set[int] = field(default_factory=set)
    resets: dict[int, float] = field(default_factory=dict)
    reason: str = ""
    emptied: bool = False
    segment: str = ""
    model: str = ""
    memory_bytes: int | None = None
    risks: dict[int, float] = field(default_factory=dict)

    def open(self, web: str, now_s: float) -> None:
        """Its connection, by this process of the server."""
        self.connected, self.web, self.opened_s, self.closed_s = True, web, now_s, None

    def close(self, now_s: float) -> None:
        """Whoever holds it has seen the end, or is gone."""
        self.connected, self.closed_s = False, now_s


@dataclass(slots=True)
class SaveRow:
    """A save that was begun, by which incarnation; complete, as `fact` says. `due_s`: when it is to be read back, or
    inspected again. `written_on`, `reader`, `heard_s`, `round_s`, `reason`, `doubt`: as `changes.due.rows.Save`."""

    attempt: int
    index: int
    incarnation: int
    state: CheckpointState = CheckpointState.WRITING
    fact: CheckpointFact | None = None
    due_s: float | None = None
    written_on: str = ""
    reader: str = ""
    heard_s: float | None = None
    round_s: float | None = None
    read_s: float | None = None
    reason: str = ""
    doubt: str = ""
    total_s: float = 0.0


@dataclass(slots=True)
class StepRow:
    """A committed step (from 0), as its ranks have told it since `at_s`. `took_s` and `stall_s`: the longest of those
    that contribute; all else: as `changes.due.course.Step`."""

    attempt: int
    step: int
    epoch: int
    at_s: float
    took_s: float = 0.0
    stall_s: float = 0.0
    micro_batches: dict[str, tuple[int, ...]] = field(default_factory=dict)
    trained: tuple[int, ...] | None = None
    parameter_hashes: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def contributors(self) -> int:
        """Those that told of micro-batches."""
        return sum(bool(ids) for ids in self.micro_batches.values())

    def take(self, key: RankKey, said: StepReport, at_s: float, *, contributes: bool) -> float:
        """As `recovery.steps.merge_figures` and `merge_detail`; returns by how much more the step took."""
        self.epoch, self.at_s, before_s = max(self.epoch, said.epoch), min(self.at_s, at_s), self.took_s
        if contributes:
            self.took_s, self.stall_s = max(self.took_s, said.step_time_s), max(self.stall_s, said.stall_s)
        if key.rank == 0:
            self.micro_batches[str(key.replica)] = said.micro_batches
            self.trained = said.trained or self.trained
        if said.parameter_hash is not None:
            self.parameter_hashes.setdefault(str(key.rank), {})[str(key.replica)] = said.parameter_hash
        return self.took_s - before_s


@dataclass(slots=True)
class NeedRow:
    """An incident that began in this attempt needs the checkpoint at `path`, until it is judged."""

    path: str
    attempt: int
    due_s: float | None
    let_go: bool = False
    why: str = ""


@dataclass(slots=True)
class CommandRow:
    """An outbox row. `rule` of the decision that gave it, for this `incident`."""

    envelope: CommandEnvelope
    made_s: float
    due_s: float
    state: CommandState = CommandState.QUEUED
    send_due_s: float | None = None
    detail: str = ""
    data: str = ""
    rule: str = ""
    incident: str = ""


@dataclass(slots=True)
class Rows:
    """Everything the server knows of the job `job_id`, submitted at `created_s`, and of its fleet: nodes, what is found
    of these, drains, processes of the server and `budget` are the same for all `jobs` of a world.
    `ghosts`: older incarnations not proved gone, `older`: all of the attempt; `started`: nodes on which a start
    succeeded, `warmed` and `warm_asked`: when a rank host was; `outbox`:
    the commands that had no final answer when it was last gone through, in order; `steps`: those that were told of
    last, by attempt and number, in the order of their first word; `settled`: findings about hardware
    that are dealt with; `attempts`: those before; `views` of this one; `charged`: restarts that were;
    `starts` and `catch_ups`: seconds that each start of a replica and each transfer to one took; `lives`:
    the newest incarnation of each slot, of all attempts; `announced`: all views, by epoch, of which `commanded` is the
    install that was the newest to be decided, and `decided_on` the newest as the last pass began; `saves` by path, of
    which the server's machine `reads_here` some until then;
    `requests` that have not ended, `answers` to all, in order, and `carriers`: the commands that carry one out;
    `incident_s`: when what is open was opened; `save_begun_s` of the save that is being written, `saves_s`: seconds
    that each took; `emergency_s`: when one was ordered; `env_opens`: a key of the server opens what rests sealed;
    `parked_by`: who preempted the job, and why; `yields`: how it was asked to, by request;
    `ends` of ranks that accuse their place, `bars` of those that
    left for being slow; `marks`: lines of logs, by marker;
    `diagnostics` of ranks, and `verdicts` of their Flight Recorders, and what is kept for them
    (`needs`), by incident; `webs`: when each process of the
    server that holds connections last said that it lives."""

    spec: TrainSpec
    job_id: str = JOB_ID
    name: str = "sim"
    created_s: float = 0.0
    jobs: dict[str, "Rows"] = field(default_factory=dict, repr=False, compare=False)
    state: JobState = JobState.PENDING
    epoch: int = 0
    committed_step: int = 0
    steps: dict[tuple[int, int], StepRow] = field(default_factory=dict)
    starts: list[float] = field(default_factory=list)
    catch_ups: list[float] = field(default_factory=list)
    looks_taken: int = 0
    looked_s: float | None = None
    trained: bool = False
    attempt: AttemptRow | None = None
    replicas: dict[int, ReplicaRow] = field(default_factory=dict)
    lives: dict[int, int] = field(default_factory=dict)
    ahead: dict[str, Any] = field(default_factory=dict)
    view: View | None = None
    decided_on: View | None = None
    announced: dict[int, View] = field(default_factory=dict)
    view_since_s: float = 0.0
    install: Install | None = None
    commanded: Install | None = None
    installed_s: float | None = None
    flushes: dict[tuple[int, int, int], Flush] = field(default_factory=dict)
    signals: MutableMapping[str, SignalFact] = field(default_factory=dict)
    nodes: dict[str, NodeRow] = field(default_factory=dict)
    saves: dict[str, SaveRow] = field(default_factory=dict)
    reads_here: dict[str, float] = field(default_factory=dict)
    commands: dict[str, CommandRow] = field(default_factory=dict)
    outbox: list[str] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)
    recommended: dict[str, Recommendation] = field(default_factory=dict)
    settled: list[SignalFact] = field(default_factory=list)
    attempts: list[AttemptRow] = field(default_factory=list)
    views: dict[int, Announced] = field(default_factory=dict)
    restarts: int = 0
    charged: list[Charge] = field(default_factory=list)
    evictions: int = 0
    budget: Budget = field(default_factory=Budget)
    ghosts: list[ReplicaRow] = field(default_factory=list)
    older: list[ReplicaRow] = field(default_factory=list)
    started: set[str] = field(default_factory=set)
    warmed: dict[str, float] = field(default_factory=dict)
    warm_asked: dict[str, float] = field(default_factory=dict)
    last_wait: str = ""
    history: list[str] = field(default_factory=list)
    bars: list[BarFact] = field(default_factory=list)
    requests: MutableMapping[str, RequestFact] = field(default_factory=dict)
    yields: dict[str, YieldRow] = field(default_factory=dict)
    answers: list[str] = field(default_factory=list)
    carriers: dict[str, list[str]] = field(default_factory=dict)
    cancel_requested: bool = False
    env_opens: bool = True
    parked_by: str = ""
    trained_s: float = 0.0
    faults_fired: int = 0
    saves_s: list[float] = field(default_factory=list)
    save_begun_s: float | None = None
    emergency_s: float | None = None
    ends: list[End] = field(default_factory=list)
    incident_s: float | None = None
    incidents: int = 0
    marks: dict[str, Marked] = field(default_factory=dict)
    diagnostics: deque[Diagnostic] = field(default_factory=lambda: deque(maxlen=MAX_DIAGNOSTICS))
    verdicts: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    needs: dict[str, NeedRow] = field(default_factory=dict)
    webs: dict[str, float] = field(default_factory=dict)
    course: Course = field(default_factory=Course)

    def __post_init__(self) -> None:
        self.jobs[self.job_id] = self

    @property
    def label(self) -> str:
        """In front of a line about it, "" for the only job of a world."""
        return "" if self.job_id == JOB_ID and len(self.jobs) == 1 else f"{self.name}: "

    def everywhere(self) -> Iterator[ReplicaRow]:
        """Incarnations of all jobs, but for those that are proved gone and followed."""
        for rows in self.jobs.values():
            yield from rows.replicas.values()
            yield from rows.ghosts

    def transfer_s(self, path: str) -> float | None:
        """The longer of the seconds in which it was written and read back; None: it is not known here."""
        save = self.saves.get(path)
        return None if save is None else max(save.total_s, save.read_s or 0.0)

    @property
    def checkpoints(self) -> list[CheckpointFact]:
        """Those that were completed and are on the ladder, or turned out bad; the oldest first."""
        standing = (save for save in self.saves.values() if save.state not in OFF_THE_LADDER)
        return [
            msgspec.structs.replace(save.fact, state=save.state, doubted=bool(save.doubt))
            for save in standing
            if save.fact is not None
        ]

    @property
    def calm(self) -> list[float]:
        """Seconds that each of the `RECENT` steps took that no view change made longer, the newest first."""
        undisturbed = (row.took_s for row in reversed(self.steps.values()) if row.stall_s == 0.0 and row.took_s > 0.0)
        return list(islice(undisturbed, RECENT))

    @property
    def progressed_s(self) -> float | None:
        """When the newest steps were committed, by whom told it first."""
        return max((row.at_s for row in islice(reversed(self.steps.values()), NEWEST_STEPS)), default=None)

    def announce(self, view: View, now_s: float) -> None:
        """It is the newest; nobody has answered it."""
        self.views[view.epoch] = Announced(view.members, resumed=False)
        self.view, self.announced[view.epoch], self.view_since_s = view, view, now_s
        self.course.announced_s[view.epoch] = now_s
        self.install, self.installed_s, self.flushes = None, None, {}

    def note_step(self, key: RankKey, said: StepReport, at_s: float) -> None:
        """A rank tells of one that was committed at `at_s`."""
        place, done = (key.attempt, said.step), said.step + 1
        row = self.steps.get(place)
        if row is None:
            row = self.steps[place] = StepRow(key.attempt, said.step, said.epoch, at_s)
            if len(self.steps) > MAX_STEPS:
                del self.steps[next(iter(self.steps))]
        self.trained_s += row.take(key, said, at_s, contributes=self._contributes(key))
        if self.attempt is not None and self.attempt.number == key.attempt:
            self.committed_step = max(self.committed_step, done)
            if said.epoch in self.views:
                self.views[said.epoch] = self.views[said.epoch]._replace(resumed=True)
        replica = self.replicas.get(key.replica)
        if replica is not None and (replica.attempt, replica.incarnation) == (key.attempt, key.incarnation):
            replica.committed_step = max(replica.committed_step, done)

    def _contributes(self, key: RankKey) -> bool:
        rows = [*self.replicas.values(), *self.older, *self.ghosts]
        mine = (key.attempt, key.replica, key.incarnation)
        return any(row.contributing for row in rows if (row.attempt, row.index, row.incarnation) == mine)
