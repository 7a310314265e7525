"""Between ranks and the server: views and installs down, reports up.

The newest view and install of each job are kept, so that a rank that says hello late
(or again, after an agent restart) gets them. A rank that was a member of a view handed
on here and is not in the newest one is told so and then killed; a rank that was never
admitted (a spare, or a joiner that is still building) is left in peace, and so is one that the
view leaves out for now: it waits for the one that takes it back.
"""

from zlib import crc32

from agents.core import limits
from agents.core.effects import CloseConnection, Reach, Signal, ToConnection
from agents.core.ends import SIGKILL, carried_out_by, is_looked_at, kill_after_look
from agents.core.events import RankConnected, RankDisconnected, RankLineRefused, RankMessage
from agents.core.launches import advance, bind
from agents.core.state import CommandStage, Job, ProcessState, Rank
from agents.core.turn import Turn
from agents.core.values import replace
from controlplane.protocol.bounds import fitted_tail
from controlplane.protocol.frames import RankJoined, RankSaid, StacksCollected
from controlplane.protocol.launch import RankRef
from controlplane.protocol.membership import Flush, Install, View
from controlplane.protocol.rank import (
    CheckpointReport,
    Evicted,
    FromRank,
    InstallView,
    RankHello,
    RankProgress,
    SetView,
    StacksReport,
    StepReport,
    TimingReport,
    ToRank,
    TrainingDone,
    ViewInstalled,
)
from controlplane.protocol.rank_commands import CarriedOut
from controlplane.protocol.states import WAITING_PHASES, Phase, Section

# A phase that started later than remembered by more than the jitter of its report is a new one.
_SAME_PHASE_S = 0.75
_COALESCED = (StepReport, CheckpointReport, TimingReport)


def take_view(turn: Turn, view: View) -> int:
    """Keep the view if it is the newest, hand it on; number of ranks that have it now."""
    job = turn.state.jobs.get(view.job_id) or Job(job_id=view.job_id, attempt=view.attempt)
    if job.view is not None and (job.view.attempt, job.view.epoch) > (view.attempt, view.epoch):
        return 0
    turn.put_job(replace(job, view=view))
    reached = 0
    for rank in _ranks_of(turn, view.job_id, view.attempt):
        if not is_member(rank.ref, view):
            if rank.admitted and not view.waits(rank.ref.replica, rank.ref.incarnation):
                evict(turn, rank, view.epoch, view.reason)
            continue
        if not rank.admitted:
            turn.put_rank(replace(rank, admitted=True), keep=True)
        reached += tell(turn, rank, SetView(view))
        install = job.install
        if install is not None and (install.attempt, install.epoch) == (view.attempt, view.epoch):
            tell(turn, rank, InstallView(install))
    return reached


def take_install(turn: Turn, install: Install) -> int:
    """Keep the install if it is the newest; hand it on if its view is the newest, or one that only its ranks know."""
    job = turn.state.jobs.get(install.job_id) or Job(job_id=install.job_id, attempt=install.attempt)
    if job.install is not None and (job.install.attempt, job.install.epoch) > (install.attempt, install.epoch):
        return 0
    job = replace(job, install=install)
    turn.put_job(job)
    ranks = _ranks_of(turn, install.job_id, install.attempt)
    return sum(tell(turn, rank, InstallView(install)) for rank in ranks if _enters(rank, job))


def _enters(rank: Rank, job: Job) -> bool:
    """The install is for it. A view that was handed on while the disk was full is not known any more after a restart,
    and its answer is not awaited again: who has read it enters, who has not waits for it."""
    view, install = job.view, job.install
    if install is None:
        return False
    if view is None or (view.attempt, view.epoch) < (install.attempt, install.epoch):
        return rank.admitted
    return (view.attempt, view.epoch) == (install.attempt, install.epoch) and is_member(rank.ref, view)


def tell(turn: Turn, rank: Rank, message: ToRank) -> int:
    """1 if the rank is connected and was told, else 0 (it will be told on its hello)."""
    if rank.conn_id is None:
        return 0
    turn.do(ToConnection(rank.conn_id, message))
    return 1


def evict(turn: Turn, rank: Rank, epoch: int, reason: str) -> None:
    """Tell it, and kill it if it has not gone by itself shortly after. One that is being
    looked at is not told, or it would be gone before the look: it ends after it."""
    if is_looked_at(turn, rank.ref):
        kill_after_look(turn, rank)
        return
    tell(turn, rank, Evicted(reason or "no member of the newest view", epoch))
    if rank.kill_at_s is None:
        kill_at_s = turn.now_s + limits.EVICT_KILL_AFTER_S
        turn.put_rank(replace(rank, expected=True, kill_at_s=kill_at_s), keep=True)


