"""Starting ranks: only when every older life of the replica is proved gone.

A start passes: accepted -> (older ranks killed) -> gone -> node checked -> host ready ->
devices empty -> asked -> every process known -> succeeded. It waits in `State.launches`;
`advance` moves all of them and is called after every event that may have removed an obstacle.
"""

import re
from dataclasses import replace

from agents.core import health, limits, memory
from agents.core.effects import Fork, Reach, SendSoon, Signal, Spawn, StartHost, Watch
from agents.core.ends import SIGKILL, abandon_unborn, conclude, kill
from agents.core.events import (
    HostListed,
    HostProcessGone,
    HostReadied,
    HostStarted,
    HostStartFailed,
    MemoryRead,
    NodeRead,
    RankForkedHere,
    RankSpawnFailed,
)
from agents.core.state import CommandStage, Host, Identity, Job, PendingLaunch, ProcessState, Rank
from agents.core.turn import Turn
from controlplane.protocol.bounds import fitted_tail
from controlplane.protocol.commands import StopRanks
from controlplane.protocol.frames import HostExited, RankStarted
from controlplane.protocol.launch import RankRef, ReplicaLaunch
from controlplane.protocol.rank import ForkRank
from controlplane.protocol.states import UNFIT

_SAFE_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$")


def accept(turn: Turn, command_id: str, launch: ReplicaLaunch) -> None:
    """Judge a start order; refuse it, or fence and queue it."""
    fault = _fault(launch)
    if fault:
        turn.answer(command_id, CommandStage.FAILED, fault)
        return
    job = turn.state.jobs.get(launch.job_id) or Job(job_id=launch.job_id)
    started = job.incarnations.get(launch.replica, -1) if launch.attempt == job.attempt else -1
    if launch.attempt < job.attempt:
        turn.answer(command_id, CommandStage.SUPERSEDED, f"attempt {job.attempt} was seen here")
        return
    if launch.incarnation <= started:
        detail = f"incarnation {started} of replica {launch.replica} was started here before"
        turn.answer(command_id, CommandStage.SUPERSEDED, detail)
        return
    if launch.attempt == job.attempt and launch.epoch <= job.ended_epoch:
        detail = f"attempt {job.attempt} was ended here in epoch {job.ended_epoch}"
        turn.answer(command_id, CommandStage.SUPERSEDED, detail)
        return
    known = job.incarnations if launch.attempt == job.attempt else {}
    turn.put_job(
        replace(
            job,
            attempt=launch.attempt,
            epoch=max(job.epoch, launch.epoch) if launch.attempt == job.attempt else launch.epoch,
            incarnations={**known, launch.replica: launch.incarnation},
            view=job.view if launch.attempt == job.attempt else None,
            install=job.install if launch.attempt == job.attempt else None,
            end="",
            end_signature="",
            ended_epoch=job.ended_epoch if launch.attempt == job.attempt else 0,
        )
    )
    cancel(turn, launch, "a newer start replaced it")
    for rank in tuple(turn.state.ranks.values()):
        if _conflicts(rank.ref, launch):
            kill(turn, rank)
    pending = PendingLaunch(command_id=command_id, launch=launch, since_s=turn.now_s)
    turn.set(launches=(*turn.state.launches, pending))
    advance(turn)


def fence(turn: Turn, body: StopRanks) -> None:
    """What was ordered to end is not started any more, should its start come late; also of a job of which nothing
    was told here before. The end of a whole attempt comes after all of its starts: it fences them
    by their epoch."""
    job = turn.state.jobs.get(body.job_id) or Job(job_id=body.job_id, attempt=body.attempt)
    if body.attempt != job.attempt:
        return
    if body.replica < 0:
        turn.put_job(replace(job, ended_epoch=job.epoch))
    elif body.incarnation > job.incarnations.get(body.replica, -1):
        turn.put_job(replace(job, incarnations={**job.incarnations, body.replica: body.incarnation}))


def cancel(turn: Turn, launch: ReplicaLaunch, why: str) -> None:
    """Drop pending starts that `launch` replaces."""
    for old in turn.state.launches:
        if old.launch.job_id == launch.job_id and (
            old.launch.attempt < launch.attempt or old.launch.replica == launch.replica
        ):
            end_launch(turn, old, CommandStage.SUPERSEDED, why)


def end_launch(turn: Turn, pending: PendingLaunch, stage: CommandStage, detail: str, *, data: str = "") -> None:
    """Take a start off the queue with its answer; unless it succeeded, what it started is killed."""
    turn.set(launches=tuple(other for other in turn.state.launches if other.command_id != pending.command_id))
    turn.answer(pending.command_id, stage, detail, data)
    if stage is CommandStage.SUCCEEDED:
        return
    for ref in _refs(pending.launch):
        rank = turn.state.ranks.get(ref)
        if rank is not None and not rank.expected:
            kill(turn, rank)


