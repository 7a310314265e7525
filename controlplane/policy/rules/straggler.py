"""A rank is slow: say so, and move its replica only where that pays.

All ranks wait for the slowest, so a straggler costs its lateness times the whole job, step
after step. Moving its replica costs a stall and the time of a start, once. The rule tells
the finding with both sums and moves the replica only when all of this holds: the rank is
slow beside its peers (if they are as slow, no device is to blame); its device is slow, not
its input nor the length of its samples (a move would take these along); other devices are free; enough replicas are
left; and the move is cheaper than staying, over what is left of the job or the time a
repair takes, whichever is shorter. Where devices are free for a whole replica another one may be
started beside it, which then takes its place (`swap`); else, or where the others are better off
without it until then, it is ended first.

What was measured in an earlier view, or too long ago, moves and leaves nothing: whom all waited for then may have left
meanwhile, or be as fast as the others.

Where no other place is free, the others go on without it if that is cheaper still, by `WITHOUT_MARGIN`,
and it has been slow for another whole interval, as its devices are given up. However it leaves, nothing of
the job is started on the slow device for a while (`bars`): else its place would be filled again there.
"""

import msgspec

from controlplane.policy import bars, prices, relief, slow, ways
from controlplane.policy.budget import spent
from controlplane.policy.config import PolicyConfig
from controlplane.policy.disruption import is_held
from controlplane.policy.facts import (
    about,
    attempt_live,
    contributes,
    installed,
    live_replicas,
    node_name,
    signals_of,
    tag,
)
from controlplane.policy.failures import find_failures
from controlplane.policy.placement import slots_of
from controlplane.policy.plan import Alternative, Decision, Relieve, StartReplica
from controlplane.policy.proved import Failure
from controlplane.policy.rules.replica_failure import eviction
from controlplane.policy.rules.swap import takes_its_place
from controlplane.policy.snapshot import JobSnapshot, ReplicaFact, SignalFact
from controlplane.policy.titles import of_failures
from controlplane.protocol.states import JobState

RULE, WITHOUT = "straggler", "go_on_without"
WITHOUT_MARGIN = 1.25
"""Staying must cost so many times what it costs to go on without it."""
_NEXT = "another one is moved or left out first"
_WHAT = {"data": "waits for its input", "length": "has longer micro-batches, which differ among themselves as much"}


class _Case(msgspec.Struct, frozen=True, kw_only=True):
    """One finding with its sums, in GPU-seconds. `against` empty: move it. `moves`: the ways to do that,
    `best` the cheapest of those that are open; `start`: of another one beside it. `stays`: why the
    others do not go on without it either; empty: they do."""

    signal: SignalFact
    failure: Failure
    stay_s: float
    moves: tuple[ways.Way, ...]
    best: ways.Way | None
    start: StartReplica | None
    without_s: float | None
    against: str
    stays: str

    @property
    def move_s(self) -> float | None:
        """Of the cheapest open way, else of the first that has a price."""
        priced = self.best or next((way for way in self.moves if way.cost_gpu_s is not None), None)
        return priced.cost_gpu_s if priced else None


def rule(snapshot: JobSnapshot, config: PolicyConfig) -> tuple[Decision, ...]:
    """One decision a finding; at most one replica is moved or left out at a time, the slowest first."""
    if not attempt_live(snapshot) or not installed(snapshot) or snapshot.job.finished:
        return ()
    cases = [
        _case(snapshot, config, signal, replica)
        for signal in sorted(signals_of(snapshot, "straggler"), key=lambda signal: (signal.value, signal.id))
        for replica in live_replicas(snapshot)
        if about(signal, replica) and not replica.relieved
    ]
    mover = next((case for case in cases if not case.against), None)
    leaver = next((case for case in cases if case.against and not case.stays), None) if mover is None else None
    moves = (_move(snapshot, config, mover),) if mover is not None else ()
    if leaver is not None:
        moves = (_leave(snapshot, config, leaver),)
    # Those that pay as well are asked again when the first one is over.
    return (*moves, *(_tell(snapshot, case) for case in cases if case.against and case is not leaver))


