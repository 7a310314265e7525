"""The one mutable thing of the core: a turn gathers state and effects inside `step`.

It is created by `step`, handed to one handler, and never outlives the call, so that
from outside the core stays a function of values.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, cast

from agents.core import limits
from agents.core.effects import Effect, Note, Persist, SendSoon, WriteToLog
from agents.core.records import (
    CommandClosed,
    EventKept,
    HostDropped,
    HostKept,
    JobForgotten,
    JobKept,
    RankDropped,
    RankKept,
)
from agents.core.state import (
    NONE_WAITS,
    Command,
    CommandStage,
    Host,
    Job,
    KeptEvent,
    Rank,
    Refused,
    State,
    Waiting,
)
from agents.core.values import replace
from controlplane.protocol.bounds import MAX_DETAIL_CHARS, MAX_QUOTED_CHARS, fitted
from controlplane.protocol.codec import event_bytes
from controlplane.protocol.commands import DeliverInstall, DeliverView, StopRanks
from controlplane.protocol.errors import ProtocolError
from controlplane.protocol.frames import (
    AnswerState,
    CommandAnswer,
    EventBody,
    InputRefused,
    LogMarked,
    RankOverdue,
    RankSaid,
    StacksCollected,
)
from controlplane.protocol.launch import RankRef
from controlplane.protocol.rank import StepReport

K = TypeVar("K")
V = TypeVar("V")

# What a rank, by what it sends or writes, makes its agent keep; its end is never shed.
SHEDDABLE = (RankSaid, LogMarked, StacksCollected, RankOverdue)
# Right any number of times. Carried out even where the journal takes nothing: a node whose disk is full must
# still hear of views and end what it runs. Not acknowledged then, so that they are sent again to an agent that
# restarts before it has answered.
REPEATABLE = (StopRanks, DeliverView, DeliverInstall)
OPEN_STAGES = frozenset({CommandStage.JOURNALING, CommandStage.ACKNOWLEDGED})


class Turn:
    """State so far, effects so far, and the moment (`now_s`)."""

    __slots__ = ("effects", "now_s", "state")

    def __init__(self, state: State, now_s: float) -> None:
        self.state = state
        self.now_s = now_s
        self.effects: list[Effect] = []

    def do(self, *effects: Effect) -> None:
        """Append effects, carried out in this order."""
        self.effects.extend(effects)

    def note(self, event: str, **fields: object) -> None:
        """A line for the agent's log."""
        self.do(Note(event, tuple((key, str(value)) for key, value in fields.items())))

    def set(self, **changes: Any) -> None:
        """Replace fields of the state."""
        self.state = replace(self.state, **changes)

    def put_rank(self, rank: Rank, *, keep: bool = False) -> None:
        """Store a rank; `keep` also writes its lasting part to the journal."""
        self.set(ranks={**self.state.ranks, rank.ref: rank})
        if keep:
            self.do(Persist(rank_record(rank)))

    def drop_rank(self, ref: RankRef) -> None:
        """Forget a rank that is proved gone and reported."""
        self.set(
            ranks={key: rank for key, rank in self.state.ranks.items() if key != ref},
            connections={conn: key for conn, key in self.state.connections.items() if key != ref},
        )
        self.do(Persist(RankDropped(ref)))

    def put_host(self, host: Host, *, keep: bool = False) -> None:
        """Store a host; `keep` writes its identity to the journal."""
        self.set(hosts={**self.state.hosts, host.job_id: host})
        if keep and host.identity is not None:
            self.do(Persist(HostKept(host.job_id, host.identity.pid, host.identity.start_time_ticks)))

    def drop_host(self, job_id: str) -> None:
        """Forget a host that ended."""
        self.set(hosts=_without(self.state.hosts, job_id))
        self.do(Persist(HostDropped(job_id)))

    def put_job(self, job: Job) -> None:
        """Store a job's fence, newest last; the oldest idle fence makes room."""
        jobs = _without(self.state.jobs, job.job_id)
        jobs[job.job_id] = job
        self.do(Persist(job_record(job)))
        if len(jobs) > limits.MAX_JOBS:
            busy = {rank.ref.job_id for rank in self.state.ranks.values()} | set(self.state.hosts) | {job.job_id}
            oldest = next((job_id for job_id in jobs if job_id not in busy), None)
            if oldest is not None:
                del jobs[oldest]
                self.do(Persist(JobForgotten(oldest)))
        self.set(jobs=jobs)

    def report(self, body: EventBody, within_s: float = limits.URGENT_S) -> None:
        """Keep a fact until the server has acknowledged it, and see that a frame leaves."""
        try:
            size_bytes = event_bytes(body)
        except ProtocolError as error:
            # Kept, it would be sent for ever and be refused each time, with all that follows.
            self.note("event not kept: its server could not read it", kind=type(body).__name__, error=error)
            return
        if isinstance(body, SHEDDABLE) and self._must_shed(body, size_bytes):
            self.set(shed_reports=self.state.shed_reports + 1)
            self.refuse(body.ref, "more of its events wait for the control plane than its share")
            return
        seq = self.state.next_seq
        kept = KeptEvent(seq, self.now_s, body, size_bytes)
        self.set(events=(*self.state.events, kept), next_seq=seq + 1, waiting=with_event(self.state.waiting, kept))
        self.do(Persist(EventKept(seq, self.now_s, body)), SendSoon(within_s))
        # What a moment is awaited for may go along with whatever goes before it.
        leaves_s = self.now_s + (within_s if within_s > limits.COALESCE_S else 0.0)
        if leaves_s < self.state.link.leaves_s:
            self.set(link=replace(self.state.link, leaves_s=leaves_s))

    def refuse(self, ref: RankRef, reason: str, *, closed: bool = False) -> None:
        """Something that the rank sent is dropped. Told at once, in the rank's log too, then at
        most every REFUSED_EVERY_S with how many there were."""
        rank = self.state.ranks.get(ref)
        if rank is None:
            return
        was = rank.refused
        is_news = was.told_s is None or (closed and not was.told_closed)
        refused = replace(was, count=was.count + 1, reason=reason, closed=was.closed or closed)
        self.put_rank(replace(rank, refused=refused))
        if is_news or self.now_s - (was.told_s or 0.0) >= limits.REFUSED_EVERY_S:
            self.tell_refused(ref)

    def tell_refused(self, ref: RankRef) -> None:
        """What was refused of a rank and not told yet."""
        rank = self.state.ranks.get(ref)
        if rank is None or rank.refused.count == 0:
            return
        refused = rank.refused
        told = Refused(told_s=self.now_s, told_closed=refused.told_closed or refused.closed)
        self.put_rank(replace(rank, refused=told))
        reason = fitted(refused.reason, MAX_QUOTED_CHARS)
        closed = "; its connection was closed" if refused.closed else ""
        self.do(WriteToLog(ref, f"agent: {refused.count} of this rank's messages refused{closed}; the last: {reason}"))
        self.note("messages of a rank refused", replica=ref.replica, rank=ref.rank, count=refused.count, last=reason)
        self.report(InputRefused(ref, refused.count, reason, refused.closed))

    def answer(self, command_id: str, stage: CommandStage, detail: str = "", data: str = "") -> None:
        """Close a command (or acknowledge it) and tell the server; closed ones stay closed."""
        known = self.state.commands.get(command_id)
        if known is not None and known.stage not in OPEN_STAGES:
            return
        if stage in OPEN_STAGES:
            assert known is not None, "only a command once seen is acknowledged"
            answered = replace(known, stage=stage)
        else:
            answered = Command(command_id=command_id, stage=stage, detail=detail, data=data)
        self.put_command(answered)
        # The event first: it closes the command by itself (`restore`), so that an agent which ends between the two
        # records has neither lost its answer nor anything to do again.
        self.report(answer_of(answered))
        if stage not in OPEN_STAGES:
            self.do(Persist(CommandClosed(command_id, stage.value, detail, data)))

    def put_command(self, command: Command) -> None:
        """Store a command; the oldest closed ones make room."""
        commands = {**self.state.commands, command.command_id: command}
        excess = len(commands) - limits.MAX_CLOSED_COMMANDS
        if excess > 0:
            closed = [key for key, value in commands.items() if value.stage not in OPEN_STAGES]
            for key in closed[:excess]:
                del commands[key]
        self.set(commands=commands)

    def _must_shed(self, said: RankSaid | LogMarked | StacksCollected | RankOverdue, size_bytes: int) -> bool:
        """No room is left, in all or in this rank's share of it."""
        frequent = isinstance(said, LogMarked) or (isinstance(said, RankSaid) and isinstance(said.report, StepReport))
        most = limits.MAX_UNACKED_STEP_REPORTS if frequent else limits.MAX_UNACKED_SAID
        shares = max(len(self.state.ranks), limits.MIN_SHARES)
        mine = self.state.waiting.get(said.ref, NONE_WAITS)
        return (
            len(self.state.events) >= most
            or mine.count >= most // shares
            or mine.bytes + size_bytes > limits.MAX_UNACKED_BYTES // shares
        )


