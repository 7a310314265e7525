"""Failures that are proved: something ended, was refused, or lies behind. They are acted on
also while the control plane cannot see, and in a correlated failure.
"""

import math
from collections.abc import Callable

import msgspec

from controlplane.policy import bars, findings
from controlplane.policy.config import PolicyConfig
from controlplane.policy.exits import EXIT_DISAMBIGUATE, EXIT_FAILED_VALIDATION, cause_of, code_of, culprit, told
from controlplane.policy.facts import current_view, node_name, refusals, signals_about, signals_on, verdict_on_flushes
from controlplane.policy.membership import Refusal
from controlplane.policy.placement import Slot, slots_of
from controlplane.policy.plan import ORDERED, Scalar
from controlplane.policy.snapshot import BarFact, JobSnapshot, ReplicaFact, SignalFact


class Failure(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One failed replica incarnation. `gone`: its processes need no stopping to be safe.
    `reversible`: the evidence is enough to leave it out, and not to end anything (R30).
    `bad_slots`, `bad_nodes`: where nothing may be started because of it; `cordon` nodes
    to take out of service, `quarantine` those whose fault is proved."""

    replica: ReplicaFact
    kind: str
    proved: bool
    sentence: str
    hung: bool = False
    gone: bool = False
    reversible: bool = False
    bad_slots: tuple[Slot, ...] = ()
    bad_nodes: tuple[str, ...] = ()
    cordon: tuple[str, ...] = ()
    quarantine: tuple[str, ...] = ()
    signal_ids: tuple[str, ...] = ()
    evidence: dict[str, Scalar] = {}


Detector = Callable[[JobSnapshot, PolicyConfig, ReplicaFact], Failure | None]


def signal_ids(signals: tuple[SignalFact, ...]) -> tuple[str, ...]:
    """As evidence."""
    return tuple(signal.id for signal in signals)


def _ordered(snapshot: JobSnapshot, config: PolicyConfig, replica: ReplicaFact) -> Failure | None:
    """Ended as ordered. What ended before the order was given is a failure; ranks of other nodes
    that die in the middle of it, of their killed peers, are not."""
    given_s = math.inf if replica.ordered_s is None else replica.ordered_s
    exits = signals_about(snapshot, "rank_exit", replica)
    ended_otherwise = any(signal.seen_s < given_s for signal in exits)
    # One that is relieved has not been ended yet: what ends it now is no order.
    if not replica.ordered_out or replica.relieved or replica.exited_ranks == 0 or ended_otherwise:
        return None
    return Failure(
        replica=replica,
        kind=ORDERED,
        proved=True,
        gone=replica.exited_ranks >= replica.world_size,
        sentence=f"its eviction was requested ({replica.ordered_out})",
        evidence={"ordered_by": replica.ordered_out, "exited_ranks": replica.exited_ranks},
    )


def _unfit(snapshot: JobSnapshot, config: PolicyConfig, replica: ReplicaFact) -> Failure | None:
    """Its agent refused to start it: nothing ran, and that node is the wrong one for it."""
    if not (signals := refusals(snapshot, replica)):
        return None
    node, detail = node_name(snapshot, signals[0].node_id or ""), signals[0].evidence["detail"]
    return Failure(
        replica=replica,
        kind="unfit_node",
        proved=True,
        gone=replica.exited_ranks >= replica.world_size,
        sentence=f"its start on {node} failed: {detail}",
        bad_nodes=tuple(sorted({signal.node_id for signal in signals if signal.node_id})),
        signal_ids=signal_ids(signals),
    )


def _exited(snapshot: JobSnapshot, config: PolicyConfig, replica: ReplicaFact) -> Failure | None:
    signals = signals_about(snapshot, "rank_exit", replica)
    if not signals and replica.exited_ranks == 0:
        return None
    if snapshot.job.committed_step >= snapshot.job.spec.training.steps and _all_clean(signals):
        return None
    signal = culprit(signals)
    code = code_of(signal) if signal else None
    blamed = _slot_of_rank(replica, signal.rank if signal else None)
    where = node_name(snapshot, blamed[0]) if blamed else "its node"
    bad = (blamed,) if blamed and code in (EXIT_DISAMBIGUATE, EXIT_FAILED_VALIDATION) else ()
    barred = _barred(replica, signal)
    barred_slots, barred_nodes = bars.bad_places(barred)
    bar = bars.words(barred, where, config)
    ended = f"{replica.exited_ranks} ranks ended on {where}"
    if signal is not None:
        ended = f"rank {signal.rank} on {where} {told(signal)}"
    return Failure(
        replica=replica,
        kind="rank_exit",
        proved=True,
        gone=replica.exited_ranks >= replica.world_size,
        sentence=ended,
        bad_slots=(*bad, *barred_slots),
        bad_nodes=barred_nodes,
        quarantine=(bad[0][0],) if bad and code == EXIT_FAILED_VALIDATION else (),
        signal_ids=signal_ids(signals),
        evidence={
            "exit_code": code,
            "cause": cause_of(signal) if signal is not None else None,
            "exited_ranks": replica.exited_ranks,
            "node": where,
            **({"barred": bar} if bar else {}),
        },
    )


def _device_gone(snapshot: JobSnapshot, config: PolicyConfig, replica: ReplicaFact) -> Failure | None:
    signals = tuple(s for s in signals_on(snapshot, replica) if findings.ends(s, config))
    if not signals:
        return None
    first = signals[0]
    where = f"device {first.device_index} of {node_name(snapshot, first.node_id)}"
    if first.kind == "xid":
        verdict = findings.verdict_of(first, config)
        what = f"XID {verdict.xid} ({verdict.description}) on {where}, by {verdict.provenance}"
    else:
        what = f"{where} fell off the bus"
    nodes = tuple(sorted({s.node_id for s in signals if s.node_id}))
    return Failure(
        replica=replica,
        kind="device_lost" if first.kind == "device_lost" else "xid_fatal",
        proved=True,
        sentence=what,
        bad_nodes=nodes,
        cordon=nodes,
        signal_ids=signal_ids(signals),
        evidence={"xid": int(first.value) if first.kind == "xid" else None, "device": where},
    )


def _behind(snapshot: JobSnapshot, config: PolicyConfig, replica: ReplicaFact) -> Failure | None:
    view = current_view(snapshot)
    if view is None or snapshot.install is not None:
        return None
    answer = verdict_on_flushes(snapshot)
    if not isinstance(answer, Refusal) or (answer.replica, answer.incarnation) != (replica.index, replica.incarnation):
        return None
    return Failure(
        replica=replica,
        kind="behind",
        proved=True,
        sentence=f"it cannot be brought to the group's step: {answer.reason}",
        evidence={"flush": answer.reason},
    )


def _all_clean(signals: tuple[SignalFact, ...]) -> bool:
    return all(code_of(signal) == 0 for signal in signals)


def _barred(replica: ReplicaFact, signal: SignalFact | None) -> tuple[BarFact, ...]:
    """None for an end that nobody saw: it accuses no place."""
    code = code_of(signal) if signal is not None else None
    if signal is None or code is None:
        return ()
    return bars.bars_of(replica.placements, signal.rank, code, since_s=signal.seen_s)


def _slot_of_rank(replica: ReplicaFact, rank: int | None) -> Slot | None:
    slots = slots_of(p for p in replica.placements if rank is None or p.rank == rank)
    return slots[0] if slots else None


# A lost device also ends the process on it: the device is the cause, so it speaks first.
PROVED: tuple[Detector, ...] = (_device_gone, _ordered, _unfit, _exited, _behind)
