"""A node that is not heard: what that says about the replicas on it (R30).

Two speeds. With a witness (the exchange failed because of it, or all others wait for it) its
replicas are left out of the next view: that is undone when it is heard again. They are ended
and placed elsewhere only when the lease of their node is over, which follows the job's own
step. Steps committed since it went silent prove that a member lives: no step commits without
every member. Asked by `failures`; it decides nothing.
"""

import math

import msgspec

from controlplane.policy.config import PolicyConfig
from controlplane.policy.facts import (
    contributes,
    homes_of,
    installed,
    is_left_out,
    is_member,
    is_of_view,
    lease_of,
    live_replicas,
    node_name,
    node_of,
    nodes_of,
    signals_of,
    signals_on,
    still_silent,
)
from controlplane.policy.proved import Failure, signal_ids
from controlplane.policy.snapshot import JobSnapshot, NodeFact, ReplicaFact, SignalFact


def nodes_told_silent(snapshot: JobSnapshot) -> dict[str, NodeFact]:
    """Nodes that an open finding calls silent, by id."""
    named = (node_of(snapshot, signal.node_id) for signal in signals_of(snapshot, "node_silent"))
    return {node.id: node for node in named if node is not None}


def silences_of(snapshot: JobSnapshot, replica: ReplicaFact) -> tuple[SignalFact, ...]:
    """Findings that a node of the replica is silent, and that hold by what is seen now."""
    found = (s for s in signals_on(snapshot, replica) if s.kind == "node_silent")
    return tuple(s for s in found if still_silent(snapshot, s))


def node_silent(snapshot: JobSnapshot, config: PolicyConfig, replica: ReplicaFact) -> Failure | None:
    """Silent beyond its lease; or silent, and something confirms that it is out of reach."""
    signals = silences_of(snapshot, replica)
    if not signals:
        return None
    over = lease_over(snapshot, config, replica)
    witness = f"its lease of {lease_of(snapshot, config):.0f} s has run out" if over else None
    if witness is None and is_member(snapshot, replica):
        witness = _witness(snapshot, config, replica)
    if witness is None:
        return None
    nodes = tuple(sorted({s.node_id for s in signals if s.node_id}))
    names = ", ".join(node_name(snapshot, node) for node in nodes)
    silent_s = max(_silent_s(snapshot, signal) for signal in signals)
    return Failure(
        replica=replica,
        kind="node_silent",
        proved=False,
        reversible=not over,
        sentence=f"{names} is silent for {silent_s:.1f} s and {witness}",
        bad_nodes=nodes,
        signal_ids=signal_ids(signals),
        evidence={"nodes": names, "witness": witness, "silent_s": round(silent_s, 3)},
    )


def lease_over(snapshot: JobSnapshot, config: PolicyConfig, replica: ReplicaFact) -> bool:
    """A node of it was silent for its whole lease, and nothing else proves that the replica lives.
    A connection that is only gone may come back: it ends with the web process that holds it,
    and the agent takes a while to find another."""
    limit_s = lease_of(snapshot, config)
    if is_member(snapshot, replica):
        progressed_s = snapshot.job.progressed_s
        if progressed_s is not None and snapshot.now_s - progressed_s < limit_s:
            return False
    return any(node_lease_over(node, limit_s) for node in homes_of(snapshot, replica))


def node_lease_over(node: NodeFact, limit_s: float) -> bool:
    """Its connection is gone and it was silent for `limit_s`."""
    return not node.connected and node.silent_s is not None and node.silent_s >= limit_s


def acts_at_s(snapshot: JobSnapshot, config: PolicyConfig, node: NodeFact) -> float | None:
    """Server time at which the lease of a silent node is over, if nothing is heard of its replicas
    till then; None: it is heard, or how long it was silent is not known."""
    if node.silent_s is None or node.id not in nodes_told_silent(snapshot):
        return None
    limit_s = lease_of(snapshot, config)
    over_s = snapshot.now_s - node.silent_s + limit_s
    member = any(node.id in nodes_of(r) and not is_left_out(snapshot, r) for r in live_replicas(snapshot))
    progressed_s = snapshot.job.progressed_s
    return max(over_s, progressed_s + limit_s) if member and progressed_s is not None else over_s