def _case(snapshot: JobSnapshot, config: PolicyConfig, signal: SignalFact, replica: ReplicaFact) -> _Case:
    bad = slots_of(p for p in replica.placements if p.rank == signal.rank)
    failure = Failure(
        replica=replica,
        kind="straggler",
        proved=False,
        sentence=_cause(snapshot, signal),
        bad_slots=bad,
        signal_ids=(signal.id,),
        evidence=_evidence(signal),
    )
    weighed = ways.case_of(snapshot, config, (failure,))
    late_s = slow.number(signal, "late_s")
    stay_s = prices.stay_s(weighed.times, weighed.stakes, late_s=late_s)
    start = relief.successor(snapshot, config, replica, bad_slots=bad)
    first = (way for way in ways.ways_out(weighed) if way.action in (ways.REPLACE, ways.HOLD))
    moves = (ways.beside(weighed, start, late_s=late_s), *first)
    best = ways.cheapest(moves)
    without_s = _without_s(weighed, signal, replica)
    return _Case(
        signal=signal,
        failure=failure,
        stay_s=stay_s,
        moves=moves,
        best=best,
        start=start,
        without_s=without_s,
        against=_against(weighed, signal, stay_s, best),
        stays=_stays(weighed, signal, stay_s, without_s),
    )


def _against(weighed: ways.Case, signal: SignalFact, stay_s: float, move: ways.Way | None) -> str:
    """Why its replica is not moved, the weightiest reason first; empty: move it."""
    snapshot = weighed.snapshot
    if why := slow.innocent(signal):
        return why
    ended_first = move is None or move.action != ways.BESIDE
    if ended_first and not any(contributes(snapshot, replica) for replica in weighed.holders):
        return "too few replicas would be left"
    if move is None or move.cost_gpu_s is None:
        return weighed.no_start or "too few replicas would be left"
    if move.cost_gpu_s >= stay_s:
        return f"moving its replica costs {move.cost_gpu_s:.0f} GPU-seconds, staying {stay_s:.0f}"
    return _busy(weighed, signal)


def _busy(weighed: ways.Case, signal: SignalFact) -> str:
    """Why nothing is done about it just now; empty: something may be."""
    snapshot, config = weighed.snapshot, weighed.config
    replica = weighed.failures[0].replica
    if why := slow.old(snapshot, signal):
        return why
    if snapshot.blind:
        return "the control plane does not see all of it now"
    if find_failures(snapshot, config) or snapshot.job.state is not JobState.RUNNING:
        return "the job is recovering from something else"
    if is_held(snapshot, config, replica.node_ids):
        return "too much at once in the fleet"
    return ""


def lasts_s(snapshot: JobSnapshot, signal: SignalFact) -> float:
    """Server time from which the others may go on without it: a whole interval after it was found."""
    return signal.seen_s + snapshot.job.spec.resiliency.stragglers.interval_s


def _stays(weighed: ways.Case, signal: SignalFact, stay_s: float, without_s: float | None) -> str:
    """Why the others do not go on without one that is not moved; empty: they do."""
    snapshot = weighed.snapshot
    if why := slow.innocent(signal):
        return why
    if without_s is None:
        return "too few replicas would be left"
    if without_s >= stay_s:
        return "costs more"
    if weighed.fits:
        return spent(snapshot) or "it would be started again at once"
    if why := spent(snapshot) or _busy(weighed, signal):
        return why
    if without_s * WITHOUT_MARGIN > stay_s:
        return f"staying costs less than {WITHOUT_MARGIN:g} times as much"
    if snapshot.now_s < (due_s := lasts_s(snapshot, signal)):
        return f"left out if it is still slow in {due_s - snapshot.now_s:.0f} s"
    return ""


def _without_s(weighed: ways.Case, signal: SignalFact, replica: ReplicaFact) -> float | None:
    """None: the others would be too few."""
    snapshot = weighed.snapshot
    others = [r for r in live_replicas(snapshot) if r.index != replica.index and contributes(snapshot, r)]
    if len(others) < weighed.needed:
        return None
    return prices.without_s(weighed.times, weighed.stakes, late_s=slow.number(signal, "late_s"))


def _move(snapshot: JobSnapshot, config: PolicyConfig, case: _Case) -> Decision:
    beside = case.best is not None and case.best.action == ways.BESIDE
    base = _start_beside(snapshot, case) if beside else eviction(snapshot, config, (case.failure,))
    others = (way for way in case.moves if way is not case.best)
    return msgspec.structs.replace(
        base,
        rule=RULE,
        choice=ways.BESIDE if beside else "move",
        reason_code="cheaper_to_move",
        sentence=f"{base.sentence} Staying would cost {case.stay_s:.0f} GPU-seconds, moving {case.move_s or 0.0:.0f}.",
        key=base.key if beside else f"straggler:{case.signal.id}:move",
        evidence=_sums(case),
        alternatives=(
            Alternative(action="stay", cost_gpu_s=case.stay_s, why_not="costs more"),
            *(
                Alternative(action=way.action, cost_gpu_s=way.cost_gpu_s, why_not=way.bar or "costs more")
                for way in others
            ),
            _without(case, "a move keeps the strength"),
        ),
        cost_gpu_s=case.move_s,
    )


