"""A new incarnation is up, or one that was left out is heard again: admit it to a view; when it
has caught up, count it in.

Survivors never wait for its transfer: it takes part with zero gradients until then. Those that
have just lost a member commit the step they were in before their view changes again, unless
that takes them long: then there is time for it beside the step. The view names the step with
which it begins: one that ranks are not in yet, or not so far in that it would end before their
flushes have been answered (docs/adr/0014). Members of a view too small to train wait for the
joiners that make up the number and change views at once.
"""

from controlplane.policy import flaps
from controlplane.policy.config import PolicyConfig
from controlplane.policy.facts import (
    all_joined,
    attempt_live,
    commits_until_s,
    contributes,
    current_view,
    following_view,
    held_ready,
    installed,
    is_heard,
    is_left_out,
    is_member,
    live_replicas,
    tag,
)
from controlplane.policy.failures import actionable
from controlplane.policy.plan import AnnounceView, Decision, SetReplicaState
from controlplane.policy.relief import may_leave
from controlplane.policy.slots import going
from controlplane.policy.snapshot import JobSnapshot, ReplicaFact
from controlplane.protocol.spec import max_contributors
from controlplane.protocol.states import ReplicaState

RULE = "admit_joiner"
LATE_STEPS = 2.0
"""A rank may be so many steps past the last commit that is known; later, its exchange has failed."""


def rule(snapshot: JobSnapshot, config: PolicyConfig) -> tuple[Decision, ...]:
    """One view for all who are ready; one move for each who has caught up."""
    held = held_ready(snapshot)
    if not attempt_live(snapshot) or not (installed(snapshot) or held) or snapshot.job.finished:
        return ()
    caught_up = tuple(
        _caught_up(replica)
        for replica in live_replicas(snapshot)
        if replica.state is ReplicaState.CATCHING_UP and (replica.contributing or replica.standby)
    )
    ready = tuple(replica for replica in live_replicas(snapshot) if _may_join(snapshot, config, replica))
    if not ready or actionable(snapshot, config) or snapshot.now_s < (commits_until_s(snapshot, config) or 0.0):
        return caught_up
    if held and _members_with(snapshot, ready) < snapshot.job.spec.resources.min_replicas:
        return caught_up
    return (*caught_up, _admit(snapshot, config, ready))


def _members_with(snapshot: JobSnapshot, ready: tuple[ReplicaFact, ...]) -> int:
    return sum(is_member(snapshot, replica) or replica in ready for replica in live_replicas(snapshot))


def _may_join(snapshot: JobSnapshot, config: PolicyConfig, replica: ReplicaFact) -> bool:
    """All its ranks are there, it is in no view, and it was never in one; or it was left out, can be
    heard again and waits: one that works on would be awaited by all. One whose place is taken stays out, so does
    one that was ordered out, or is not needed any more, and one that comes and goes for a while."""
    if not all_joined(replica) or is_member(snapshot, replica) or replica in going(snapshot):
        return False
    if replica.state is ReplicaState.FORMING and replica.relieved:
        return False
    back = is_left_out(snapshot, replica) and is_heard(snapshot, replica) and replica.waiting
    if back and (replica in may_leave(snapshot) or snapshot.now_s < flaps.returns_s(replica, config)):
        return False
    return back or replica.state is ReplicaState.FORMING


def _admit(snapshot: JobSnapshot, config: PolicyConfig, ready: tuple[ReplicaFact, ...]) -> Decision:
    view, attempt = current_view(snapshot), snapshot.attempt
    assert view is not None, "called for a view that is installed, or whose members wait"
    assert attempt is not None, "views belong to an attempt"
    members = tuple(r for r in live_replicas(snapshot) if is_member(snapshot, r) or r in ready)
    names = ", ".join(str(replica.index) for replica in ready)
    following = following_view(
        snapshot,
        members,
        f"replica {names} joins",
        at_step=at_step(snapshot, config),
        returning=tuple(replica.index for replica in ready if is_left_out(snapshot, replica)),
    )
    when = f" once {following.at_step} steps are committed" if following.at_step is not None else ""
    donors = ", ".join(f"{pair.donor} to {pair.joiner}" for pair in following.donors)
    return Decision(
        rule=RULE,
        choice="admit",
        reason_code="joined",
        sentence=f"Replica {names} joins in view {following.epoch}{when} and catches up in the background"
        f" (donor {donors}).",
        key=f"admit:{','.join(tag(replica) for replica in ready)}:{following.epoch}",
        actions=(
            AnnounceView(view=following),
            *(SetReplicaState(replica=r.index, incarnation=r.incarnation, to=ReplicaState.CATCHING_UP) for r in ready),
        ),
        evidence={
            "donors": donors,
            "contributors": sum(contributes(snapshot, replica) for replica in members),
            **({"at_step": following.at_step} if following.at_step is not None else {}),
        },
        routine=True,
    )


def at_step(snapshot: JobSnapshot, config: PolicyConfig) -> int | None:
    """Committed steps at which the ranks of the installed view find the next one due; None: at
    once, where their pace is not known, or they have not kept to it."""
    if not installed(snapshot):
        return None
    step_s, progressed_s, job = _step_s(snapshot), snapshot.job.progressed_s, snapshot.job
    if step_s is None or progressed_s is None or commits_until_s(snapshot, config) is not None:
        return None
    since_s = snapshot.now_s - progressed_s
    if since_s > LATE_STEPS * step_s + config.install_way_s:
        return None
    seen = (since_s + config.view_way_s) / step_s
    left_s = (1.0 - seen % 1.0) * step_s
    step = job.committed_step + int(seen) + (left_s < config.install_way_s)
    return step if step < job.spec.training.steps else None


def _step_s(snapshot: JobSnapshot) -> float | None:
    """Of the replicas that contribute now: fewer than usual have more of the batch to compute."""
    learned_s, attempt = snapshot.learned.step_s, snapshot.attempt
    computing = sum(contributes(snapshot, replica) for replica in live_replicas(snapshot))
    if not learned_s or attempt is None or not computing:
        return None
    usual = max_contributors(snapshot.job.spec) or attempt.replicas
    return learned_s * max(1.0, usual / computing)


def _caught_up(replica: ReplicaFact) -> Decision:
    to = ReplicaState.ACTIVE if replica.contributing else ReplicaState.SPARE
    outcome = "its gradients count" if replica.contributing else "it stands by until one that trains leaves"
    return Decision(
        rule=RULE,
        choice="count_in" if replica.contributing else "stand_by",
        reason_code="caught_up",
        sentence=f"Replica {replica.index} has caught up: {outcome}.",
        # One that was left out may catch up again in the same life.
        key=f"caught_up:{tag(replica)}:{replica.state_since_s:.3f}",
        actions=(SetReplicaState(replica=replica.index, incarnation=replica.incarnation, to=to),),
        evidence={"committed_step": replica.committed_step},
        routine=True,
    )