def on_connected(turn: Turn, event: RankConnected) -> None:
    """A process says which rank it is; the kernel says which process it is."""
    ref = event.hello.ref
    rank = turn.state.ranks.get(ref)
    if rank is None or rank.process is ProcessState.GONE:
        _refuse_stranger(turn, event)
        return
    if rank.identity is None:
        if event.session_pid != event.peer.pid:
            turn.note("rank hello refused: no session of its own", pid=event.peer.pid)
            turn.do(CloseConnection(event.conn_id))
            return
        # Heard of before the host's own word; the same process either way.
        bind(turn, rank, event.peer, 0.0)
    elif rank.identity != event.peer and rank.identity.pid != event.session_pid:
        turn.note("rank hello refused: another process", pid=event.peer.pid, expected=rank.identity.pid)
        turn.do(CloseConnection(event.conn_id))
        return
    rank = turn.state.ranks[ref]
    if rank.conn_id is not None and rank.conn_id != event.conn_id:
        turn.do(CloseConnection(rank.conn_id))
    turn.set(connections={**turn.state.connections, event.conn_id: ref})
    admitted = rank.admitted or event.hello.epoch > 0
    epoch = max(rank.epoch, event.hello.epoch)
    rank = replace(rank, conn_id=event.conn_id, last_word_s=turn.now_s, epoch=epoch, admitted=admitted)
    turn.put_rank(rank)
    _bring_up_to_date(turn, rank, event.hello.epoch)
    advance(turn)


def on_disconnected(turn: Turn, event: RankDisconnected) -> None:
    """Remember that it cannot be told anything; its process is watched otherwise."""
    ref = turn.state.connections.get(event.conn_id)
    turn.set(connections={conn: key for conn, key in turn.state.connections.items() if conn != event.conn_id})
    rank = turn.state.ranks.get(ref) if ref is not None else None
    if rank is not None and rank.conn_id == event.conn_id:
        turn.put_rank(replace(rank, conn_id=None))


def on_message(turn: Turn, event: RankMessage) -> None:
    """A line from a rank: progress is remembered, reports are passed on."""
    ref = turn.state.connections.get(event.conn_id)
    rank = turn.state.ranks.get(ref) if ref is not None else None
    if rank is None or rank.process is ProcessState.GONE:
        return
    message = event.message
    match message:
        case RankProgress():
            _progress(turn, rank, message)
        case RankHello():
            turn.refuse(rank.ref, "a second hello on one connection")
        case StacksReport():
            text = fitted_tail(message.text, limits.MAX_STACK_CHARS)
            turn.report(StacksCollected(rank.ref, text, "in_process", message.command_id))
        case CarriedOut():
            _carried_out(turn, rank, message)
        case _:
            _pass_on(turn, rank, message)


def on_line_refused(turn: Turn, event: RankLineRefused) -> None:
    """A line that was dropped at the socket: counted, and told now and then."""
    ref = turn.state.connections.get(event.conn_id)
    if ref is not None:
        turn.refuse(ref, event.reason, closed=event.closed)


def is_member(ref: RankRef, view: View) -> bool:
    """This very incarnation of the replica is in the view."""
    return any(member.replica == ref.replica and member.incarnation == ref.incarnation for member in view.members)


def _progress(turn: Turn, rank: Rank, said: RankProgress) -> None:
    since_s = turn.now_s - said.phase_age_s
    same = (rank.section, rank.phase, rank.step) == (said.section, said.phase, said.step)
    same = same and since_s <= rank.phase_since_s + _SAME_PHASE_S
    joins = not rank.joined and (said.phase is Phase.PARKED or said.section is not Section.SETUP)
    if joins:
        # The fact first: an agent that ends between the two records tells it once more, and not never.
        turn.report(RankJoined(rank.ref, turn.now_s - rank.launched_at_s))
    turn.put_rank(
        replace(
            rank,
            section=said.section,
            phase=said.phase,
            step=said.step,
            epoch=max(rank.epoch, said.epoch),
            phase_since_s=since_s,
            last_word_s=turn.now_s,
            place_said_s=turn.now_s,
            # Who waits is late for its silence alone, and may be so again.
            overdue_sent=rank.overdue_sent and same and said.phase not in WAITING_PHASES,
            joined=rank.joined or joins,
            aside=rank.aside.after(said, turn.now_s, rank.steps),
        ),
        keep=joins,
    )


