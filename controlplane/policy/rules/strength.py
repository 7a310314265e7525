"""Recovery is over: full strength again, or stable and smaller.

Full strength is what the job asked for, as the effective time has it: all replicas of an attempt that was
placed on fewer devices, or in another layout of fewer, are smaller.
"""

from controlplane.policy.budget import spent
from controlplane.policy.config import PolicyConfig
from controlplane.policy.facts import (
    attempt_live,
    contributes,
    current_view,
    installed,
    is_of_view,
    live_replicas,
    most_contributors,
    signals_of,
    stands_by,
)
from controlplane.policy.failures import common_stalls, find_failures
from controlplane.policy.ladder import due_s, may_start, seldom, start_slots
from controlplane.policy.plan import Action, Decision, ResolveIncident, SetJobState, SettleSignals
from controlplane.policy.pools import why_none
from controlplane.policy.relief import may_leave
from controlplane.policy.signals import with_trait
from controlplane.policy.signals.base import Trait
from controlplane.policy.slots import empty_slots, relieved, wanted
from controlplane.policy.snapshot import JobSnapshot, ReplicaFact
from controlplane.policy.titles import number_of
from controlplane.protocol.spec import contributing_devices, ranks_per_replica
from controlplane.protocol.states import IncidentOutcome, JobState, ReplicaState

RULE = "strength"
OF_INCARNATION = with_trait(Trait.INCARNATION)


def rule(snapshot: JobSnapshot, config: PolicyConfig) -> tuple[Decision, ...]:
    """The job's way back to running, once all that lives contributes; not while one is being relieved."""
    attempt, view = snapshot.attempt, current_view(snapshot)
    if attempt is None or view is None or not attempt_live(snapshot) or not installed(snapshot):
        return ()
    live = live_replicas(snapshot)
    settled = all(_settled(snapshot, replica) for replica in live)
    if not live or not settled or find_failures(snapshot, config) or _stalls(snapshot, config):
        return ()
    stale = stale_signals(snapshot)
    quiet = snapshot.job.state is JobState.RUNNING and (stale or incident_over(snapshot, config))
    if may_leave(snapshot) or (quiet and relieved(snapshot)):
        return ()
    if snapshot.job.state is not JobState.RECOVERING and not quiet:
        return ()
    full = len(live) >= wanted(attempt)
    if not full and not shrunk_for_good(snapshot, config):
        return ()
    return (_back(snapshot, view.epoch, stale),)


def _settled(snapshot: JobSnapshot, replica: ReplicaFact) -> bool:
    """It trains, or stands by."""
    if replica.state is ReplicaState.SPARE:
        return stands_by(snapshot, replica)
    return replica.state is ReplicaState.ACTIVE and contributes(snapshot, replica)


def _stalls(snapshot: JobSnapshot, config: PolicyConfig) -> bool:
    """All of it stands still for one cause, which is nobody's failure."""
    return bool(common_stalls(snapshot, config))


def incident_over(snapshot: JobSnapshot, config: PolicyConfig) -> bool:
    """An incident that changed no membership (an alarm and its save, a cordoned node) is over
    when the save is written and nothing has followed for a while."""
    opened_s = snapshot.job.incident_opened_s
    if opened_s is None or snapshot.saves.in_progress:
        return False
    return snapshot.now_s - opened_s >= config.quiet_incident_s


def shrunk_for_good(snapshot: JobSnapshot, config: PolicyConfig) -> bool:
    """The empty slots cannot be filled now, and the view has held for a while."""
    empty = tuple(r for r in empty_slots(snapshot) if may_start(snapshot, config, r) and not seldom(r, config))
    waiting = tuple(slot for slot in empty if snapshot.now_s < due_s(slot, config))
    if waiting or start_slots(snapshot, config, empty):
        return False
    return snapshot.now_s - snapshot.view_since_s >= config.shrunk_stable_s


def stale_signals(snapshot: JobSnapshot) -> tuple[str, ...]:
    """Findings about incarnations and exchanges that are history, and about replicas that the
    attempt does not have: told late by a node that was out of reach."""
    newest = {replica.index: replica.incarnation for replica in snapshot.replicas}
    alive = {replica.index for replica in live_replicas(snapshot)}
    old_ranks = {
        signal.id
        for kind in OF_INCARNATION
        for signal in signals_of(snapshot, kind)
        if signal.replica is not None
        and signal.incarnation is not None
        and (signal.replica not in alive or signal.incarnation < newest[signal.replica])
    }
    old_errors = {s.id for s in signals_of(snapshot, "outer_error") if not is_of_view(snapshot, s)}
    return tuple(sorted(old_ranks | old_errors))


def _back(snapshot: JobSnapshot, epoch: int, stale: tuple[str, ...]) -> Decision:
    assert snapshot.attempt is not None, "called for a live attempt"
    live, asked = len(live_replicas(snapshot)), snapshot.attempt.replicas
    yielded = snapshot.attempt.yielded
    devices, most = contributing_devices(snapshot.job.spec), most_contributors(snapshot) or asked
    held = min(wanted(snapshot.attempt), most) * ranks_per_replica(snapshot.attempt.layout)
    full = live >= asked and held >= devices
    lives = sum(replica.incarnation for replica in snapshot.replicas)
    if yielded and live >= asked - yielded:
        more = "1 more starts" if yielded == 1 else f"{yielded} more start"
        sentence = f"{live} of {asked} replicas train, stable; {more} when the queue leaves room."
    elif live < asked:
        why = why_none(snapshot, "no device is free for more")
        if spent(snapshot):
            why = f"nothing more is started, {spent(snapshot)}"
        sentence = f"{live} of {asked} replicas train, stable; {why}."
    else:
        sentence = f"All {asked} replicas train." if asked > 1 else "Its only replica trains."
        if not full:
            less = f"attempt {snapshot.attempt.number} was placed on {held} of the {number_of(devices, 'device')}"
            sentence = f"{sentence[:-1]}, stable and smaller: {less} that the job asked for."
    moves: list[Action] = []
    if snapshot.job.state is JobState.RECOVERING:
        moves.append(SetJobState(to=JobState.RUNNING))
    if stale:
        moves.append(SettleSignals(signal_ids=stale))
    outcome = IncidentOutcome.RECOVERED if full else IncidentOutcome.MITIGATED
    moves.append(ResolveIncident(note=sentence, outcome=outcome))
    return Decision(
        rule=RULE,
        choice="full_strength" if full else "shrunk",
        reason_code="all_contribute",
        sentence=sentence,
        key=f"strength:{epoch}:{live}:{lives}:{snapshot.job.state}:{','.join(stale)}:{snapshot.job.incident_opened_s}",
        actions=tuple(moves),
        evidence={"replicas": live, "asked": asked, "devices": held, "asked_devices": devices},
        routine=True,
    )
