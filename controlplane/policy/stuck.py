"""A member that works on and on, or does not answer a view, while all others wait for it, on a node that
is heard (R30).

Two speeds, as for silence. Its step has lasted half as long again as the longest that was measured,
every other member sits in the exchange and says so: that is evidence enough to go on without it,
and not to end it. It is ended when its own agent finds it late, which takes several such steps;
one that gets loose before comes back. Once a life: of a replica that was left out before, and of
one whose job has measured no step yet, only its agent's limit decides.

The same for an answer to a view that alone is missing: a rank answers between two parts of a step
at the latest. One that is left out for that comes back when it waits for a view; the second time
in its life, and after `flush_limit_s`, it is ended (`failures`).

`alone_at_work` is for those who see ranks as they report (the sentinel, the simulator): it tells
when a pass over the job is worth while. `stuck` and `unanswered` are detectors of `failures`. They
decide nothing.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

from controlplane.policy.config import PolicyConfig
from controlplane.policy.facts import (
    contributes,
    current_view,
    installed,
    is_heard,
    is_member,
    live_replicas,
    missing_ranks,
)
from controlplane.policy.proved import Failure
from controlplane.policy.silence import heard_s, silent_homes
from controlplane.policy.snapshot import JobSnapshot, ReplicaFact
from controlplane.protocol.frames import RankStatus
from controlplane.protocol.membership import MAX_AWAITED_S
from controlplane.protocol.spec import max_contributors, micro_batch_count
from controlplane.protocol.states import WAITING_PHASES, Phase, ReplicaState, Section

KIND = "stuck"
UNANSWERED = "unflushed"
STUCK_STEPS = 1.5
AT_WORK = frozenset({Phase.COMPUTE, Phase.OPTIMIZER})
NOTICED_S = 1.0
"""So long, by its own word, each rank was where it is before a pass is worth while."""
MUTE_S = 3.0
"""A rank reports once a second; that many seconds without a word are no jitter."""


class Alone(NamedTuple):
    """A replica that works in a step while all others of its job wait."""

    job_id: str
    replica: int
    incarnation: int
    step: int


def alone_at_work(ranks: Iterable[RankStatus]) -> frozenset[Alone]:
    """Of each job the one replica in a step that does not wait, if there are others and all of them
    do, each for `NOTICED_S` by what was told last. At most one a job."""
    jobs: dict[str, dict[tuple[int, int], list[RankStatus]]] = {}
    for status in ranks:
        if status.section is Section.STEP:
            lives = jobs.setdefault(status.ref.job_id, {})
            lives.setdefault((status.ref.replica, status.ref.incarnation), []).append(status)
    found = []
    for job_id, lives in jobs.items():
        working = [life for life, told in lives.items() if not all(_waits(status) for status in told)]
        if len(working) == 1 and len(lives) > 1 and all(map(settled, lives.values())):
            step = min(status.step for status in lives[working[0]])
            found.append(Alone(job_id, *working[0], step))
    return frozenset(found)


def settled(ranks: Iterable[RankStatus]) -> bool:
    """Each of these that is in a step was where it is for `NOTICED_S`; of a job that is not, nobody is alone."""
    return all(status.phase_age_s >= NOTICED_S for status in ranks if status.section is Section.STEP)


def _waits(status: RankStatus) -> bool:
    return status.phase in WAITING_PHASES and status.silent_s < MUTE_S


def stuck(snapshot: JobSnapshot, config: PolicyConfig, replica: ReplicaFact) -> Failure | None:
    """It alone holds the others up, for longer than a step can last."""
    at_s = evident_at_s(snapshot, config, replica)
    if at_s is None or snapshot.now_s < at_s:
        return None
    began_s, longest_s = _began_s(snapshot, replica), _longest_s(snapshot)
    if began_s is None or longest_s is None:
        return None
    others = _others(snapshot, replica)
    # A word from before that says nothing about now.
    if any(heard_s(snapshot, other) < at_s - config.witness_s / 2.0 for other in others):
        return None
    stood_s = snapshot.now_s - began_s
    return Failure(
        replica=replica,
        kind=KIND,
        proved=False,
        reversible=True,
        sentence=f"it has worked on one step for {stood_s:.1f} s, the longest so far took {longest_s:.1f} s, and all"
        " others wait for it",
        evidence={"stood_s": round(stood_s, 3), "longest_step_s": round(longest_s, 3), "waiting": len(others)},
    )


def unanswered(snapshot: JobSnapshot, config: PolicyConfig, replica: ReplicaFact) -> Failure | None:
    """All other members have answered the view, its agent speaks, its ranks beat, and do nothing that
    keeps them from an answer."""
    missing = missing_ranks(snapshot)
    if len(missing) != 1 or replica.index not in missing or not is_member(snapshot, replica):
        return None
    due_s = answer_due_s(snapshot, config)
    if due_s is None or snapshot.now_s < due_s:
        return None
    beats = replica.silent_s is not None and replica.silent_s < MUTE_S
    works = replica.waiting or replica.working_since_s is not None
    if replica.times_out or not beats or not works or silent_homes(snapshot, but=set()):
        return None
    members = (other for other in live_replicas(snapshot) if is_member(snapshot, other) and other is not replica)
    if not is_heard(snapshot, replica) or not any(contributes(snapshot, other) for other in members):
        return None
    view, age_s = current_view(snapshot), snapshot.now_s - snapshot.view_since_s
    assert view is not None, "its answers are missing"
    ranks = ", ".join(map(str, missing[replica.index]))
    return Failure(
        replica=replica,
        kind=UNANSWERED,
        proved=False,
        reversible=True,
        sentence=f"view {view.epoch} waits for rank {ranks} alone since {age_s:.1f} s, and its agent speaks",
        evidence={"view_age_s": round(age_s, 3), "missing_ranks": ranks},
    )


def answer_due_s(snapshot: JobSnapshot, config: PolicyConfig) -> float | None:
    """Server time from which on an answer to the current view is late, if it alone is missing; half of
    the limit after which it is late for good at most. None: nobody's is awaited, or no step was measured."""
    view, longest_s = current_view(snapshot), _longest_s(snapshot)
    if view is None or installed(snapshot) or longest_s is None:
        return None
    awaited_s = 0.0 if view.at_step is None else MAX_AWAITED_S
    patience_s = min(max(longest_s + config.witness_s, STUCK_STEPS * longest_s), config.flush_limit_s / 2.0)
    return snapshot.view_since_s + awaited_s + patience_s


