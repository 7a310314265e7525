"""A person asks that a node be emptied: this job's replicas there are asked to leave, one after another.

Each is an eviction like one that a person asks for (`evict_request`): in a job that runs undisturbed, where
another can be started beside it on other nodes first, or where the others are enough without it. Where neither is
so it waits: a drain may take long, and costs no job more than a person's order to evict would. The node itself
is the fleet's: when nothing runs there any more is decided in `policy.drains`.
"""

from controlplane.policy import relief
from controlplane.policy.config import PolicyConfig
from controlplane.policy.ends import restart_reason
from controlplane.policy.facts import attempt_live, installed, is_member, live_replicas, node_name
from controlplane.policy.failures import actionable, doubted
from controlplane.policy.plan import AskEviction, Decision
from controlplane.policy.request_facts import RequestFact
from controlplane.policy.requests import of_kind, why_over
from controlplane.policy.rules.ordered_eviction import as_ordered
from controlplane.policy.snapshot import JobSnapshot, ReplicaFact
from controlplane.protocol.states import JobState, RequestKind

RULE = "drain_request"


def rule(snapshot: JobSnapshot, config: PolicyConfig) -> tuple[Decision, ...]:
    """At most one: the next that is to leave, or (once) why none leaves yet."""
    drains = tuple(r for r in of_kind(snapshot, RequestKind.DRAIN) if not r.withdrawn_by)
    if not drains or not _undisturbed(snapshot, config):
        return ()
    there = ((r, d) for d in drains for r in live_replicas(snapshot) if d.node_id in r.node_ids)
    waits: Decision | None = None
    for replica, drain in there:
        why = _kept(snapshot, replica, drain) or why_not(snapshot, config, replica)
        if not why:
            return (_ask(snapshot, replica, drain),)
        waits = waits or _wait(snapshot, replica, drain, why)
    return (waits,) if waits is not None else ()


def why_not(snapshot: JobSnapshot, config: PolicyConfig, replica: ReplicaFact) -> str:
    """Why the job cannot spare this replica now, in words that end a sentence; "" where it can."""
    if not is_member(snapshot, replica):
        return ""
    if not relief.cannot(snapshot, replica) and relief.successor(snapshot, config, replica) is not None:
        return ""
    left = sum(is_member(snapshot, r) and r.index != replica.index for r in live_replicas(snapshot))
    if left < snapshot.job.spec.resources.min_replicas:
        return "no device is free for another replica, and without it too few would train"
    if restart_reason(snapshot, config, (as_ordered(replica),)) is not None:
        return "too few others hold the newest state"
    return ""


def _kept(snapshot: JobSnapshot, replica: ReplicaFact, drain: RequestFact) -> str:
    """Why it is not asked to leave again; "" where it never was."""
    number = snapshot.attempt.number if snapshot.attempt is not None else 0
    if (number, replica.index, replica.incarnation) not in drain.kept:
        return ""
    return (
        "its eviction for this drain was withdrawn or came to nothing;"
        f" `holdfast job evict-replica {snapshot.job.name} {replica.index}` requests it again"
    )


def _undisturbed(snapshot: JobSnapshot, config: PolicyConfig) -> bool:
    """Nothing failed, nobody is on the way out or missing with a place to go to: one after another."""
    if not attempt_live(snapshot) or not installed(snapshot) or why_over(snapshot):
        return False
    if snapshot.job.state is not JobState.RUNNING or actionable(snapshot, config) or doubted(snapshot, config):
        return False
    if of_kind(snapshot, RequestKind.EVICT) or any(r.ordered_out or r.relieved for r in live_replicas(snapshot)):
        return False
    return not relief.is_coming(snapshot, config)


def _ask(snapshot: JobSnapshot, replica: ReplicaFact, drain: RequestFact) -> Decision:
    where = node_name(snapshot, drain.node_id)
    return Decision(
        rule=RULE,
        choice="ask",
        reason_code="asked",
        sentence=f"{where} is to be emptied ({drain.by}): replica {replica.index} is the next to leave it.",
        key=f"drain:{drain.id}:{replica.index}.{replica.incarnation}",
        actions=(AskEviction(request=drain.id, replica=replica.index, incarnation=replica.incarnation),),
        evidence={"request": drain.id, "who": drain.who, "node": where},
        routine=True,
    )


def _wait(snapshot: JobSnapshot, replica: ReplicaFact, drain: RequestFact, why: str) -> Decision:
    where = node_name(snapshot, drain.node_id)
    return Decision(
        rule=RULE,
        choice="wait",
        reason_code="cannot_be_spared",
        sentence=f"{where} is to be emptied ({drain.by}), and replica {replica.index} stays there for now: {why}.",
        key=f"drain:{drain.id}:{replica.index}.{replica.incarnation}:wait:{snapshot.job.epoch}",
        actions=(),
        evidence={"request": drain.id, "who": drain.who, "node": where},
        routine=True,
    )