class NotHeard(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A silent node of the job, in what does not change while nothing happens. `since_s`: server
    time of its last word, by the finding; `commits`: steps were committed since, with its ranks; `left_out`: the
    others go on without them."""

    node_id: str
    node_name: str
    since_s: float
    commits: bool
    left_out: bool


class Unheard(NotHeard, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The same with what moves: `silent_s` now, `acts_at_s` (see there), and a sentence of it all."""

    silent_s: float
    acts_at_s: float | None
    sentence: str


def not_heard(snapshot: JobSnapshot) -> tuple[NotHeard, ...]:
    """Silent nodes under live replicas of the job, by name. Looks at its replicas, its view, the time
    of its last step, open findings of silence and the nodes that they name; at nothing else."""
    found = []
    for node in sorted(nodes_told_silent(snapshot).values(), key=lambda node: node.name):
        here = tuple(replica for replica in live_replicas(snapshot) if node.id in nodes_of(replica))
        signals = tuple(s for s in signals_of(snapshot, "node_silent") if s.node_id == node.id)
        if here and any(still_silent(snapshot, signal) for signal in signals):
            found.append(_not_heard(snapshot, node, here, signals))
    return tuple(found)


def _not_heard(
    snapshot: JobSnapshot, node: NodeFact, here: tuple[ReplicaFact, ...], signals: tuple[SignalFact, ...]
) -> NotHeard:
    since_s = min(signal.seen_s - signal.threshold for signal in signals)
    progressed_s = snapshot.job.progressed_s
    member = any(is_member(snapshot, replica) for replica in here)
    return NotHeard(
        node_id=node.id,
        node_name=node.name,
        since_s=since_s,
        commits=member and progressed_s is not None and progressed_s > since_s,
        left_out=any(is_left_out(snapshot, replica) for replica in here),
    )


def unheard(snapshot: JobSnapshot, config: PolicyConfig) -> tuple[Unheard, ...]:
    """`not_heard`, with what is concluded from it now."""
    nodes = snapshot.node_by_id
    return tuple(_unheard(snapshot, config, nodes[fact.node_id], fact) for fact in not_heard(snapshot))


def _unheard(snapshot: JobSnapshot, config: PolicyConfig, node: NodeFact, fact: NotHeard) -> Unheard:
    silent_s = max(0.0, snapshot.now_s - fact.since_s) if node.silent_s is None else node.silent_s
    due_s = None if snapshot.blind else acts_at_s(snapshot, config, node)
    left_s = None if due_s is None else max(0.0, due_s - snapshot.now_s)
    if fact.left_out:
        ranks, how = "the others continue without its ranks, which rejoin when it is heard", "else"
    elif fact.commits:
        ranks, how = "its ranks still commit", "at the earliest, if they stop,"
    else:
        ranks, how = "no step was committed since", "if it is not heard"
    due = "" if left_s is None else f"; {how} they are started elsewhere in {left_s:.0f} s"
    return Unheard(
        node_id=fact.node_id,
        node_name=fact.node_name,
        since_s=fact.since_s,
        commits=fact.commits,
        left_out=fact.left_out,
        silent_s=silent_s,
        acts_at_s=due_s,
        sentence=f"{node.name} is not heard for {silent_s:.0f} s; {ranks}{due}.",
    )


def _silent_s(snapshot: JobSnapshot, signal: SignalFact) -> float:
    """As of now; as of the finding where that is not known."""
    node = node_of(snapshot, signal.node_id)
    return signal.value if node is None or node.silent_s is None else max(signal.value, node.silent_s)


def _witness(snapshot: JobSnapshot, config: PolicyConfig, replica: ReplicaFact) -> str | None:
    """What confirms that a member on a silent node is out of reach."""
    progressed_s = snapshot.job.progressed_s
    if progressed_s is not None and snapshot.now_s - progressed_s < config.witness_s:
        return None
    if _exchange_failed(snapshot, replica):
        return "the exchange failed because of it"
    if _all_others_wait(snapshot, config, replica, progressed_s):
        return "all others wait for it in the exchange"
    return None


def _exchange_failed(snapshot: JobSnapshot, replica: ReplicaFact) -> bool:
    """An exchange of this view failed, and those whom it failed name this replica; where they name
    nobody, it is on the one silent node that has not told of the failure itself."""
    errors = [e for e in signals_of(snapshot, "outer_error") if is_of_view(snapshot, e)]
    named = {index for error in errors for index in (suspect_of(error),) if index is not None}
    if not errors or named:
        return replica.index in named
    told = {error.replica for error in errors}
    return silent_homes(snapshot, but=told) == set(nodes_of(replica)) & silent_homes(snapshot, but=set())


def suspect_of(error: SignalFact) -> int | None:
    """The replica that an exchange error names."""
    named = error.evidence.get("suspect_replica")
    return named if isinstance(named, int) and not isinstance(named, bool) else None


def silent_homes(snapshot: JobSnapshot, *, but: set[int | None]) -> set[str]:
    """Silent nodes of members, without the replicas in `but`."""
    silent = {s.node_id for s in signals_of(snapshot, "node_silent") if still_silent(snapshot, s)}
    members = (r for r in live_replicas(snapshot) if is_member(snapshot, r) and r.index not in but)
    return {node_id for member in members for node_id in nodes_of(member) if node_id in silent}


def _all_others_wait(
    snapshot: JobSnapshot, config: PolicyConfig, replica: ReplicaFact, progressed_s: float | None
) -> bool:
    """Every other member waits in the exchange, one that computes among them, and one node
    alone is silent. The job has stood still since `progressed_s`, or since the node fell silent.

    They wait for each other since they were told to enter the view; each has said so itself
    after half of the time that they must have waited, for a word from before a step was
    committed, or from before they entered, is not about this exchange.
    A member that does not wait may be the one that holds everybody up, so it clears the
    accused. One that computes nothing waits through every step, so it accuses nobody.
    Several silent nodes at once say more about the network, or about us, than about them:
    then only the lease decides.
    """
    if not installed(snapshot):
        return False
    moved_s = progressed_s if progressed_s is not None else min(s.seen_s for s in silences_of(snapshot, replica))
    entered_s = snapshot.installed_s if snapshot.installed_s is not None else snapshot.view_since_s
    began_s = max(moved_s, entered_s)
    if snapshot.now_s - began_s < config.witness_s:
        return False
    silent = silent_homes(snapshot, but=set())
    members = [other for other in live_replicas(snapshot) if is_member(snapshot, other)]
    others = [other for other in members if not silent & set(nodes_of(other))]
    computing = any(contributes(snapshot, other) for other in others)
    waiting = all(other.waiting and heard_s(snapshot, other) - began_s >= config.witness_s / 2.0 for other in others)
    return len(silent) == 1 and computing and waiting


def heard_s(snapshot: JobSnapshot, replica: ReplicaFact) -> float:
    """Server time of the last word from all of its nodes; minus infinity: not known."""
    silent = [node.silent_s for node in homes_of(snapshot, replica)]
    known = [silent_s for silent_s in silent if silent_s is not None]
    return snapshot.now_s - max(known) if known and len(known) == len(silent) else -math.inf
