"""A node speaks for itself alone: for ranks that were placed on it, and for nothing else."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from controlplane.fleet.models import Node
from controlplane.jobs.models import Job, Rank
from controlplane.protocol.errors import IdentityMismatch
from controlplane.protocol.frames import AgentEvent, CommandAnswer, EventBody, HostExited, RankSaid
from controlplane.protocol.launch import RankRef
from controlplane.protocol.rank import StepReport
from controlplane.recovery.row_queries import RANK, UNRELEASED_ON


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


def steps_of(events: Iterable[AgentEvent]) -> dict[tuple[str, int], set[int]]:
    """Which steps ranks report in these events, by job and attempt."""
    found = defaultdict[tuple[str, int], set[int]](set)
    for event in events:
        body = event.body
        if isinstance(body, RankSaid) and isinstance(body.report, StepReport):
            found[body.ref.job_id, body.ref.attempt].add(body.report.step)
    return found


def rank_of(node_id: str, ref: RankRef) -> Rank:
    """The row of `ref`, proved to be on this node. Raises IdentityMismatch."""
    named = {"attempt": ref.attempt, "replica": ref.replica, "incarnation": ref.incarnation, "rank": ref.rank}
    row = RANK.first(job=ref.job_id, **named)
    if row is None or row.node_id != node_id:
        raise IdentityMismatch(f"{ref} was never placed on this node")
    return row


def ranks_here(node: Node, jobs: Mapping[str, Job], events: list[AgentEvent]) -> dict[RankRef, Rank]:
    """Unreleased ranks of the node by name, in one query; {} where no event speaks for one. `jobs`: those that were
    read, which their ranks are given: a job's spec is not read for each."""
    if not any(ref_of(event) is not None for event in events):
        return {}
    found = UNRELEASED_ON(node=node.pk)
    for row in found:
        row.node, attempt = node, row.replica.attempt
        if attempt.job_id in jobs:
            attempt.job = jobs[attempt.job_id]
    return {_ref(row): row for row in found}


def _ref(row: Rank) -> RankRef:
    replica = row.replica
    return RankRef(replica.attempt.job_id, replica.attempt.number, replica.index, replica.incarnation, row.rank)
