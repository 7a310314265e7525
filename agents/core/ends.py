"""How ranks end: by order, by themselves, or because their replica is doomed.

Rule 1: a rank leaves the state only when its process group is proved empty.
Rule 2: every end is reported exactly once, with its exit code where one can be known.
"""

from dataclasses import replace

from agents.core import limits
from agents.core.effects import Reach, Signal, SweepGroup, ToConnection
from agents.core.events import GroupGone, RankProcessGone
from agents.core.state import NOTHING_REFUSED, CommandStage, ProcessState, Rank
from agents.core.turn import Turn
from controlplane.protocol.bounds import fitted, fitted_tail
from controlplane.protocol.commands import ForRanks
from controlplane.protocol.frames import RankExited
from controlplane.protocol.launch import RankRef
from controlplane.protocol.rank import StopTraining
from controlplane.protocol.states import EXIT_PEER_LOST

SIGKILL, SIGTERM = 9, 15
# 0: all steps done; 15: saved on SIGTERM and left. Neither condemns its peers.
CLEAN_CODES = frozenset({0, 15})
UNOBSERVED, NOBODY_SAW = "unobserved", "exit not observed"


def kill(turn: Turn, rank: Rank, *, grace_s: float = 0.0) -> None:
    """End a rank: SIGTERM first if there is grace, SIGKILL to the group after it.

    A program of the job's own is told on its socket too: it may handle SIGTERM in its own
    way, or not get it through the wrapper it was started by. A rank whose process is not yet
    known is killed the moment it is.
    """
    if rank.process is ProcessState.GONE:
        return  # It ended by itself; only its status is still to be told.
    gentle = grace_s > 0
    wait_s = grace_s if gentle else limits.KILL_RETRY_S
    # A second, gentler order never postpones a deadline already set.
    kill_at_s = turn.now_s + wait_s
    if rank.expected and rank.kill_at_s is not None and gentle:
        kill_at_s = min(kill_at_s, rank.kill_at_s)
    turn.put_rank(replace(rank, expected=True, kill_at_s=kill_at_s, looked_at=False), keep=not rank.expected)
    if gentle and rank.launch.entrypoint is not None and rank.conn_id is not None:
        turn.do(ToConnection(rank.conn_id, StopTraining(save=True, reason=f"asked to leave within {grace_s:.0f} s")))
    if rank.identity is not None:
        turn.do(Signal(rank.ref, rank.identity, SIGTERM if gentle else SIGKILL, Reach.GROUP))


def is_looked_at(turn: Turn, ref: RankRef) -> bool:
    """Somebody's look at the rank has not been answered yet."""
    return any(other == ref for pending in turn.state.stacks for other, _ in pending.looks)


def replica_is_looked_at(turn: Turn, ref: RankRef) -> bool:
    """It, or one of its replica's other ranks here, which would break off if it went first."""
    return any(_slot(other) == _slot(ref) for pending in turn.state.stacks for other, _ in pending.looks)


def kill_after_look(turn: Turn, rank: Rank) -> None:
    """End a rank of a replica that is being looked at: when that is over (`looked`), or after
    LOOK_BEFORE_KILL_S, when the tick finds its kill due."""
    kill_at_s = turn.now_s + limits.LOOK_BEFORE_KILL_S
    if rank.kill_at_s is not None:
        kill_at_s = min(kill_at_s, rank.kill_at_s)
    turn.put_rank(replace(rank, expected=True, kill_at_s=kill_at_s, looked_at=True), keep=not rank.expected)


def looked(turn: Turn, ref: RankRef) -> None:
    """Nothing looks at the rank any more: the ends that waited for it are due. The ranks of a
    replica go together: one that loses its peers may be gone before its own look. What other
    nodes are done with is not known here: a replica on several nodes has its whole time."""
    if replica_is_looked_at(turn, ref):
        return
    for rank in tuple(turn.state.ranks.values()):
        here = len(rank.launch.ranks) == rank.launch.world_size
        if _slot(rank.ref) == _slot(ref) and rank.looked_at and here and rank.process is ProcessState.ALIVE:
            kill(turn, rank)


def carried_out_by(turn: Turn, ref: RankRef) -> tuple[str, ...]:
    """Commands that this rank was given and has not answered."""
    return tuple(
        command.command_id
        for command in turn.state.commands.values()
        if command.stage is CommandStage.ACKNOWLEDGED
        and command.envelope is not None
        and isinstance(body := command.envelope.body, ForRanks)
        and body.answered
        and (body.job_id, body.attempt) == (ref.job_id, ref.attempt)
        and body.names(ref)
    )


