"""Nodes that are known to leave: which, when, and what is not started there any more (ADR 0050).

What leaves such a node, and how, is decided by `rules.known_end`; here are the look-ups that it shares with the rules
that carry it out and with placement. Pure; it orders nothing.
"""

from collections.abc import Iterator
from typing import NamedTuple

from controlplane.policy import reserved, reserved_words, time_limit
from controlplane.policy.config import PolicyConfig
from controlplane.policy.facts import live_replicas, node_name
from controlplane.policy.known_end import KnownEnd
from controlplane.policy.placement import PLACEABLE
from controlplane.policy.prices import times_of
from controlplane.policy.snapshot import JobSnapshot, NodeFact, ReplicaFact
from controlplane.policy.timeouts import grace_needed_s
from controlplane.protocol.states import EndSource, RequestKind

BY = "its node leaves"
"""Begins what is kept as who has a replica leave, where no person has."""
MARGIN, SLACK_S = 1.5, 5.0
"""What is measured may take so much longer, and a command so long to arrive: it begins that much before."""
STEPS_TO_LEAVE = 3.0
"""The step in hand, the one with which the view begins, and one that it commits."""


class Needs(NamedTuple):
    """Seconds that each way takes, as this job has been measured, else by the policy's defaults."""

    relieve_s: float
    leave_s: float
    save_s: float


def needs_of(snapshot: JobSnapshot, config: PolicyConfig) -> Needs:
    """Of a save by the p95 of the newest, and before one was measured by the grace of the spec."""
    times, given_s = times_of(snapshot, config), snapshot.job.spec.scheduling.preempt_grace_s
    leave_s = times.view_s + STEPS_TO_LEAVE * times.step_s
    return Needs(
        relieve_s=times.start_s + times.catch_up_s + leave_s,
        leave_s=leave_s,
        save_s=grace_needed_s(snapshot.learned.save_p95_s) or given_s or config.save_first_s,
    )


def lead_s(needed_s: float) -> float:
    """So long before the end something begins that takes `needed_s`."""
    return MARGIN * needed_s + SLACK_S


def save_lead_s(needs: Needs) -> float:
    """The same of a save, which is counted with a margin of its own."""
    return needs.save_s + SLACK_S


def end_of(snapshot: JobSnapshot, replica: ReplicaFact) -> tuple[NodeFact, KnownEnd] | None:
    """The first of its nodes that leaves, with the end; None: none is known to."""
    known = (snapshot.node_by_id.get(node_id) for node_id in replica.node_ids)
    ends = [(node, node.end) for node in known if node is not None and node.end is not None]
    return min(ends, key=lambda found: (found[1].leaves_s, found[0].id), default=None)


def is_by_end(snapshot: JobSnapshot, replica: ReplicaFact) -> bool:
    """It is ordered out because its node leaves, and no person asks for that."""
    if not replica.ordered_out.startswith(f"{BY}: "):
        return False
    life = (replica.index, replica.incarnation)
    asked = (r for r in snapshot.requests if r.kind is RequestKind.EVICT)
    return all((request.replica, request.incarnation) != life for request in asked)


def over_s(snapshot: JobSnapshot, config: PolicyConfig) -> float | None:
    """Server seconds by which the job is expected to be over if it is started now: by its time limit, and by its pace;
    None: nobody knows."""
    limit_s, times = snapshot.job.spec.scheduling.time_limit_s, times_of(snapshot, config)
    by_limit = time_limit.ends_s(snapshot) or (snapshot.now_s + limit_s if limit_s > 0.0 else None)
    by_pace = None
    if (step_s := snapshot.learned.step_s) is not None:
        left = max(0, snapshot.job.spec.training.steps - snapshot.job.committed_step)
        by_pace = snapshot.now_s + times.start_s + times.catch_up_s + left * step_s
    return min((at_s for at_s in (by_limit, by_pace) if at_s is not None), default=None)


def is_away(end: KnownEnd, now_s: float) -> bool:
    """It has begun, and is not over."""
    return now_s >= end.leaves_s and (end.back_s is None or now_s < end.back_s)


def takes(node: NodeFact, over_s: float | None, now_s: float) -> bool:
    """What is expected to be over by `over_s` (None: nobody knows) may start there."""
    end = node.end
    if end is None or (end.back_s is not None and now_s >= end.back_s):
        return True
    return over_s is not None and over_s <= end.leaves_s and not is_away(end, now_s)


def closed(snapshot: JobSnapshot, config: PolicyConfig) -> tuple[str, ...]:
    """Ids of nodes that leave, or are reserved for another project, before anything that is started there now is
    expected to be over."""
    ends = [node for node in snapshot.nodes if node.end is not None or node.reservations]
    expected_s, project, now_s = over_s(snapshot, config) if ends else None, snapshot.job.project, snapshot.now_s
    return tuple(
        node.id
        for node in ends
        if not takes(node, expected_s, now_s) or not reserved.takes(node.reservations, project, expected_s, now_s)
    )


def kept_words(snapshot: JobSnapshot, config: PolicyConfig) -> str:
    """Free devices that the job cannot have, as their nodes are reserved for others: how many, for whom, until when; ""
    for none. A sentence, behind others."""
    away, project, now_s = {*closed(snapshot, config)}, snapshot.job.project, snapshot.now_s
    found: dict[str, reserved_words.Kept] = {}
    for node in snapshot.nodes:
        first = reserved.against(node.reservations, project, now_s) if node.id in away else None
        free = sum(device.free and device.healthy for device in node.devices)
        if first is not None and free and node.state in PLACEABLE and node.connected:
            reserved_words.count(found, first, free)
    return reserved_words.kept_words(found.values(), now_s)


def words(snapshot: JobSnapshot, node: NodeFact, end: KnownEnd) -> str:
    """Which node leaves, why, and when, as a part of a sentence."""
    left_s = end.leaves_s - snapshot.now_s
    when = f"leaves in {left_s:.0f} s" if left_s > 0.0 else f"was to leave {-left_s:.0f} s ago"
    source = "a notice of its provider" if end.source is EndSource.SPOT else "a maintenance window"
    return f"{node_name(snapshot, node.id)} {when} ({source}: {end.reason})"


def moments(snapshot: JobSnapshot, config: PolicyConfig) -> Iterator[float]:
    """When something is due that nothing rings for."""
    ends = [found[1] for replica in live_replicas(snapshot) if (found := end_of(snapshot, replica)) is not None]
    if not ends:
        return
    needs = needs_of(snapshot, config)
    leads = (lead_s(needs.relieve_s), lead_s(needs.leave_s), needs.leave_s, save_lead_s(needs))
    for end in ends:
        yield from (end.leaves_s - lead for lead in leads)
        if snapshot.now_s >= end.leaves_s - lead_s(needs.relieve_s) and snapshot.now_s < end.leaves_s:
            # Until then a device may become free for another one.
            yield snapshot.now_s + min(config.capacity_retry_s, 1.0)
