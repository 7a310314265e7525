"""What an agent's hello proves: which of its ranks continue, which are gone for good, and what it was told that our
rows have lost.

A database that was set back goes on from where the fleet is: agents' newer attempts, epochs and incarnations win,
so that no command of ours is older than what a node has obeyed. A node is believed for jobs that are placed on it
alone, and of these for the replicas that it has; for others it can only raise the numbers of the next attempt,
which must be new anyway. A command of ours that ended the job is believed by our own signature. What an end means
for a job is the policy's (`AheadFact`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from controlplane.changes.answers import Answered, answered, exited
from controlplane.changes.kinds import (
    Audit,
    Change,
    Close,
    Count,
    Enqueue,
    Fence,
    JobKey,
    Observe,
    Publish,
    Raise,
    RankKey,
    Transition,
)
from controlplane.changes.rows import Rank, Rows, Standing
from controlplane.policy.exits import UNOBSERVED
from controlplane.policy.signals.ranks import RankExit
from controlplane.protocol.commands import StartRanks, StopRanks
from controlplane.protocol.frames import AgentHello, JobSeen, RankStatus
from controlplane.protocol.launch import RankRef
from controlplane.protocol.states import CommandState, Phase, RankState, ReplicaState

STOP_TTL_S = 3600.0
SAVE_GRACE_S = 30.0
MAX_AHEAD = 1_000_000
"""No database is set back by so many attempts or epochs: a claim beyond it is refused."""
RESTARTED = "exit not observed; the node was restarted, and its processes ended with it"
NOT_STARTED = "the machine was started again before the start was answered"
NOT_ANSWERED = "the machine was started again before the answer came"
"""An agent whose disk was lost with it knows nothing of the command."""
ENDED_WITH_IT = "the machine was started again, and its processes ended with it"
CAME_BACK = "exit not observed; the node's processes were gone when the agent came back, with a new journal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Greeting:
    """A hello beside what was known of its node. `behind`: its journal has acknowledged events that are not in
    our rows; `renewed`: another journal or boot than before; else what is missing is still to come. `rebooted`: its
    processes ended with its last boot."""

    node_id: str
    node: str
    behind: bool
    renewed: bool
    rebooted: bool

    @property
    def lost(self) -> bool:
        """Something that the node had said may never be said again."""
        return self.behind or self.renewed


def greeting_of(said: AgentHello, *, node_id: str, journal_id: str, boot_id: str, applied_seq: int) -> Greeting:
    """With what is known of the node: `applied_seq`, its newest event that is in our rows."""
    return Greeting(
        node_id=node_id,
        node=said.node_name,
        behind=journal_id == said.journal_id and said.first_unacked_seq > applied_seq + 1,
        renewed=(journal_id, boot_id) != (said.journal_id, said.boot_id),
        rebooted=bool(boot_id) and boot_id != said.boot_id,
    )


class Fenced(NamedTuple):
    """How far the fence of a job is: the number of its newest attempt (0: there is none), and its epoch."""

    newest: int
    epoch: int


def is_quiet(said: AgentHello, greeting: Greeting, fences: Mapping[str, Fenced], held: Mapping[RankRef, bool]) -> bool:
    """Nothing follows for any job: `learned` and `greeted` say nothing, whatever else is in the rows. `fences`: of the
    live jobs that it names; `held`: the ranks on its node that are not proved gone, and which of them are fenced."""
    if greeting.lost or any(held.get(status.ref, True) for status in said.ranks):
        return False
    return not any(seen.job_id in fences and _may_be_ahead(fences[seen.job_id], seen, greeting) for seen in said.jobs)


# --- its ranks -------------------------------------------------------------------------------


def greeted(rows: Rows, listed: Sequence[RankStatus], greeting: Greeting) -> Iterator[Change]:
    """Of one job (or, where `rows` are of none, of any that nobody has placed there): the ranks that it lists
    live, and those that are unknown or out are stopped. With the same journal an exit is an event still to come,
    so nothing is concluded of those that it does not list."""
    held = {_name(rank): rank for rank in rows.held(greeting.node_id)}
    alive = set()
    stopped: list[StopRanks] = []
    for status in listed:
        ref = status.ref
        name = (ref.attempt, ref.replica, ref.incarnation, ref.rank)
        rank = held.get(name) or rows.rank(ref, greeting.node_id)
        if rank is None:
            yield Count(greeting.node, "unknown_rank", f"{ref} was never placed on this node")
            yield from _stop_unknown(rows, ref, greeting, stopped)
            continue
        alive.add(name)
        if greeting.lost:
            yield from _bring_forward(rows, rank, status)
        if rank.fenced:
            yield from _stop_again(rows, rank, ref, stopped)
    if greeting.renewed:
        for name, rank in held.items():
            if rank.started and name not in alive:
                yield from _ended_unseen(rows, rank, greeting)
    if greeting.rebooted:
        for command in rows.under_way(greeting.node_id):
            over = _over(command)
            yield Close(greeting.node_id, over.id, over.state, over.detail)
            yield from answered(rows, over)


def _over(command: Answered) -> Answered:
    """What was journaled on the boot before: nothing of it goes on, and what was to be stopped has ended."""
    match command.body:
        case StopRanks():
            return replace(command, state=CommandState.SUCCEEDED, detail=ENDED_WITH_IT)
        case StartRanks():
            return replace(command, state=CommandState.FAILED, detail=NOT_STARTED)
        case _:
            return replace(command, state=CommandState.FAILED, detail=NOT_ANSWERED)


def _name(rank: Rank) -> tuple[int, int, int, int]:
    return (rank.attempt, rank.replica, rank.incarnation, rank.rank)


def _ended_unseen(rows: Rows, rank: Rank, greeting: Greeting) -> Iterator[Change]:
    hint = RESTARTED if greeting.rebooted else CAME_BACK
    yield exited(rank, hint)
    found = RankExit(
        job_id=rows.job_id,
        node_id=rank.node_id,
        replica=rank.replica,
        incarnation=rank.incarnation,
        rank=rank.rank,
        device_index=rank.device_index,
        attempt=rank.attempt,
        node=greeting.node,
        how=f"ended unseen: {hint}",
        cause="node_restarted" if greeting.rebooted else UNOBSERVED,
        hint=hint,
    )
    yield Raise(found)


def _bring_forward(rows: Rows, rank: Rank, status: RankStatus) -> Iterator[Change]:
    """A living rank whose beginning was told to a database that is gone."""
    key = RankKey(*_name(rank))
    begun: dict[str, Any] = {} if rank.started else {"started_s": rows.now_s}
    if rank.state == RankState.LAUNCHING and status.state != RankState.LAUNCHING:
        columns = {"pid": status.pid} | begun
        yield Transition(key, RankState.INITIALIZING, "its agent reports that it is alive", columns)
    trains = status.state in (RankState.TRAINING, RankState.CHECKPOINTING)
    if not rank.joined and (trains or status.phase is Phase.PARKED):
        yield Observe(key, {"joined_s": rows.now_s} | begun)


def _stop_again(rows: Rows, rank: Rank, ref: RankRef, stopped: list[StopRanks]) -> Iterator[Change]:
    """It outlived its eviction out of our reach: end it, unless that order still stands."""
    why = "its incarnation was evicted while its node was out of reach"
    if not _is_stopping(rows, rank.node_id, ref, stopped):
        stopped.append(_stop(ref, 0.0, why))
        yield Enqueue(((rank.node_id, stopped[-1]),), ref.attempt, STOP_TTL_S)


def _stop_unknown(rows: Rows, ref: RankRef, greeting: Greeting, stopped: list[StopRanks]) -> Iterator[Change]:
    """A living rank that nobody here has placed: it is told of, and ended with the time to save. Its own word
    alone says that it has to do with a job that has nothing there, which is told nothing of it."""
    if _is_stopping(rows, greeting.node_id, ref, stopped):
        return
    why = "this server's database does not know it: it was set back, or the job was deleted"
    stopped.append(_stop(ref, SAVE_GRACE_S, why))
    yield Enqueue(((greeting.node_id, stopped[-1]),), ref.attempt if rows.job_id else None, STOP_TTL_S)
    what = f"replica {ref.replica} (incarnation {ref.incarnation}, attempt {ref.attempt}) of job {ref.job_id}"
    sentence = f"Node {greeting.node} runs {what}, which this database does not know: it is stopped, with time to save."
    whose = {"job_id": ref.job_id, "attempt": ref.attempt, "replica": ref.replica, "incarnation": ref.incarnation}
    yield Audit(f"node:{greeting.node}", "node.unknown_ranks", sentence, whose, subject=greeting.node_id)
    yield Publish("node.unknown_ranks", sentence, node=greeting.node_id)


def _stop(ref: RankRef, grace_s: float, why: str) -> StopRanks:
    return StopRanks(
        job_id=ref.job_id,
        attempt=ref.attempt,
        replica=ref.replica,
        incarnation=ref.incarnation,
        grace_s=grace_s,
        reason=why,
    )


def _is_stopping(rows: Rows, node_id: str, ref: RankRef, stopped: Sequence[StopRanks]) -> bool:
    """A stop of it stands already, by itself or with its whole attempt."""
    named = {(ref.replica, ref.incarnation), (-1, -1)}
    return any(
        (stop.job_id, stop.attempt) == (ref.job_id, ref.attempt) and (stop.replica, stop.incarnation) in named
        for stop in (*stopped, *rows.stops_under_way(node_id))
    )


# --- what it was told of the job ---------------------------------------------------------------


def learned(rows: Rows, seen: JobSeen, greeting: Greeting) -> Iterator[Change]:
    """The fence and the end that the node was told, where they are ahead of ours."""
    here = rows.standing()
    if not _may_be_ahead(Fenced(here.newest, here.epoch), seen, greeting):
        return
    if seen.attempt > here.newest + MAX_AHEAD or seen.epoch > here.epoch + MAX_AHEAD:
        detail = f"{seen.job_id}: attempt {seen.attempt}, epoch {seen.epoch}"
        yield Count(greeting.node, "implausible_fence", detail)
        return
    epoch, ahead = _forward(rows, here, seen, greeting)
    if (epoch, ahead) == (here.epoch, here.ahead):
        return
    if epoch > here.epoch:
        yield Fence(epoch)
    yield Observe(JobKey(), {"ahead": ahead})
    before, after = {"epoch": here.epoch, "ahead": here.ahead}, {"epoch": epoch, "ahead": ahead}
    reason = "its agent is ahead of this database"
    yield Audit(f"node:{greeting.node}", "job.set_back", reason, {}, before=before, after=after)
    said = f"{greeting.node} knows more of {here.name} than this database: {_words(seen)}."
    yield Publish("job.set_back", f"Node {said}")


def _may_be_ahead(here: Fenced, seen: JobSeen, greeting: Greeting) -> bool:
    """False: what the node knows of the job is all in our rows."""
    newer = (seen.attempt, seen.epoch) > (here.newest, here.epoch) or seen.epoch > here.epoch + MAX_AHEAD
    return newer or bool(seen.end) or greeting.lost


def _forward(rows: Rows, here: Standing, seen: JobSeen, greeting: Greeting) -> tuple[int, dict[str, Any]]:
    """The job's epoch, and what else is ahead, with what this node says."""
    states = {rank.replica_state for rank in rows.held(greeting.node_id)}
    placed, is_out = bool(states), states <= {ReplicaState.EVICTED}
    newer = (seen.attempt, seen.epoch) > (here.newest, here.epoch)
    epoch, ahead = here.epoch, dict(here.ahead)
    if seen.attempt > max(here.newest, int(ahead.get("attempt", 0))):
        ahead["attempt"] = seen.attempt
    if placed and seen.attempt == here.newest and (newer or greeting.lost):
        ahead |= _started(rows.newest_on(greeting.node_id, seen.attempt), here.ahead, seen)
    if placed and seen.epoch > epoch:
        epoch = seen.epoch
    elif seen.epoch > max(epoch, int(ahead.get("epoch", 0))) and seen.attempt > here.newest:
        ahead["epoch"] = seen.epoch
    if seen.end and placed and seen.attempt >= here.newest and _has_ended(rows, here, seen, greeting, is_out):
        ahead |= {"end": seen.end, "node": greeting.node}
    return epoch, ahead


def _has_ended(rows: Rows, here: Standing, seen: JobSeen, greeting: Greeting, is_out: bool) -> bool:
    """We have ordered it, which was committed with the order: only a database set back has it not. That
    it trained all its steps its ranks say themselves (not those that are out: it goes on without them), and
    may have told to a database that is gone."""
    if seen.end_signature:
        return rows.is_our_end(seen.end_signature, seen.attempt, seen.end)
    return seen.end == "succeeded" and greeting.lost and not here.trained and not is_out


def _started(known: Mapping[int, int], ahead: Mapping[str, Any], seen: JobSeen) -> dict[str, Any]:
    """Incarnations that the node has started, of replicas that it has (`known`: their newest), and no row has."""
    old: dict[str, int] = ahead.get("incarnations", {})
    new = {
        str(index): max(number, old.get(str(index), 0))
        for index, number in seen.incarnations.items()
        if index in known and known[index] < number <= known[index] + MAX_AHEAD
    }
    return {"incarnations": old | new} if old or new else {}


def _words(seen: JobSeen) -> str:
    end = ", and it has succeeded" if seen.end == "succeeded" else f", and it was ended ({seen.end})"
    return f"it was in attempt {seen.attempt}, epoch {seen.epoch}{end if seen.end else ''}"
