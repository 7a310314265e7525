"""Everybody has flushed: tell the members from which step, and with what, to go on.

A view of fewer members than must train is not installed: who is left waits in it for the
replacement (`ways.may_hold`), which `admit_joiner` takes into the next one.
"""

from controlplane.policy.config import PolicyConfig
from controlplane.policy.facts import (
    attempt_live,
    current_view,
    installed,
    too_small,
    verdict_on_flushes,
)
from controlplane.policy.plan import Action, Decision, SendInstall, SetJobState, SetReplicaState
from controlplane.policy.snapshot import JobSnapshot
from controlplane.protocol.membership import Install
from controlplane.protocol.states import STARTING_JOB, JobState, ReplicaState

RULE = "membership_install"
BECOMES_ACTIVE = frozenset({ReplicaState.FORMING, ReplicaState.CATCHING_UP, ReplicaState.SUSPECT, ReplicaState.SPARE})
BECOMES_SPARE = BECOMES_ACTIVE - {ReplicaState.SPARE}


def rule(snapshot: JobSnapshot, config: PolicyConfig) -> tuple[Decision, ...]:
    """One install a view; a refusal is a failure and handled there."""
    view = current_view(snapshot)
    if view is None or installed(snapshot) or not attempt_live(snapshot):
        return ()
    if too_small(snapshot):
        return ()
    answer = verdict_on_flushes(snapshot)
    if not isinstance(answer, Install):
        return ()
    kept = sum(len(done.micro_batches) for done in answer.done)
    names = ", ".join(map(str, answer.contributors))
    standbys = f" {', '.join(map(str, answer.standbys))} stand by;" if answer.standbys else ""
    return (
        Decision(
            rule=RULE,
            choice="install",
            reason_code="all_flushed",
            sentence=f"View {view.epoch} continues at step {answer.step} with replicas {names};{standbys}"
            f" {kept} finished micro-batches are kept.",
            key=f"install:{view.attempt}:{view.epoch}",
            actions=(SendInstall(install=answer), *_states(snapshot, answer)),
            evidence={"step": answer.step, "contributors": names, "kept_micro_batches": kept},
            routine=True,
        ),
    )


def _states(snapshot: JobSnapshot, answer: Install) -> tuple[Action, ...]:
    contributors, standbys = frozenset(answer.contributors), frozenset(answer.standbys)
    moves: list[Action] = [
        SetReplicaState(replica=replica.index, incarnation=replica.incarnation, to=ReplicaState.ACTIVE)
        for replica in snapshot.replicas
        if replica.index in contributors and replica.state in BECOMES_ACTIVE
    ]
    moves += [
        SetReplicaState(replica=replica.index, incarnation=replica.incarnation, to=ReplicaState.SPARE)
        for replica in snapshot.replicas
        if replica.index in standbys and replica.state in BECOMES_SPARE
    ]
    if snapshot.job.state in STARTING_JOB:
        moves.append(SetJobState(to=JobState.RUNNING))
    return tuple(moves)