def advance(turn: Turn) -> None:
    """Move every pending start as far as it can go now."""
    for pending in turn.state.launches:
        if pending not in turn.state.launches:
            continue
        if pending.asked:
            _finish_if_born(turn, pending)
        elif not any(_conflicts(ref, pending.launch) for ref in turn.state.ranks) and health.ask(turn, pending):
            _ask(turn, pending)


def on_node_read(turn: Turn, event: NodeRead) -> None:
    """A start whose node is not healthy is refused; one that waited for that goes on."""
    refused = health.on_node_read(turn, event)
    if refused is not None:
        why = health.sentence((*event.failed, *event.launch_failed))
        end_launch(turn, refused, CommandStage.FAILED, f"the node is not fit: {why}", data=UNFIT)
    advance(turn)


def on_memory_read(turn: Turn, event: MemoryRead) -> None:
    """Starts that waited for empty devices go on."""
    memory.on_memory_read(turn, event)
    advance(turn)


def on_forked(turn: Turn, event: RankForkedHere) -> None:
    """A process exists: bind its identity to the rank, once."""
    rank = turn.state.ranks.get(event.ref)
    if rank is None:
        # Asked for by a life of this agent that was lost: nobody wants it any more.
        turn.do(Signal(event.ref, event.identity, SIGKILL, Reach.GROUP))
        return
    if rank.process is not ProcessState.LAUNCHING:
        return
    bind(turn, rank, event.identity, event.took_s)
    advance(turn)


def bind(turn: Turn, rank: Rank, identity: Identity, fork_s: float) -> None:
    """The rank has a process now; if its end was ordered meanwhile, it ends at once."""
    host = turn.state.hosts.get(rank.ref.job_id)
    born = replace(
        rank, process=ProcessState.ALIVE, identity=identity, phase_since_s=turn.now_s, last_word_s=turn.now_s
    )
    turn.put_rank(born, keep=True)
    turn.do(Watch(rank.ref, identity))
    host_start_s = host.import_s if host is not None and rank.launch.entrypoint is None else 0.0
    turn.report(RankStarted(rank.ref, identity.pid, rank.device_index, host_start_s, fork_s))
    if born.expected:
        kill(turn, born)


def on_spawn_failed(turn: Turn, event: RankSpawnFailed) -> None:
    """One rank that cannot start dooms the whole start."""
    rank = turn.state.ranks.get(event.ref)
    if rank is None or rank.process is not ProcessState.LAUNCHING:
        return
    abandon_unborn(turn, rank)
    for pending in turn.state.launches:
        if event.ref in _refs(pending.launch):
            end_launch(turn, pending, CommandStage.FAILED, event.error)
    advance(turn)


def want_host(turn: Turn, job_id: str, user: str) -> Host:
    """The job's host, started if it is not there; `user` is the job's owner."""
    host = turn.state.hosts.get(job_id)
    if host is None:
        host = Host(job_id=job_id, since_s=turn.now_s)
        turn.put_host(host)
        turn.do(StartHost(job_id, user))
    return host


def on_host_started(turn: Turn, event: HostStarted) -> None:
    """Its process exists."""
    host = turn.state.hosts.get(event.job_id) or Host(job_id=event.job_id, since_s=turn.now_s)
    turn.put_host(replace(host, identity=event.identity), keep=True)


def on_host_ready(turn: Turn, event: HostReadied) -> None:
    """It can fork: pending starts go on, warm orders are answered."""
    host = turn.state.hosts.get(event.job_id)
    if host is None:
        return
    turn.put_host(replace(host, ready=True, import_s=event.import_s, waiting_commands=()))
    for command_id in host.waiting_commands:
        turn.answer(command_id, CommandStage.SUCCEEDED, f"host ready after {event.import_s:.2f} s of imports")
    advance(turn)


def on_host_listed(turn: Turn, event: HostListed) -> None:
    """After an agent restart: what the host really forked decides about unborn ranks."""
    alive = {forked.ref: Identity(forked.pid, forked.start_time_ticks) for forked in event.ranks}
    for ref, identity in alive.items():
        on_forked(turn, RankForkedHere(now_s=turn.now_s, ref=ref, identity=identity, took_s=0.0))
    for rank in tuple(turn.state.ranks.values()):
        if rank.ref.job_id != event.job_id or rank.launch.entrypoint is not None or rank.ref in alive:
            continue
        if rank.process is ProcessState.LAUNCHING:
            abandon_unborn(turn, rank)
            _ask_again(turn, rank.ref)
    advance(turn)


def on_host_gone(turn: Turn, event: HostProcessGone) -> None:
    """Living ranks stay; starts that needed the host fail."""
    if event.job_id not in turn.state.hosts:
        return
    last_words = event.log_tail.strip().rpartition("\n")[2]
    why = f"the rank host exited with code {event.exit_code}"
    _lose_host(turn, event.job_id, f"{why}: {last_words}" if last_words else why)
    turn.report(HostExited(event.job_id, event.exit_code, fitted_tail(event.log_tail, limits.MAX_LOG_TAIL_CHARS)))


