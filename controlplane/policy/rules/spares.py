"""Spares are a desired state: as many devices as the job asks for stay reserved, and warm.

A spare that a replica has moved onto is replaced by free devices, whole nodes as at the start;
one whose node is out of service or out of reach is given up for another, and one whose node is reserved for another
project without one. A rank host that waits
goes cold after hours, so it is warmed anew before that. While the job recovers, or has fewer replicas than it
asks for, nothing is reserved: what is free is for who needed it, and then for the replicas that are missing.
"""

from controlplane.policy.asked import Need, require
from controlplane.policy.config import PolicyConfig
from controlplane.policy.errors import PolicyError
from controlplane.policy.facts import attempt_live, current_view, live_replicas, node_name, nodes_of
from controlplane.policy.failures import find_failures
from controlplane.policy.leaving import closed
from controlplane.policy.placement import PLACEABLE, choose_spares
from controlplane.policy.plan import Decision, KeepSpares
from controlplane.policy.pools import pool_for
from controlplane.policy.reserved import against
from controlplane.policy.slots import empty_slots
from controlplane.policy.snapshot import JobSnapshot, NodeFact
from controlplane.protocol.states import JobState

RULE = "spares"


def rule(snapshot: JobSnapshot, config: PolicyConfig) -> tuple[Decision, ...]:
    """At most one decision: what to reserve, what to let go, what to warm; or what is short."""
    settings, job = snapshot.job.spec.resources.spares, snapshot.job
    if settings.gpus <= 0 or not attempt_live(snapshot) or job.state is not JobState.RUNNING or job.finished:
        return ()
    if empty_slots(snapshot) or current_view(snapshot) is None or find_failures(snapshot, config):
        return ()
    mine = [node for node in snapshot.nodes if node.reserved_for == job.id]
    leaves = closed(snapshot, config)
    good = [node for node in mine if _usable(node) and node.id not in leaves]
    short = settings.gpus - sum(_devices(node) for node in good)
    yielded = snapshot.attempt is not None and snapshot.attempt.yielded > 0
    fresh, lacks = ((), False) if yielded else _more(snapshot, config, short)
    replaced = bool(fresh or short <= 0)
    lost = tuple(node.id for node in mine if node not in good and (replaced or _is_anothers(snapshot, node)))
    cold = tuple(node.id for node in good if settings.warm and cold_at_s(node, config) <= snapshot.now_s)
    warm = (*fresh, *cold) if settings.warm else ()
    if not (fresh or lost or cold or lacks):
        return ()
    return (_decision(snapshot, KeepSpares(reserve=fresh, release=lost, warm=warm), lacks, short),)


def cold_at_s(node: NodeFact, config: PolicyConfig) -> float:
    """Server time from which a reserved node is warmed anew; one that did not answer is asked
    again after a while."""
    warmed_s = 0.0 if node.warmed_s is None else node.warmed_s + config.warm_again_s
    asked_s = 0.0 if node.warm_asked_s is None else node.warm_asked_s + config.warm_retry_s
    return max(warmed_s, asked_s)


def _is_anothers(snapshot: JobSnapshot, node: NodeFact) -> bool:
    """Reserved for another project now, whose jobs could not start there as long as it is this one's spare."""
    first = against(node.reservations, snapshot.job.project, snapshot.now_s)
    return first is not None and first.runs(snapshot.now_s)


def _usable(node: NodeFact) -> bool:
    return node.state in PLACEABLE and node.connected and not node.unhealthy and _devices(node) > 0


def _devices(node: NodeFact) -> int:
    return sum(device.healthy and not device.held for device in node.devices)


def _more(snapshot: JobSnapshot, config: PolicyConfig, short: int) -> tuple[tuple[str, ...], bool]:
    """(nodes to reserve besides, whether there are too few)."""
    if short <= 0:
        return (), False
    used = {node for replica in live_replicas(snapshot) for node in nodes_of(replica)}
    require(snapshot, Need(spare_devices=short), config.fresh_s)
    pool = pool_for(snapshot, config, use_reserved=False).without_nodes(used)
    try:
        return choose_spares(pool, short, near=used), False
    except PolicyError:
        return tuple(sorted(node for node, _ in pool.nodes)), True


def _decision(snapshot: JobSnapshot, keep: KeepSpares, lacks: bool, short: int) -> Decision:
    def names(ids: tuple[str, ...]) -> str:
        return ", ".join(node_name(snapshot, node_id) for node_id in ids)

    said = [f"{names(keep.reserve)} wait{'' if len(keep.reserve) > 1 else 's'} as spare" if keep.reserve else ""]
    said.append(
        f"{names(keep.release)} no longer, being in use, out of service or out of reach, about to leave,"
        " or reserved for another project"
        if keep.release
        else ""
    )
    again = tuple(node for node in keep.warm if node not in keep.reserve)
    said.append(f"the rank hosts on {names(again)} are warmed again" if again else "")
    said.append(f"{short} devices are wanted besides those reserved, and fewer are free" if lacks else "")
    asked = {node.id: node.warm_asked_s or 0.0 for node in snapshot.nodes}
    marks = ",".join(f"{node}@{asked.get(node, 0.0):.0f}" for node in keep.warm)
    attempt = snapshot.attempt.number if snapshot.attempt else 0
    acts = keep.reserve or keep.release or keep.warm
    return Decision(
        rule=RULE,
        choice="keep" if acts else "short",
        reason_code="spares_short" if lacks else "spares_kept",
        sentence=f"Spares: {'; '.join(text for text in said if text)}.",
        key=f"spares:{attempt}:{snapshot.job.epoch}:{','.join(keep.reserve)}:{','.join(keep.release)}:{marks}",
        actions=(keep,) if acts else (),
        evidence={"wanted_devices": snapshot.job.spec.resources.spares.gpus, "short": max(0, short)},
        routine=True,
    )