def on_process_gone(turn: Turn, event: RankProcessGone) -> None:
    """The leader ended. Wait briefly for the exit code if the host can still tell it."""
    rank = turn.state.ranks.get(event.ref)
    if rank is None or (rank.process is ProcessState.GONE and rank.exit_due_s is None):
        return
    if event.pid is not None and rank.identity is not None and rank.identity.pid != event.pid:
        return
    # What was known of it without a status still holds when its host tells the status.
    rank = replace(rank, exit_cause=event.cause or rank.exit_cause, exit_hint=event.hint or rank.exit_hint)
    if event.known:
        conclude(turn, rank, event.exit_code, event.signal, event.log_tail)
        return
    if rank.process is ProcessState.GONE:
        return
    host = turn.state.hosts.get(rank.ref.job_id)
    if rank.launch.entrypoint is not None or host is None or host.identity is None:
        conclude(turn, rank, None, None, event.log_tail)
        return
    wait_s = limits.EXIT_CODE_WAIT_S if host.ready else limits.ADOPT_EXIT_CODE_WAIT_S
    turn.put_rank(
        replace(
            rank,
            process=ProcessState.GONE,
            exit_due_s=turn.now_s + wait_s,
            exit_log_tail=event.log_tail,
            kill_at_s=None,
        )
    )


def conclude(turn: Turn, rank: Rank, exit_code: int | None, signal: int | None, log_tail: str) -> None:
    """Report the end, condemn the replica's other ranks here, sweep the group."""
    gone = replace(rank, process=ProcessState.GONE, exit_due_s=None, kill_at_s=None, refused=NOTHING_REFUSED)
    clean = exit_code in CLEAN_CODES
    aside_s = rank.aside.at_close(turn.now_s, rank.steps) if clean else None
    turn.tell_refused(rank.ref)
    turn.put_rank(gone)
    for command_id in carried_out_by(turn, rank.ref):
        turn.answer(command_id, CommandStage.FAILED, "the rank ended before it answered")
    tail = fitted_tail(log_tail, limits.MAX_LOG_TAIL_CHARS)
    told = exit_code is not None or signal is not None
    cause = rank.exit_cause if not told or signal == SIGKILL else ""
    hint = fitted(rank.exit_hint, limits.MAX_HINT_CHARS) if cause else ""
    if not told:
        cause, hint = cause or UNOBSERVED, hint or NOBODY_SAW
    turn.report(RankExited(rank.ref, exit_code, signal, rank.expected, tail, aside_s, cause, hint))
    if not rank.expected and not clean:
        end_peers = _leave_peers if exit_code == EXIT_PEER_LOST else _kill_peers
        end_peers(turn, rank.ref)
    if clean and not rank.expected:
        # What a finished rank leaves behind may be writing its last checkpoint.
        _forget(turn, gone)
        return
    turn.do(SweepGroup(rank.ref, rank.identity))


def on_group_gone(turn: Turn, event: GroupGone) -> None:
    """Nothing of the rank is left: stops and starts that waited for it may go on."""
    rank = turn.state.ranks.get(event.ref)
    if rank is None or rank.process is not ProcessState.GONE:
        return
    _forget(turn, rank)


def abandon_unborn(turn: Turn, rank: Rank) -> None:
    """No process of this rank exists: it leaves without an exit."""
    assert rank.identity is None, "only a rank without a process is unborn"
    _forget(turn, rank)


def settle_stops(turn: Turn) -> None:
    """Answer every stop whose ranks are all gone."""
    alive = turn.state.ranks.keys()
    settled = [stop for stop in turn.state.stops if not any(ref in alive for ref in stop.refs)]
    if not settled:
        return
    turn.set(stops=tuple(stop for stop in turn.state.stops if stop not in settled))
    for stop in settled:
        turn.answer(stop.command_id, CommandStage.SUCCEEDED, f"{len(stop.refs)} ranks are gone")


def _forget(turn: Turn, rank: Rank) -> None:
    turn.drop_rank(rank.ref)
    if rank.identity is not None:
        turn.set(left_devices=turn.state.left_devices | {rank.device_index})
    settle_stops(turn)
    job_id = rank.ref.job_id
    host = turn.state.hosts.get(job_id)
    busy = any(ref.job_id == job_id for ref in turn.state.ranks) or any(
        pending.launch.job_id == job_id for pending in turn.state.launches
    )
    if host is not None and not busy:
        idle_s = limits.HOST_DONE_IDLE_S if rank.done else limits.HOST_IDLE_S
        turn.put_host(replace(host, idle_at_s=turn.now_s + idle_s))


def _kill_peers(turn: Turn, ref: RankRef) -> None:
    for peer in tuple(turn.state.ranks.values()):
        if _slot(peer.ref) != _slot(ref) or peer.ref == ref or peer.process is ProcessState.GONE:
            continue
        if replica_is_looked_at(turn, peer.ref) and peer.process is ProcessState.ALIVE:
            kill_after_look(turn, peer)
        else:
            kill(turn, peer)


def _leave_peers(turn: Turn, ref: RankRef) -> None:
    """Another rank was gone before this one, and takes longer to be so: what it ended by is not our order."""
    due_s = turn.now_s + limits.PEERS_MAY_END_S
    for peer in tuple(turn.state.ranks.values()):
        if (
            _slot(peer.ref) == _slot(ref)
            and peer.ref != ref
            and peer.process is ProcessState.ALIVE
            and peer.kill_at_s is None
        ):
            turn.put_rank(replace(peer, kill_at_s=due_s))


def _slot(ref: RankRef) -> tuple[str, int, int, int]:
    """One life of a replica."""
    return ref.job_id, ref.attempt, ref.replica, ref.incarnation
