"""A member is out of reach, stuck, late with others, or owes an answer to a view: go on without it, end nothing (R30).

The reversible half of a failure. Its processes keep what they have and its devices; when its node
is heard again within the lease, or it waits for the others, `admit_joiner` takes it back, and it
fetches what it missed. When the lease ends, its agent finds it late, or its death is told,
`replica_failure` ends it and starts its slot elsewhere. It is
left where it is if too few that hold the newest state would be left: then the lease decides.
"""

from controlplane.policy import few, flaps
from controlplane.policy.apart import parts_of, together
from controlplane.policy.common import STALLED, Common
from controlplane.policy.config import PolicyConfig
from controlplane.policy.facts import (
    attempt_live,
    current_view,
    following_view,
    holds_state,
    is_member,
    lease_of,
    live_replicas,
    signals_of,
    tag,
)
from controlplane.policy.failures import actionable, common_stalls, doubted
from controlplane.policy.plan import Action, AnnounceView, Decision, Scalar, SetJobState, SetReplicaState, SettleSignals
from controlplane.policy.proved import Failure
from controlplane.policy.snapshot import JobSnapshot, ReplicaFact
from controlplane.policy.titles import list_of, number_of
from controlplane.protocol.states import JobState, ReplicaState

RULE = "leave_out"


def rule(snapshot: JobSnapshot, config: PolicyConfig) -> tuple[Decision, ...]:
    """One view without all that are out of reach, a decision for each cause; or nothing."""
    if not attempt_live(snapshot) or snapshot.job.finished or snapshot.job.cancel_requested:
        return ()
    if current_view(snapshot) is None or actionable(snapshot, config):
        return ()
    # Who forms still has no state to keep for it: in the first view it is waited for, or proved gone.
    members = (f for f in doubted(snapshot, config) if is_member(snapshot, f.replica))
    out = tuple(failure for failure in members if failure.replica.state is not ReplicaState.FORMING)
    gone = {failure.replica.index for failure in out}
    stay = tuple(r for r in live_replicas(snapshot) if is_member(snapshot, r) and r.index not in gone)
    holders = sum(holds_state(snapshot, replica) for replica in stay)
    if not out or holders < max(1, snapshot.job.spec.resources.min_replicas):
        return ()
    shared = tuple(failure for failure in out if failure.kind == STALLED)
    alone = tuple(failure for failure in out if failure.kind != STALLED)
    parts = (*((shared,) if shared else ()), *(parts_of(snapshot, alone) if alone else ()))
    return tuple(_leave_out(snapshot, config, part, stay, parts) for part in parts)


def _leave_out(
    snapshot: JobSnapshot,
    config: PolicyConfig,
    part: tuple[Failure, ...],
    stay: tuple[ReplicaFact, ...],
    parts: tuple[tuple[Failure, ...], ...],
) -> Decision:
    """Those of one cause. The first part carries the view without all of them."""
    view, attempt = current_view(snapshot), snapshot.attempt
    assert view is not None, "only a member of a view is left out"
    assert attempt is not None, "views belong to an attempt"
    first, out = part is parts[0], tuple(failure for other in parts for failure in other)
    following = following_view(
        snapshot, stay, _all_causes(snapshot, config, parts), left_out=(failure.replica for failure in out)
    )
    stall = _stall(snapshot, config, part)
    # Who is late a moment after the others is late with them: their findings make it one incident.
    about = part if stall is None else stall.failures
    ids = tuple(signal for failure in about for signal in failure.signal_ids)
    explained = tuple(signal.id for signal in signals_of(snapshot, "outer_error")) if first else ()
    moves: list[Action] = [AnnounceView(view=following)] if first else []
    moves += [
        SetReplicaState(replica=f.replica.index, incarnation=f.replica.incarnation, to=ReplicaState.SUSPECT)
        for f in part
        if f.replica.state is not ReplicaState.SUSPECT
    ]
    moves += [SetJobState(to=JobState.RECOVERING)] if first and snapshot.job.state is JobState.RUNNING else []
    moves += [SettleSignals(signal_ids=explained)] if explained else []
    return Decision(
        rule=RULE,
        choice="leave_out",
        reason_code=_reason(part),
        title="" if stall is None else _title(stall),
        sentence=f"{_causes(part, stall)}. {_on(snapshot, stay, part)} is ended: {_until(snapshot, config, part)}",
        key=f"leave_out:{following.epoch}:{','.join(tag(failure.replica) for failure in part)}",
        actions=tuple(moves),
        evidence={
            "lease_s": round(lease_of(snapshot, config), 3),
            **_evidence(part, stall),
            **together(part, out),
        },
        signal_ids=tuple(sorted({*ids, *explained})),
    )