def _start_beside(snapshot: JobSnapshot, case: _Case) -> Decision:
    """The start of the one that takes its place; nothing of what trains is touched."""
    replica, start = case.failure.replica, case.start
    assert start is not None, "the way is open"
    return Decision(
        rule=RULE,
        choice=ways.BESIDE,
        reason_code="cheaper_to_move",
        sentence=f"Replica {replica.index}: {case.failure.sentence}. {takes_its_place(snapshot, start)}",
        key=f"straggler:{case.signal.id}:beside:{start.replica}.{start.incarnation}",
        actions=(
            start,
            Relieve(replica=replica.index, incarnation=replica.incarnation, reason=case.failure.sentence),
        ),
        signal_ids=(case.signal.id,),
        title=of_failures(snapshot, (case.failure,)),
    )


def _leave(snapshot: JobSnapshot, config: PolicyConfig, case: _Case) -> Decision:
    """The others go on without it, and its slot waits for another device."""
    base = eviction(snapshot, config, (case.failure,))
    signal = case.signal
    barred = (bars.of_slow(node_id, index, since_s=snapshot.now_s) for node_id, index in case.failure.bad_slots)
    return msgspec.structs.replace(
        base,
        rule=RULE,
        choice=WITHOUT,
        reason_code="cheaper_without",
        sentence=f"{base.sentence} Staying would cost {case.stay_s:.0f} GPU-seconds, continuing without it"
        f" {case.without_s or 0.0:.0f}; {bars.words(tuple(barred), node_name(snapshot, signal.node_id), config)}.",
        key=f"straggler:{signal.id}:without",
        evidence=_sums(case),
        alternatives=(
            Alternative(action="stay", cost_gpu_s=case.stay_s, why_not="costs more"),
            Alternative(action="move", cost_gpu_s=case.move_s, why_not=case.against),
        ),
        cost_gpu_s=case.without_s,
    )


def _tell(snapshot: JobSnapshot, case: _Case) -> Decision:
    replica = case.failure.replica
    return Decision(
        rule=RULE,
        choice="tell",
        reason_code="slow_rank",
        sentence=f"Replica {replica.index}: {case.failure.sentence}. Nothing is moved: {case.against}.{_cheaper(case)}",
        key=f"straggler:{case.signal.id}:{tag(replica)}:tell",
        actions=(),
        evidence=_sums(case),
        alternatives=(
            Alternative(action="move", cost_gpu_s=case.move_s, why_not=case.against),
            _without(case, case.stays or _NEXT),
        ),
        signal_ids=(case.signal.id,),
        cost_gpu_s=case.stay_s,
    )


def _pays(case: _Case) -> bool:
    """Going on without it is cheaper than going on at its speed."""
    return case.without_s is not None and case.without_s < case.stay_s


def _cheaper(case: _Case) -> str:
    if not _pays(case):
        return ""
    return (
        f" Continuing without it would cost {case.without_s or 0.0:.0f} GPU-seconds, staying {case.stay_s:.0f}:"
        f" {case.stays or _NEXT}."
    )


def _without(case: _Case, why_not: str) -> Alternative:
    why = why_not if case.without_s is not None else "too few replicas would be left"
    return Alternative(action=WITHOUT, cost_gpu_s=case.without_s, why_not=why)


def _sums(case: _Case) -> dict[str, str | int | float | bool | None]:
    sums = {"stay_gpu_s": case.stay_s, "move_gpu_s": case.move_s, "without_gpu_s": case.without_s}
    return {**case.failure.evidence, **sums}


def _cause(snapshot: JobSnapshot, signal: SignalFact) -> str:
    """What is slow, and what its device says of itself."""
    where = f"rank {signal.rank} on device {signal.device_index} of {node_name(snapshot, signal.node_id)}"
    what = _WHAT.get(str(signal.evidence.get("cause")), "computes slowly")
    said = [f"the device throttles ({text})" for text in (signal.evidence.get("throttle"),) if text]
    said += [f"open findings: {text}" for text in (signal.evidence.get("device_findings"),) if text]
    late_s = slow.number(signal, "late_s")
    return (
        f"{where} {what}: score {signal.value:.2f} of at least {signal.threshold:.2f},"
        f" each step waits {late_s * 1000:.0f} ms for it" + "".join(f"; {text}" for text in said)
    )


def _evidence(signal: SignalFact) -> dict[str, str | int | float | bool | None]:
    return {
        "value": signal.value,
        "threshold": signal.threshold,
        "device_index": signal.device_index,
        **signal.evidence,
    }
