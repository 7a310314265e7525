"""A slot stands empty: start its next incarnation as soon as there are devices for it.

The same rule grows a shrunk job back. A slot whose starts come to nothing waits twice as
long each time and is given up in the end; the job then goes on without it.
"""

from controlplane.policy.budget import spent as spent_budget
from controlplane.policy.config import PolicyConfig
from controlplane.policy.ends import restart_reason
from controlplane.policy.facts import attempt_live, left_out, node_name, segment_evidence, tag
from controlplane.policy.failures import actionable
from controlplane.policy.ladder import due_s, may_start, start_slots
from controlplane.policy.plan import Decision, StartReplica
from controlplane.policy.pools import why_none
from controlplane.policy.slots import empty_slots
from controlplane.policy.snapshot import JobSnapshot, ReplicaFact

RULE = "replace"


def rule(snapshot: JobSnapshot, config: PolicyConfig) -> tuple[Decision, ...]:
    """One decision a slot: start, or (once) why not."""
    if not attempt_live(snapshot) or snapshot.job.finished or snapshot.job.cancel_requested:
        return ()
    if restart_reason(snapshot, config, actionable(snapshot, config)) is not None:
        return ()
    empty = empty_slots(snapshot)
    spent = tuple(slot for slot in empty if not may_start(snapshot, config, slot))
    due = tuple(slot for slot in empty if slot not in spent and snapshot.now_s >= due_s(slot, config))
    starts = {start.replica: start for start in start_slots(snapshot, config, due)}
    return (
        *(_start(snapshot, slot, starts[slot.index]) for slot in due if slot.index in starts),
        *(_no_spare(snapshot, slot) for slot in due if slot.index not in starts),
        *(_given_up(snapshot, slot) for slot in spent),
    )


def _start(snapshot: JobSnapshot, slot: ReplicaFact, start: StartReplica) -> Decision:
    nodes = ", ".join(sorted({node_name(snapshot, placement.node_id) for placement in start.placements}))
    return Decision(
        rule=RULE,
        choice="start",
        reason_code="capacity_found",
        sentence=f"Replica {slot.index} starts again on {nodes}, as incarnation {start.incarnation}.",
        key=f"start:{slot.index}.{start.incarnation}",
        actions=(start,),
        evidence={
            "nodes": nodes,
            "failed_starts": slot.failed_starts,
            **segment_evidence(snapshot, [placement.node_id for placement in start.placements]),
        },
    )


def _no_spare(snapshot: JobSnapshot, slot: ReplicaFact) -> Decision:
    none = why_none(snapshot, f"no free device fits replica {slot.index} ({slot.world_size} needed)")
    return Decision(
        rule=RULE,
        choice="shrink",
        reason_code="no_spare_left",
        sentence=f"{none[0].upper()}{none[1:]}: the job continues without it and takes it back when it can."
        f"{left_out(snapshot)}",
        key=f"shrink:{tag(slot)}",
        actions=(),
        evidence={"needed_devices": slot.world_size},
    )


def _given_up(snapshot: JobSnapshot, slot: ReplicaFact) -> Decision:
    budget = spent_budget(snapshot)
    if budget:
        return Decision(
            rule=RULE,
            choice="give_up",
            reason_code="budget_spent",
            sentence=f"Replica {slot.index} is not started again: {budget}. The job continues without it"
            " and takes it back when its budget has room again.",
            key=f"give_up:{tag(slot)}:budget",
            actions=(),
            evidence={"restarts_total": snapshot.budget.restarts_total},
        )
    return Decision(
        rule=RULE,
        choice="give_up",
        reason_code="starts_spent",
        sentence=f"Replica {slot.index} failed {slot.failed_starts} starts in a row: it is not started again,"
        " the cause is not the node it was on.",
        key=f"give_up:{tag(slot)}",
        actions=(),
        evidence={"failed_starts": slot.failed_starts},
    )
