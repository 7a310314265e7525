"""What a hello tells about ranks: which ones live on, which are gone for good."""

from controlplane.dispatch import services as dispatch
from controlplane.dispatch.models import Command
from controlplane.fleet.models import Node
from controlplane.fleet.services import transition_node
from controlplane.jobs.models import Rank
from controlplane.jobs.services import transition_rank
from controlplane.protocol.commands import StopRanks
from controlplane.protocol.errors import IdentityMismatch
from controlplane.protocol.frames import RankStatus
from controlplane.protocol.states import NodeState, RankState
from controlplane.recovery import identity, signals
from controlplane.recovery.said import is_fenced
from controlplane.runtime import counters

STOP_TTL_S = 3600.0

# States in which a process is said to live.
ALIVE = (RankState.INITIALIZING, RankState.TRAINING, RankState.CHECKPOINTING, RankState.HUNG)


def adopt_ranks(node: Node, listed: tuple[RankStatus, ...], *, renewed: bool) -> None:
    """Ranks that the agent lists live. `renewed` (other boot, other journal: F16): those it
    does not list are gone, as their exits will never be told. With the same journal an
    exit is an event still to come, so nothing is concluded."""
    alive = set()
    for status in listed:
        try:
            row = identity.rank_of(node.id, status.ref)
        except IdentityMismatch as error:
            # A rank of a job that was deleted here; the agent's ranks are never judged by it.
            counters.count(node.name, "unknown_rank", detail=str(error))
            continue
        alive.add(row.pk)
        if row.state == RankState.LOST and status.state in ALIVE:
            transition_rank(row, RankState.TRAINING, "its agent is back and re-adopted it")
        if is_fenced(row):
            _stop_again(node, row)
    if not renewed:
        return
    gone = Rank.objects.filter(node=node, released_at=None, started_at__isnull=False).exclude(pk__in=alive)
    for row in gone.select_related("replica__attempt", "node", "device"):
        transition_rank(row, RankState.EXITED, "its node came back without it")
        raise_exit(row, code=None, sentence=f"Node {node.name} came back without rank {row.rank}.")


def _stop_again(node: Node, row: Rank) -> None:
    """It outlived its eviction out of our reach: end it, unless that order still stands."""
    replica, attempt = row.replica, row.replica.attempt
    standing = Command.objects.filter(node=node, job_id=attempt.job_id, kind="stop_ranks", state__in=dispatch.LIVE)
    whose = {"attempt": attempt.number, "replica": replica.index, "incarnation": replica.incarnation}
    if any(whose.items() <= order.body.items() or order.body["replica"] == -1 for order in standing):
        return
    body = StopRanks(
        job_id=attempt.job_id,
        attempt=attempt.number,
        replica=replica.index,
        incarnation=replica.incarnation,
        grace_s=0.0,
        reason="its incarnation was evicted while its node was out of reach",
    )
    epoch = attempt.job.epoch
    dispatch.enqueue(
        body, node_id=node.id, job_id=attempt.job_id, attempt=attempt.number, epoch=epoch, ttl_s=STOP_TTL_S
    )


def raise_exit(row: Rank, *, code: int | None, sentence: str) -> None:
    """The finding that a rank is gone. `code` None: nobody saw how."""
    replica = row.replica
    job_id = replica.attempt.job_id
    signals.raise_signal(
        "rank_exit",
        f"rank_exit:{job_id}:{replica.attempt.number}:{replica.index}:{replica.incarnation}:{row.rank}",
        sentence=sentence,
        job_id=job_id,
        node_id=row.node_id,
        replica=replica.index,
        incarnation=replica.incarnation,
        rank=row.rank,
        device_index=row.device.index,
        value=float(code if code is not None else -1),
        evidence={"node": row.node.name, "told": code is not None},
    )


def requeue(node: Node) -> None:
    """Orders sent on the old socket and not journaled are due at once."""
    dispatch.requeue_of_node(node.id)


def return_from_lost(node: Node) -> None:
    """A lost node that speaks again may take work."""
    if node.state == NodeState.LOST:
        to = NodeState.QUARANTINED if node.doubt else NodeState.READY
        transition_node(node, to, "its agent is back")