def on_host_start_failed(turn: Turn, event: HostStartFailed) -> None:
    """The operating system refused the host."""
    _lose_host(turn, event.job_id, event.error)


def _lose_host(turn: Turn, job_id: str, why: str) -> None:
    host = turn.state.hosts.get(job_id)
    turn.drop_host(job_id)
    for command_id in host.waiting_commands if host else ():
        turn.answer(command_id, CommandStage.FAILED, why)
    for rank in tuple(turn.state.ranks.values()):
        if rank.ref.job_id != job_id or rank.launch.entrypoint is not None:
            continue
        if rank.process is ProcessState.LAUNCHING:
            # If it was forked all the same, it is refused and killed when it says hello.
            abandon_unborn(turn, rank)
        elif rank.exit_due_s is not None:
            conclude(turn, rank, None, None, rank.exit_log_tail)
    for pending in turn.state.launches:
        if pending.launch.job_id == job_id and pending.launch.entrypoint is None:
            end_launch(turn, pending, CommandStage.FAILED, why)
    advance(turn)


def _ask(turn: Turn, pending: PendingLaunch) -> None:
    launch = pending.launch
    if launch.entrypoint is None:
        host = want_host(turn, launch.job_id, launch.user)
        if not host.ready:
            return
        turn.put_host(replace(host, idle_at_s=None))
    if not memory.ask(turn, pending):
        return
    asked = replace(pending, asked=True, since_s=turn.now_s)
    turn.set(launches=tuple(asked if other is pending else other for other in turn.state.launches))
    for place in launch.ranks:
        ref = RankRef(launch.job_id, launch.attempt, launch.replica, launch.incarnation, place.rank)
        rank = Rank(ref=ref, device_index=place.device_index, launch=launch, launched_at_s=turn.now_s)
        turn.put_rank(replace(rank, phase_since_s=turn.now_s, last_word_s=turn.now_s), keep=True)
        if launch.entrypoint is not None:
            turn.do(Spawn(ref, launch, place.device_index))
            continue
        turn.do(
            Fork(
                ForkRank(
                    ref=ref,
                    world_size=launch.world_size,
                    device_index=place.device_index,
                    config=launch.config,
                    agent_socket="",
                    log_path="",
                    env={**launch.env, "HOLDFAST_NODE": turn.state.link.node_id},
                )
            )
        )
    turn.do(SendSoon(limits.COALESCE_S))


def _ask_again(turn: Turn, ref: RankRef) -> None:
    for pending in turn.state.launches:
        if ref in _refs(pending.launch) and pending.asked:
            # Ranks of the same start that were born keep running; only whole starts are asked again.
            born = any(other in turn.state.ranks for other in _refs(pending.launch))
            if born:
                end_launch(turn, pending, CommandStage.FAILED, "only a part was started before the agent restarted")
            else:
                again = replace(pending, asked=False, since_s=turn.now_s)
                turn.set(launches=tuple(again if other is pending else other for other in turn.state.launches))


def _finish_if_born(turn: Turn, pending: PendingLaunch) -> None:
    ranks = [turn.state.ranks.get(ref) for ref in _refs(pending.launch)]
    if any(rank is not None and rank.process is ProcessState.LAUNCHING for rank in ranks):
        return
    pids = ", ".join(str(rank.identity.pid) for rank in ranks if rank is not None and rank.identity is not None)
    end_launch(
        turn, pending, CommandStage.SUCCEEDED, f"pids {pids or 'gone already'}{memory.said(turn.state, pending)}"
    )


def _conflicts(ref: RankRef, launch: ReplicaLaunch) -> bool:
    older_attempt = ref.attempt < launch.attempt
    older_incarnation = ref.replica == launch.replica and ref.incarnation < launch.incarnation
    return ref.job_id == launch.job_id and (older_attempt or older_incarnation)


def _refs(launch: ReplicaLaunch) -> tuple[RankRef, ...]:
    return tuple(
        RankRef(launch.job_id, launch.attempt, launch.replica, launch.incarnation, place.rank) for place in launch.ranks
    )


def _fault(launch: ReplicaLaunch) -> str:
    if not _SAFE_NAME.match(launch.job_id):
        return "job_id is no safe file name"
    if min(launch.attempt, launch.replica, launch.incarnation) < 0:
        return "attempt, replica and incarnation count from 0"
    numbers = [place.rank for place in launch.ranks]
    if not numbers or len(set(numbers)) != len(numbers) or not all(0 <= n < launch.world_size for n in numbers):
        return f"ranks {numbers} do not fit a world of {launch.world_size}"
    if launch.entrypoint is not None and not launch.entrypoint:
        return "an entrypoint needs a program"
    return ""
