"""What agents know and this database has lost: a restored backup goes on from where the fleet is.

Called by ingest with each hello, the jobs and the node locked. Agents' newer attempts, epochs and
incarnations win: no order of ours is older than what a node has obeyed. Living ranks that no row
places on their node are stopped, with the time to save. A node is believed for jobs that are placed
on it alone, and of these for the replicas that it has; for others it can only raise the numbers of the
next attempt, which must be new anyway. An order of ours that ended the job is believed by our own
signature. Decides nothing else: what an end means for a job is the policy's (`AheadFact`).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.db.models import Max

from controlplane.access import services as access
from controlplane.dispatch import services as dispatch
from controlplane.dispatch.models import Command
from controlplane.fleet.models import Node
from controlplane.jobs.models import Attempt, Job, Rank, Replica
from controlplane.jobs.services import TERMINAL, publish_job, transition_rank
from controlplane.protocol.commands import StopRanks
from controlplane.protocol.frames import AgentHello, JobSeen, RankStatus
from controlplane.protocol.states import Phase, RankState, ReplicaState
from controlplane.runtime import counters, events, keys
from controlplane.runtime.clock import now

STOP_TTL_S = 3600.0
SAVE_GRACE_S = 30.0
MAX_AHEAD = 1_000_000
"""No database is set back by so many attempts or epochs: a claim beyond it is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """`behind`: the node's journal has acknowledged events that are not in this database;
    `renewed`: another journal or boot than before. Else what is missing is still to come."""

    behind: bool
    renewed: bool

    @property
    def lost(self) -> bool:
        """Something that the node had told may never be told again."""
        return self.behind or self.renewed


def is_behind(node: Node, said: AgentHello) -> bool:
    """The node has forgotten, as acknowledged, events that were never applied to this database."""
    return node.journal_id == said.journal_id and said.first_unacked_seq > node.last_event_seq + 1


def job_ids(said: AgentHello) -> list[str]:
    """Live jobs whose rows a hello may change."""
    named = {seen.job_id for seen in said.jobs} | {status.ref.job_id for status in said.ranks}
    return list(Job.objects.filter(pk__in=named).exclude(state__in=TERMINAL).values_list("id", flat=True))


def learn(node: Node, jobs: dict[str, Job], seen: Iterable[JobSeen], found: Found) -> None:
    """The fences and ends that the node was told, where they are ahead of ours."""
    for one in seen:
        job = jobs.get(one.job_id)
        if job is not None and job.state not in TERMINAL:
            _learn(node, job, one, found)


def _learn(node: Node, job: Job, seen: JobSeen, found: Found) -> None:
    newest = Attempt.objects.filter(job=job).order_by("-number").values_list("number", flat=True).first() or 0
    if seen.attempt > newest + MAX_AHEAD or seen.epoch > job.epoch + MAX_AHEAD:
        counters.count(node.name, "implausible_fence", detail=f"{job.id}: attempt {seen.attempt}, epoch {seen.epoch}")
        return
    newer = (seen.attempt, seen.epoch) > (newest, job.epoch)
    if not newer and not seen.end and not found.lost:
        return
    held = Rank.objects.filter(node=node, released_at=None, replica__attempt__job=job)
    states = set(held.values_list("replica__state", flat=True))
    here, is_out = bool(states), states <= {ReplicaState.EVICTED}
    ahead: dict[str, Any] = dict(job.ahead)
    epoch = job.epoch
    if seen.attempt > max(newest, int(ahead.get("attempt", 0))):
        ahead["attempt"] = seen.attempt
    if here and seen.attempt == newest and (newer or found.lost):
        ahead |= _lives(node, job, seen)
    if here and seen.epoch > epoch:
        epoch = seen.epoch
    elif seen.epoch > max(epoch, int(ahead.get("epoch", 0))) and seen.attempt > newest:
        ahead["epoch"] = seen.epoch
    if seen.end and here and seen.attempt >= newest and _has_ended(job, seen, found, is_out=is_out):
        ahead |= {"end": seen.end, "node": node.name}
    if (epoch, ahead) != (job.epoch, job.ahead):
        _keep(node, job, seen, epoch=epoch, ahead=ahead)


def _has_ended(job: Job, seen: JobSeen, found: Found, *, is_out: bool) -> bool:
    """We have ordered it, which was committed with the order: only a database set back has it not. That
    it trained all its steps its ranks say themselves (not those that are out: it goes on without them), and
    may have told to a database that is gone."""
    if seen.end_signature:
        return keys.is_our_end(seen.end_signature, job.id, seen.attempt, seen.end)
    return seen.end == "succeeded" and found.lost and not job.trained and not is_out


