"""Maintenance windows of nodes: set and cancelled by people; `fleet.ends` writes the rows, the policy acts on them.

Whoever has ranks on the node is looked at at once: what is to happen, and when, is in its decisions from then on.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from controlplane.access import services as access
from controlplane.access.actors import in_words
from controlplane.fleet import ends
from controlplane.fleet.models import KnownEnd, Node
from controlplane.jobs.models import Job, Rank
from controlplane.jobs.selectors import wanting_nodes
from controlplane.jobs.services import wake_job_later
from controlplane.policy import capabilities
from controlplane.runtime import events
from controlplane.runtime.clock import iso, now
from controlplane.runtime.errors import Conflict, Invalid, NotFound, refuse
from controlplane.runtime.locks import lock_row, lock_rows

MAX_AHEAD, MAX_LENGTH = timedelta(days=366), timedelta(days=31)
MAX_NODES, MAX_OF_NODE = 1000, 20
"""So many nodes in one window, and windows of one node that are not over."""


def set_window(
    nodes: Sequence[str], *, starts_at: datetime, ends_at: datetime, reason: str, actor: str, request_id: str = ""
) -> list[KnownEnd]:
    """Over these nodes, all or none. Raises NotFound, Invalid for times that are none, Conflict."""
    check_times("window", starts_at, ends_at)
    if not 0 < len(nodes) <= MAX_NODES:
        raise Invalid(f"a window is over 1 to {MAX_NODES} nodes, not {len(nodes)}")
    with events.unit_of_work():
        jobs = _homes(nodes)
        lock_rows(Job, jobs)
        found = [locked(node_id) for node_id in sorted(set(nodes))]
        for node in found:
            if ends.holding().filter(node=node).count() >= MAX_OF_NODE:
                raise Conflict(f"node {node.name!r} has {MAX_OF_NODE} windows that are not over: cancel one")
        made = [ends.plan(node, starts_at, ends_at, reason, in_words(actor)) for node in found]
        for row in made:
            data = {"window": row.pk, "starts_at": iso(starts_at), "ends_at": iso(ends_at)}
            access.audit(actor, "node.maintain", row.node_id, reason=reason, request_id=request_id, data=data)
        for job_id in jobs:
            wake_job_later(job_id, sure=True)
    return made


def cancel(end_id: str, *, reason: str, actor: str, request_id: str = "") -> KnownEnd:
    """The node stays: a window is cancelled, or a notice was wrong. Raises NotFound, Conflict where it is over."""
    with events.unit_of_work():
        named = KnownEnd.objects.filter(pk=end_id).values_list("node_id", flat=True).first()
        if named is None:
            raise NotFound(f"no window {end_id!r}")
        jobs = _homes([named])
        lock_rows(Job, jobs)
        locked(named)
        row = KnownEnd.objects.select_related("node").get(pk=end_id)
        refuse(capabilities.known_end(row.over_by)["cancel"])
        access.audit(actor, "window.cancel", row.node_id, reason=reason, request_id=request_id, data={"window": row.pk})
        ends.end(row, f"{in_words(actor)} ({reason})")
        for job_id in dict.fromkeys((*jobs, *wanting_nodes())):
            wake_job_later(job_id, sure=True)
    return row


def of_segment(segment: str) -> list[str]:
    """Ids of the nodes that are in it now. Raises NotFound where there is none."""
    found = list(Node.objects.filter(segment=segment, removed_at=None).order_by("name").values_list("pk", flat=True))
    if not segment or not found:
        raise NotFound(f"no node is in segment {segment!r}")
    return found


def check_times(what: str, starts_at: datetime, ends_at: datetime, instead: str = ": cordon the node instead") -> None:
    """Of a window, or of what is set for nodes in the same way. Raises Invalid."""
    if ends_at <= max(starts_at, now()):
        raise Invalid(f"a {what} ends after it starts, and in the future")
    if ends_at - starts_at > MAX_LENGTH:
        raise Invalid(f"a {what} lasts {MAX_LENGTH.days} days at most{instead}")
    if starts_at > now() + MAX_AHEAD:
        raise Invalid(f"a {what} starts within {MAX_AHEAD.days} days")


def locked(node_id: str) -> Node:
    """Held until commit. Raises NotFound where it is none of the fleet."""
    node = lock_row(Node, node_id)
    if node is None or node.removed_at is not None:
        raise NotFound(f"no node {node_id!r}")
    return node


def _homes(node_ids: Sequence[str]) -> list[str]:
    """Every job with ranks on one of them."""
    ranks = Rank.objects.filter(node_id__in=node_ids, released_at=None)
    return sorted(set(ranks.values_list("replica__attempt__job_id", flat=True)))
