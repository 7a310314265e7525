"""What a hello tells about ranks: which ones live on, which are gone for good."""

from controlplane.dispatch import services as dispatch
from controlplane.dispatch.models import Command
from controlplane.fleet.models import Node
from controlplane.jobs.models import Job, Rank
from controlplane.jobs.services import transition_rank
from controlplane.policy.exits import UNOBSERVED
from controlplane.policy.signals.ranks import RankExit
from controlplane.protocol.commands import StopRanks
from controlplane.protocol.errors import IdentityMismatch
from controlplane.protocol.frames import RankStatus
from controlplane.protocol.states import RankState
from controlplane.recovery import identity, set_back, signals
from controlplane.recovery.said import is_fenced
from controlplane.recovery.set_back import Found
from controlplane.runtime import counters

STOP_TTL_S = 3600.0
RESTARTED = "exit not observed; the node was restarted, and its processes ended with it"
CAME_BACK = "exit not observed; the node's processes were gone when the agent came back, with a new journal"


def adopt_ranks(
    node: Node, jobs: dict[str, Job], listed: tuple[RankStatus, ...], *, found: Found, rebooted: bool = False
) -> None:
    """Ranks that the agent lists live; those that nobody has placed there are stopped (`set_back`).
    `found.renewed` (other boot, other journal: F16): those it
    does not list are gone, as their exits will never be told; `rebooted`: they ended with the
    node's last boot. With the same journal an exit is an event still to come, so nothing is
    concluded."""
    alive = set()
    for status in listed:
        try:
            row = identity.rank_of(node.id, status.ref)
        except IdentityMismatch as error:
            # Of a job that was deleted here, or begun after the backup that was restored.
            counters.count(node.name, "unknown_rank", detail=str(error))
            set_back.stop_unknown(node, status, jobs)
            continue
        alive.add(row.pk)
        if found.lost:
            set_back.bring_forward(row, status)
        if is_fenced(row):
            _stop_again(node, row)
    if not found.renewed:
        return
    gone = Rank.objects.filter(node=node, released_at=None, started_at__isnull=False).exclude(pk__in=alive)
    for row in gone.select_related("replica__attempt", "node", "device"):
        hint = RESTARTED if rebooted else CAME_BACK
        transition_rank(row, RankState.EXITED, hint)
        cause = "node_restarted" if rebooted else UNOBSERVED
        ended = RankExit(
            **signals.place_of(row),
            attempt=row.replica.attempt.number,
            node=node.name,
            how=f"ended unseen: {hint}",
            cause=cause,
            hint=hint,
        )
        signals.raise_signal(ended)


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


def requeue(node: Node) -> None:
    """Orders sent on the old socket and not journaled are due at once."""
    dispatch.requeue_of_node(node.id)