def _pass_on(turn: Turn, rank: Rank, message: FromRank) -> None:
    assert not isinstance(message, RankHello | RankProgress | StacksReport | CarriedOut), "handled before"
    if isinstance(message, Flush) and _speaker(message) != rank.ref:
        turn.refuse(rank.ref, "a flush that speaks for another rank")
        return
    # Before what is kept of the rank: see `_progress`. A report that is refused counts at the rank.
    turn.report(RankSaid(rank.ref, message), _within_s(turn, rank, message))
    rank = turn.state.ranks[rank.ref]
    done = rank.done or isinstance(message, TrainingDone)
    # It answers a view, so it was admitted, whatever of that a full disk has kept.
    admitted = rank.admitted or isinstance(message, Flush)
    epoch = max(rank.epoch, message.epoch) if isinstance(message, ViewInstalled) else rank.epoch
    steps = rank.steps.after(message) if isinstance(message, StepReport) else rank.steps
    now = replace(
        rank,
        last_word_s=turn.now_s,
        done=done,
        admitted=admitted,
        epoch=epoch,
        steps=steps,
        step_said=rank.step_said or isinstance(message, StepReport),
    )
    turn.put_rank(now, keep=(done, admitted) != (rank.done, rank.admitted))
    job = turn.state.jobs.get(rank.ref.job_id)
    if isinstance(message, TrainingDone) and job is not None and job.attempt == rank.ref.attempt and not job.end:
        turn.put_job(replace(job, end="succeeded"))


def _within_s(turn: Turn, rank: Rank, message: FromRank) -> float:
    """How soon a frame with it leaves. Steps of a large job wait for each other, but for the first one, the one that
    says that a late rank moves again, and a loss that is no number: decisions wait for those. Nodes take turns,
    each by its own name and clock, so that there is always one that tells of the newest step next."""
    if not isinstance(message, _COALESCED):
        return limits.URGENT_S
    hold_s = min(rank.launch.step_reports_within_s, limits.LONGEST_HOLD_S)
    awaited = not isinstance(message, StepReport) or not rank.step_said or message.loss_not_finite is not None
    if awaited or hold_s <= limits.COALESCE_S:
        return limits.COALESCE_S
    turn_s = crc32(turn.state.link.node_id.encode()) / (1 << 32) * hold_s
    return max(limits.COALESCE_S, hold_s - (turn.now_s + turn_s) % hold_s)


def _carried_out(turn: Turn, rank: Rank, said: CarriedOut) -> None:
    """Ends the command. One that has ended stays so: the agent was restarted, or the rank answers twice."""
    if said.command_id in carried_out_by(turn, rank.ref):
        turn.answer(
            said.command_id, CommandStage.SUCCEEDED if said.ok else CommandStage.FAILED, said.detail, said.result
        )
    elif said.command_id not in turn.state.commands:
        turn.refuse(rank.ref, "an answer to a command that it was not given")


def _bring_up_to_date(turn: Turn, rank: Rank, installed_epoch: int) -> None:
    job = turn.state.jobs.get(rank.ref.job_id)
    if job is None or job.view is None or job.view.attempt != rank.ref.attempt:
        return
    view = job.view
    if not is_member(rank.ref, view):
        if rank.admitted and not view.waits(rank.ref.replica, rank.ref.incarnation):
            evict(turn, rank, view.epoch, view.reason)
        return
    if installed_epoch < view.epoch:
        tell(turn, rank, SetView(view))
    if job.install is not None and installed_epoch < job.install.epoch and _enters(rank, job):
        tell(turn, rank, InstallView(job.install))


def _refuse_stranger(turn: Turn, event: RankConnected) -> None:
    """A rank that nobody wants here: evicted, and killed if it is provably an old life of ours."""
    ref = event.hello.ref
    job = turn.state.jobs.get(ref.job_id)
    turn.note("unknown rank evicted", pid=event.peer.pid, replica=ref.replica, incarnation=ref.incarnation)
    turn.do(ToConnection(event.conn_id, Evicted("not known to this node's agent", job.epoch if job else 0)))
    turn.do(CloseConnection(event.conn_id))
    ours = job is not None and (
        ref.attempt < job.attempt
        or (ref.attempt == job.attempt and ref.incarnation <= job.incarnations.get(ref.replica, -1))
    )
    if ours and event.session_pid == event.peer.pid:
        turn.do(Signal(ref, event.peer, SIGKILL, Reach.GROUP))


def _ranks_of(turn: Turn, job_id: str, attempt: int) -> tuple[Rank, ...]:
    return tuple(
        rank
        for rank in turn.state.ranks.values()
        if rank.ref.job_id == job_id and rank.ref.attempt == attempt and rank.process is not ProcessState.GONE
    )


def _speaker(flush: Flush) -> RankRef:
    return RankRef(flush.job_id, flush.attempt, flush.replica, flush.incarnation, flush.rank)