def with_event(waiting: Mapping[RankRef, Waiting], kept: KeptEvent) -> Mapping[RankRef, Waiting]:
    """What waits of each rank, one event more."""
    ref = getattr(kept.body, "ref", None)
    if ref is None:
        return waiting
    mine = waiting.get(ref, NONE_WAITS)
    return {**waiting, ref: Waiting(mine.count + 1, mine.bytes + kept.size_bytes)}


def waiting_of(events: Iterable[KeptEvent]) -> Mapping[RankRef, Waiting]:
    """The same of many."""
    counts: Counter[RankRef] = Counter()
    sizes: Counter[RankRef] = Counter()
    for kept in events:
        ref = getattr(kept.body, "ref", None)
        if ref is not None:
            counts[ref] += 1
            sizes[ref] += kept.size_bytes
    return {ref: Waiting(count, sizes[ref]) for ref, count in counts.items()}


def answer_of(command: Command) -> CommandAnswer:
    """The command as its server hears of it."""
    detail, data = fitted(command.detail, MAX_DETAIL_CHARS), fitted(command.data, MAX_DETAIL_CHARS)
    return CommandAnswer(command.command_id, cast(AnswerState, command.stage.value), detail, data)


def rank_record(rank: Rank) -> RankKept:
    """The lasting part of a rank."""
    return RankKept(
        ref=rank.ref,
        device_index=rank.device_index,
        launch=rank.launch,
        launched_at_s=rank.launched_at_s,
        pid=rank.identity.pid if rank.identity else 0,
        start_time_ticks=rank.identity.start_time_ticks if rank.identity else 0,
        joined=rank.joined,
        admitted=rank.admitted,
        done=rank.done,
        expected=rank.expected,
        log_read_bytes=rank.log_read_bytes,
    )


def job_record(job: Job) -> JobKept:
    """The lasting part of a job: all of it."""
    incarnations, end = dict(job.incarnations), (job.end, job.end_signature, job.ended_epoch)
    return JobKept(job.job_id, job.attempt, job.epoch, incarnations, job.view, job.install, *end)


def _without(mapping: Mapping[K, V], key: K) -> dict[K, V]:
    return {other: value for other, value in mapping.items() if other != key}
