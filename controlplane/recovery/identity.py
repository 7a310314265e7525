"""A node speaks for itself alone: for ranks that were placed on it, and for nothing else."""

from controlplane.jobs.models import Rank
from controlplane.protocol.errors import IdentityMismatch
from controlplane.protocol.frames import AgentEvent, CommandAnswer, EventBody, HostExited
from controlplane.protocol.launch import RankRef


def ref_of(event: AgentEvent) -> RankRef | None:
    """The rank an event speaks for; None for events of the node itself."""
    return getattr(event.body, "ref", None)


def job_id_of(body: EventBody) -> str:
    """The job whose rank or host it tells of; "" for none (an answer names its through the command)."""
    ref = getattr(body, "ref", None)
    if isinstance(body, HostExited):
        return body.job_id
    return ref.job_id if ref is not None else ""


def job_ids_of(events: tuple[AgentEvent, ...]) -> set[str]:
    """Jobs that a batch of events touches (answers name theirs through their command)."""
    return {job_id_of(event.body) for event in events} - {""}


def command_ids_of(events: tuple[AgentEvent, ...]) -> set[str]:
    """Commands that a batch answers."""
    return {event.body.command_id for event in events if isinstance(event.body, CommandAnswer)}


def rank_of(node_id: str, ref: RankRef) -> Rank:
    """The row of `ref`, proved to be on this node. Raises IdentityMismatch."""
    row = (
        Rank.objects.select_related("replica__attempt__job", "node", "device")
        .filter(
            rank=ref.rank,
            replica__index=ref.replica,
            replica__incarnation=ref.incarnation,
            replica__attempt__number=ref.attempt,
            replica__attempt__job_id=ref.job_id,
        )
        .first()
    )
    if row is None or row.node_id != node_id:
        raise IdentityMismatch(f"{ref} was never placed on this node")
    return row


def ranks_here(node_id: str, events: list[AgentEvent]) -> dict[RankRef, Rank]:
    """Unreleased ranks of the node by name, in one query; {} where no event speaks for one."""
    if not any(ref_of(event) is not None for event in events):
        return {}
    rows = Rank.objects.filter(node_id=node_id, released_at=None).select_related(
        "replica__attempt__job", "node", "device"
    )
    return {_ref(row): row for row in rows}


def _ref(row: Rank) -> RankRef:
    replica = row.replica
    return RankRef(replica.attempt.job_id, replica.attempt.number, replica.index, replica.incarnation, row.rank)