def next_look_s(snapshot: JobSnapshot, config: PolicyConfig) -> float | None:
    """Server time at which somebody who holds all others up now will have done so for too long, if
    that lasts; None: nobody does. Nothing rings then."""
    for replica in live_replicas(snapshot):
        at_s = evident_at_s(snapshot, config, replica)
        if at_s is not None:
            return max(at_s, snapshot.now_s + config.outer_error_grace_s)
    # Of the answers only the last rings.
    due_s = answer_due_s(snapshot, config)
    return None if due_s is None else max(due_s, snapshot.now_s + config.outer_error_grace_s)


def evident_at_s(snapshot: JobSnapshot, config: PolicyConfig, replica: ReplicaFact) -> float | None:
    """Server time from which on the replica counts as stuck, as things are; None: it holds nobody
    up, or that cannot be told from work."""
    if replica.working_since_s is None or replica.times_out or not _is_alone(snapshot, replica):
        return None
    began_s, longest_s = _began_s(snapshot, replica), _longest_s(snapshot)
    if began_s is None or longest_s is None or silent_homes(snapshot, but=set()):
        return None
    if not any(contributes(snapshot, other) for other in _others(snapshot, replica)):
        return None
    return began_s + max(longest_s + config.witness_s, STUCK_STEPS * longest_s)


def _is_alone(snapshot: JobSnapshot, replica: ReplicaFact) -> bool:
    """All other members wait. Asked first, of every replica: it ends at the first that does not."""
    others = (other for other in snapshot.replicas if other.in_view and other.index != replica.index)
    return replica.in_view and all(other.waiting for other in others)


def _others(snapshot: JobSnapshot, replica: ReplicaFact) -> list[ReplicaFact]:
    return [other for other in live_replicas(snapshot) if other.in_view and other.index != replica.index]


def _began_s(snapshot: JobSnapshot, replica: ReplicaFact) -> float | None:
    """Server time at which its present work on the step began at the latest; None: it does not work
    on a step, or on the first of a view, which pays for what was built."""
    progressed_s, installed_s = snapshot.job.progressed_s, snapshot.installed_s
    if not installed(snapshot) or replica.working_since_s is None:
        return None
    if progressed_s is None or installed_s is None or progressed_s <= installed_s:
        return None
    return max(progressed_s, replica.working_since_s)


def _longest_s(snapshot: JobSnapshot) -> float | None:
    """Of the measured steps; longer by what fewer that compute have more to do each. Micro-batches are not parted:
    of four over three replicas one computes two, which takes it twice as long as before."""
    longest_s, attempt = snapshot.learned.step_max_s, snapshot.attempt
    computing = sum(_has_a_share(snapshot, each) for each in live_replicas(snapshot))
    if longest_s is None or attempt is None or not computing:
        return None
    usual = max_contributors(snapshot.job.spec) or attempt.replicas
    count = micro_batch_count(snapshot.job.spec)
    whole = math.ceil(count / computing) / max(1, math.ceil(count / usual))
    return longest_s * max(1.0, usual / computing, whole)


def _has_a_share(snapshot: JobSnapshot, replica: ReplicaFact) -> bool:
    """Of the step in progress: one that counts since it began has none yet, and the others its part."""
    progressed_s = snapshot.job.progressed_s
    began = replica.state is ReplicaState.ACTIVE and (progressed_s is None or replica.state_since_s <= progressed_s)
    return began and contributes(snapshot, replica)
