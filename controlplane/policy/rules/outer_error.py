"""The exchange failed and nobody is dead: announce the same members again.

A network blip ends a collective for everybody without ending anyone. A death would have
been told within `outer_error_grace_s`, by an agent that is connected: while a member's is
not, nothing is concluded before its node's lease has run out. After `max_reissues`
in a row one member is a failure (`unreachable`): one that an error names is ended by
`replica_failure`; where none names anybody, one is left out first (`leave_out`). The trainer's own errors
name nobody: what gloo and NCCL say of a peer is an address, or nothing where they waited in vain.
"""

from controlplane.policy.config import PolicyConfig
from controlplane.policy.facts import (
    attempt_live,
    current_view,
    following_view,
    is_member,
    lease_of,
    live_replicas,
    nodes_of,
)
from controlplane.policy.failures import actionable, doubted, fresh_outer_errors
from controlplane.policy.plan import AnnounceView, Decision, SettleSignals
from controlplane.policy.silence import node_lease_over
from controlplane.policy.snapshot import JobSnapshot

RULE = "outer_error"


def rule(snapshot: JobSnapshot, config: PolicyConfig) -> tuple[Decision, ...]:
    """One view with unchanged members, or nothing."""
    errors = fresh_outer_errors(snapshot, config)
    view, attempt = current_view(snapshot), snapshot.attempt
    if not errors or view is None or attempt is None or not attempt_live(snapshot):
        return ()
    if actionable(snapshot, config) or doubted(snapshot, config) or snapshot.reissued_views >= config.max_reissues:
        return ()
    replicas = tuple(replica for replica in live_replicas(snapshot) if is_member(snapshot, replica))
    homes = {node_id for replica in replicas for node_id in nodes_of(replica)}
    lease_s = lease_of(snapshot, config)
    away = (node for node in snapshot.nodes if node.id in homes and not node.connected)
    if any(not node_lease_over(node, lease_s) for node in away):
        return ()
    count = snapshot.reissued_views + 1
    following = following_view(
        snapshot,
        replicas,
        f"the exchange failed and nobody is dead; try {count} of {config.max_reissues}",
    )
    ids = tuple(error.id for error in errors)
    reporters = ", ".join(sorted({str(error.replica) for error in errors}))
    return (
        Decision(
            rule=RULE,
            choice="reissue_view",
            reason_code="exchange_failed",
            sentence=f"The exchange of view {view.epoch} failed at replica {reporters} and nobody is dead:"
            f" the same members try again in view {following.epoch} ({count} of {config.max_reissues}).",
            key=f"reissue:{following.epoch}",
            actions=(AnnounceView(view=following), SettleSignals(signal_ids=ids)),
            evidence={"reporters": reporters, "reissued_views": snapshot.reissued_views},
            signal_ids=ids,
        ),
    )