def _on(snapshot: JobSnapshot, stay: tuple[ReplicaFact, ...], part: tuple[Failure, ...]) -> str:
    """Who trains on: not those that fetch the state yet."""
    going, them = sum(holds_state(snapshot, replica) for replica in stay), "it" if len(part) == 1 else "them"
    verb = "continues" if going == 1 else "continue"
    return f"{number_of(going, 'replica')} {verb} without {them}; nothing of {them}"


def _reason(part: tuple[Failure, ...]) -> str:
    one = len(part) == 1 or part[0].kind == STALLED
    return part[0].kind if one else "several_out_of_reach"


def _evidence(part: tuple[Failure, ...], stall: Common | None) -> dict[str, Scalar]:
    if stall is not None:
        return {"section": stall.section, "late": stall.late, "of": stall.of, "unit": stall.unit}
    return part[0].evidence if len(part) == 1 else {f"replica_{f.replica.index}": f.sentence for f in part}


def _stall(snapshot: JobSnapshot, config: PolicyConfig, part: tuple[Failure, ...]) -> Common | None:
    """What these are late by, with others; None: each is out for a cause of its own."""
    return (
        next((stall for stall in common_stalls(snapshot, config) if stall.few), None)
        if part[0].kind == STALLED
        else None
    )


def _title(stall: Common) -> str:
    return f"{stall.late} of {stall.of} {stall.unit} are late in {stall.section.replace('_', ' ')} at once"


def _all_causes(snapshot: JobSnapshot, config: PolicyConfig, parts: tuple[tuple[Failure, ...], ...]) -> str:
    return "; ".join(_causes(part, _stall(snapshot, config, part)) for part in parts)


def _causes(part: tuple[Failure, ...], stall: Common | None) -> str:
    if stall is not None:
        named = list_of([str(failure.replica.index) for failure in part], "replica")
        return (
            f"{_title(stall)}, here {named}, and their processes speak: what they share (a switch, storage, the input)"
            " is the likelier cause than each of them"
        )
    return "; ".join(f"replica {failure.replica.index}: {failure.sentence}" for failure in part)


def _until(snapshot: JobSnapshot, config: PolicyConfig, out: tuple[Failure, ...]) -> str:
    """When those that are left out come back, and when they are ended."""
    if out[0].kind == STALLED:
        return _how(snapshot, config, out) + _pause_of_some(snapshot, config, out)
    return _how(snapshot, config, out) + "".join(_pause(snapshot, config, failure.replica) for failure in out)


def _pause_of_some(snapshot: JobSnapshot, config: PolicyConfig, out: tuple[Failure, ...]) -> str:
    """However many they are."""
    times = (flaps.times_out(f.replica.times_out, f.replica.out_s, snapshot.now_s) for f in out)
    pauses = [flaps.pause_s(each, config) for each in times if each > 1]
    if not pauses:
        return ""
    again = "It was" if len(out) == 1 else f"{number_of(len(pauses), 'replica')} of them were"
    lately = f"left out before within {flaps.WINDOW_S / 60:.0f} min"
    return f" {again} {lately}: back {max(pauses):.0f} s from now at the earliest."


def _pause(snapshot: JobSnapshot, config: PolicyConfig, replica: ReplicaFact) -> str:
    """That one which comes and goes is not taken back at once."""
    times = flaps.times_out(replica.times_out, replica.out_s, snapshot.now_s)
    if times <= 1:
        return ""
    return (
        f" Replica {replica.index} was left out {times} times within {flaps.WINDOW_S / 60:.0f} min of each other:"
        f" it comes back {flaps.pause_s(times, config):.0f} s from now at the earliest."
    )


def _how(snapshot: JobSnapshot, config: PolicyConfig, out: tuple[Failure, ...]) -> str:
    it = "it" if len(out) == 1 else "each"
    if out[0].kind == STALLED:
        limit = f"{few.limit_s(snapshot, config):.0f} s"
        return f"{it} comes back when it waits as the others do, and is started again if it is late for {limit}."
    if all(failure.kind == "unreachable" for failure in out):
        return f"{it} comes back when it waits as the others do, and is ended if the exchange then fails with it again."
    if all(not failure.bad_nodes for failure in out):
        return f"{it} comes back when it waits as the others do, and is started again when its agent finds it late."
    lease_s = lease_of(snapshot, config)
    return f"{it} comes back when it is heard, and is started elsewhere if it is not within {lease_s:.0f} s of silence."
