"""Slots to the replicas that the policy sees, and findings to what they say now."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import takewhile

import msgspec

from controlplane.changes.assembly.rows import Incarnation, Reading, Slot
from controlplane.policy.findings import KINDS
from controlplane.policy.snapshot import LIVE_REPLICA, ReplicaFact, SignalFact
from controlplane.policy.stuck import AT_WORK
from controlplane.policy.void import PHASE_SINCE, READ
from controlplane.protocol.membership import MemberRole, View
from controlplane.protocol.states import WAITING_PHASES, Phase, ReplicaState, Section

FRESH_S = 3.0
"""What is older says nothing of the present."""
Readings = Sequence[Reading | None]


def replicas_of(slots: Iterable[Slot], view: View | None) -> tuple[ReplicaFact, ...]:
    """The newest incarnation of each slot, in the order of `slots`."""
    members = {(member.replica, member.incarnation) for member in view.members} if view is not None else set()
    return tuple(_replica(slot, members) for slot in slots)


def _replica(slot: Slot, members: Collection[tuple[int, int]]) -> ReplicaFact:
    newest, ranks, seen = slot.lives[0], slot.ranks, slot.readings
    failed, refused = _failed_starts(slot.lives)
    return ReplicaFact(
        index=newest.index,
        incarnation=newest.incarnation,
        state=newest.state,
        state_since_s=newest.state_since_s,
        world_size=ranks.world_size,
        placements=slot.placements,
        joined_ranks=ranks.joined,
        exited_ranks=ranks.exited,
        in_view=(newest.index, newest.incarnation) in members,
        contributing=newest.contributing,
        standby=not newest.contributing and newest.role == MemberRole.STANDBY,
        committed_step=newest.committed_step,
        waiting=_waits(seen),
        saving=_saves(seen),
        silent_s=_silent_s(seen),
        silent_ranks=_silent_ranks(slot),
        working_since_s=_working_since_s(seen),
        times_out=newest.times_out,
        out_s=newest.out_s,
        stopped=ranks.released == ranks.world_size,
        released=slot.released,
        failed_starts=failed,
        ordered_out=newest.asked_out,
        ordered_s=newest.asked_s,
        refused=newest.refused,
        refused_starts=refused,
        relieved=newest.relieved,
    )


def _failed_starts(lives: Sequence[Incarnation]) -> tuple[int, int]:
    """(incarnations in a row, newest first, that ended before they ever contributed, how many of
    them a node refused); what a person ordered out says nothing about its start."""
    young = takewhile(lambda each: not each.contributed, lives)
    failed = [each for each in young if each.state is ReplicaState.EVICTED and not each.asked_out]
    return len(failed), sum(each.refused for each in failed)


# --- what its ranks said last -----------------------------------------------------------------


def _waits(seen: Readings) -> bool:
    """Every rank sits in a phase that waits for others. A rank nobody hears waits for
    nobody, as far as we know."""
    return bool(seen) and all(
        live is not None and live["phase"] in WAITING_PHASES and live["silent_s"] < FRESH_S for live in seen
    )


def _saves(seen: Readings) -> bool:
    """A rank that is heard of sits in a save."""
    return any(live and live["phase"] == Phase.SAVING and live["silent_s"] < FRESH_S for live in seen)


def _silent_s(seen: Readings) -> float | None:
    """The longest that one of its ranks has said nothing to its agent; None: not known."""
    known = [float(live["silent_s"]) for live in seen if live]
    return max(known) if known and len(known) == len(seen) else None


def _silent_ranks(slot: Slot) -> tuple[int, ...]:
    """Who of them is mute while another speaks; none where not all is known."""
    if any(live is None for live in slot.readings):
        return ()
    said = zip(slot.placements, slot.readings, strict=False)
    mute = tuple(sorted(place.rank for place, live in said if live and live["silent_s"] >= FRESH_S))
    return mute if len(mute) < len(slot.readings) else ()


def _working_since_s(seen: Readings) -> float | None:
    """Since when each rank is in its present phase of a step, one of them at work or mute; None: it waits, is
    out of its step, saves, or not all of it is known."""
    lives = [live for live in seen if live and live.get("section") == Section.STEP]
    if not lives or len(lives) < len(seen):
        return None
    if any(live["phase"] not in AT_WORK | WAITING_PHASES for live in lives):
        return None
    if not any(live["phase"] in AT_WORK or live["silent_s"] >= FRESH_S for live in lives):
        return None
    return max(float(live["phase_since_s"]) for live in lives)


# --- findings -----------------------------------------------------------------------------------


def accused(found: Iterable[SignalFact]) -> set[str]:
    """Ids of nodes of which a finding about hardware is open."""
    return {signal.node_id for signal in found if signal.kind in KINDS and signal.node_id is not None}


def signal_facts(
    found: Iterable[SignalFact],
    owned: Collection[tuple[str | None, int | None]],
    replicas: Iterable[ReplicaFact],
    readings: Mapping[str, Reading],
) -> tuple[SignalFact, ...]:
    """With what they are now. A finding about hardware under no living replica is the fleet's own affair: `owned`
    are the devices, as (node id, index), on which a rank of one is, of the nodes that are `accused`. Under one of the
    job's own `replicas` it is the job's, also where the rank has ended of it: who ends the replica settles the
    finding, and so says what becomes of the device."""
    found = tuple(found)
    nodes = accused(found)
    living = [replica for replica in replicas if replica.state in LIVE_REPLICA] if nodes else []
    mine = {(node, index) for each in living for node in nodes for index in each.by_node.get(node, ())}
    return tuple(
        _phase_now(_of_fleet(signal, mine | {*owned}) if signal.kind in KINDS else signal, readings) for signal in found
    )


def _of_fleet(signal: SignalFact, owned: Collection[tuple[str | None, int | None]]) -> SignalFact:
    alone = (signal.node_id, signal.device_index) not in owned
    return msgspec.structs.replace(signal, of_fleet=True) if alone else signal


def _phase_now(signal: SignalFact, readings: Mapping[str, Reading]) -> SignalFact:
    """A finding about a rank, with the time at which the rank's present phase began, and when that was read."""
    live = readings.get(reading_key(signal.replica, signal.incarnation, signal.rank))
    if signal.kind not in ("rank_overdue", "setup_timeout") or not live:
        return signal
    now = {PHASE_SINCE: live.get("phase_since_s"), READ: _moment_s(live.get("at"))}
    return msgspec.structs.replace(signal, evidence={**signal.evidence, **now})


def _moment_s(at: str | float | None) -> float | None:
    return datetime.fromisoformat(at).timestamp() if isinstance(at, str) else at


def reading_key(replica: int | None, incarnation: int | None, rank: int | None) -> str:
    """By which the readings of a job are kept."""
    return f"{replica}.{incarnation}.{rank}"