def _lives(node: Node, job: Job, seen: JobSeen) -> dict[str, Any]:
    """Incarnations that the node has started, of replicas that it has, and no row knows."""
    mine = Rank.objects.filter(node=node, replica__attempt__job=job, replica__attempt__number=seen.attempt)
    rows = Replica.objects.filter(attempt__job=job, index__in=list(seen.incarnations)).values_list("index")
    known = dict(rows.filter(index__in=mine.values("replica__index")).annotate(newest=Max("incarnation")))
    lives = {
        str(index): number
        for index, number in seen.incarnations.items()
        if index in known and known[index] < number <= known[index] + MAX_AHEAD
    }
    old = job.ahead.get("incarnations", {})
    merged = old | {index: max(number, old.get(index, 0)) for index, number in lives.items()}
    return {"incarnations": merged} if merged else {}


def _keep(node: Node, job: Job, seen: JobSeen, *, epoch: int, ahead: dict[str, Any]) -> None:
    before, after = {"epoch": job.epoch, "ahead": job.ahead}, {"epoch": epoch, "ahead": ahead}
    Job.objects.filter(pk=job.pk).update(epoch=epoch, ahead=ahead)
    job.epoch, job.ahead = epoch, ahead
    access.audit(
        f"node:{node.name}", "job.set_back", job.id, reason="its agent is ahead of this database",
        before=before, after=after,
    )  # fmt: skip
    publish_job(job, "job.set_back", f"Node {node.name} knows more of {job.name} than this database: {_words(seen)}.")


def _words(seen: JobSeen) -> str:
    end = f", and it has {seen.end}" if seen.end == "succeeded" else f", and it was ended ({seen.end})"
    return f"it was in attempt {seen.attempt}, epoch {seen.epoch}{end if seen.end else ''}"


def bring_forward(row: Rank, status: RankStatus) -> None:
    """A living rank whose beginning was told to a database that is gone."""
    if row.state == RankState.LAUNCHING and status.state != RankState.LAUNCHING:
        transition_rank(
            row, RankState.INITIALIZING, "its agent reports that it is alive", pid=status.pid,
            started_at=row.started_at or now(),
        )  # fmt: skip
    trains = status.state in (RankState.TRAINING, RankState.CHECKPOINTING)
    if row.joined_at is None and (trains or status.phase is Phase.PARKED):
        Rank.objects.filter(pk=row.pk).update(joined_at=now(), started_at=row.started_at or now())
        row.joined_at = now()


def stop_unknown(node: Node, status: RankStatus, jobs: dict[str, Job]) -> None:
    """A living rank that nobody here has placed: it is told of, and ended with the time to save."""
    ref = status.ref
    body = StopRanks(
        job_id=ref.job_id,
        attempt=ref.attempt,
        replica=ref.replica,
        incarnation=ref.incarnation,
        grace_s=SAVE_GRACE_S,
        reason="this server's database does not know it: it was set back, or the job was deleted",
    )
    whose = {"job_id": ref.job_id, "attempt": ref.attempt, "replica": ref.replica, "incarnation": ref.incarnation}
    standing = Command.objects.filter(node=node, kind="stop_ranks", state__in=dispatch.LIVE).values_list(
        "body", flat=True
    )
    if any(whose.items() <= order.items() for order in standing):
        return
    job = jobs.get(ref.job_id)
    if job is not None and not Rank.objects.filter(node=node, replica__attempt__job=job).exists():
        # Its own word alone says that it has to do with the job, which is told nothing of it.
        job = None
    dispatch.enqueue(
        body, node_id=node.id, job_id=job.id if job else None, attempt=ref.attempt,
        epoch=job.epoch if job else 0, ttl_s=STOP_TTL_S,
    )  # fmt: skip
    what = f"replica {ref.replica} (incarnation {ref.incarnation}, attempt {ref.attempt}) of job {ref.job_id}"
    sentence = f"Node {node.name} runs {what}, which this database does not know: it is stopped, with time to save."
    access.audit(f"node:{node.name}", "node.unknown_ranks", node.id, reason=sentence, data=whose)
    events.publish(
        "node.unknown_ranks", sentence, node_id=node.id, job_id=job.id if job else "", entity="node", entity_id=node.id
    )
