"""One ledger over the whole restart ladder, and what is left of it.

| rung | what starts again | what goes on |
|---|---|---|
| view_change | nothing: the survivors build new groups in place | every process |
| rank | the processes of one replica, on the devices they had | the other replicas |
| replica | the processes of one replica, on other devices | the other replicas |
| attempt | every process, from a checkpoint | the job |

Each decision that climbs a rung is in the ledger, whatever the reason; it is charged for
the highest rung it takes (a replica's restart includes the view change of the others). A
spent budget starts nothing any more: no automation may go round and round for ever. It stops
nobody who trains either: a replica that fails then is left out, which starts nothing, and the
job fails only where it could not go on without a restart. Orderly
membership (a job's first view, the admission of a joiner) is no restart. What a person's
order brings about (an eviction, the start or the attempt that follows it, at once or when
there are devices for it) is written down and not charged; nor is a start that follows one
which a node refused because of its checks, as nothing ran. A replica that is relieved
(`policy.relief`) costs the start beside it; the view that swaps the two is not charged again.
"""

from enum import StrEnum

import msgspec

from controlplane.policy.exits import cause_of, culprit
from controlplane.policy.facts import current_view
from controlplane.policy.findings import KINDS
from controlplane.policy.plan import GROWS, UNPAID, Action, AnnounceView, Decision, PlaceAttempt, StartReplica
from controlplane.policy.slots import relieved
from controlplane.policy.snapshot import BudgetFact, JobSnapshot, Placement
from controlplane.protocol.membership import View
from controlplane.protocol.spec import Budget

PROGRAM = frozenset({"exception", "abort", "segfault", "illegal_instruction", "arithmetic", "unknown"})
"""Causes of an exit that are the program's own, wherever it runs; "unknown": with a code of its own."""


class Rung(StrEnum):
    """From the cheapest to the dearest."""

    VIEW_CHANGE = "view_change"
    RANK = "rank"
    REPLICA = "replica"
    ATTEMPT = "attempt"


OF_A_REPLICA = frozenset({Rung.RANK, Rung.REPLICA})


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One restart. `replica` and its new `incarnation` where one starts again. `charged`
    False: part of a higher rung of the same decision, ordered by a person, or after a start
    that a node refused. `program`: because the program ended by itself."""

    rung: Rung
    charged: bool
    program: bool = False
    replica: int | None = None
    incarnation: int | None = None


def entries(decision: Decision, snapshot: JobSnapshot) -> tuple[Entry, ...]:
    """What carrying the decision out adds to the ledger, the highest rung first."""
    found = [entry for action in decision.actions for entry in _entry(action, snapshot, decision.reason_code)]
    due = {entry.rung for entry in found if entry.charged}
    charged = {Rung.ATTEMPT} & due or {Rung.RANK, Rung.REPLICA} & due or due
    order = list(Rung)[::-1]
    own = of_program(decision, snapshot)
    judged = [
        msgspec.structs.replace(entry, charged=entry.charged and entry.rung in charged, program=own) for entry in found
    ]
    return tuple(sorted(judged, key=lambda e: (order.index(e.rung), e.replica if e.replica is not None else -1)))


def of_program(decision: Decision, snapshot: JobSnapshot) -> bool:
    """What it answers is the program's own end, and no finding about hardware: the exit that explains the others."""
    found = [signal for signal in snapshot.signals if signal.id in decision.signal_ids]
    first = culprit(signal for signal in found if signal.kind == "rank_exit")
    return first is not None and cause_of(first) in PROGRAM and not any(signal.kind in KINDS for signal in found)


def spent(snapshot: JobSnapshot) -> str:
    """Which budget is spent, as a sentence's part; empty: none."""
    budget, ledger = snapshot.job.spec.resiliency.budget, snapshot.budget
    if ledger.no_progress_cycles >= budget.max_no_progress:
        return (
            f"{ledger.no_progress_cycles} attempts in a row made no progress (no newer checkpoint):"
            " the software or the data is at fault"
        )
    if ledger.restarts_total >= budget.max_restarts:
        return f"{budget.max_restarts} restarts are all its budget allows"
    if ledger.restarts_in_window >= budget.restarts_per_window:
        return f"{budget.restarts_per_window} restarts within {budget.window_s:.0f} s are all its budget allows"
    return _part_spent(budget, ledger)


def _part_spent(budget: Budget, ledger: BudgetFact) -> str:
    """Of the limits on some kinds of restarts."""
    if _is_over(ledger.attempt_restarts, budget.max_attempt_restarts):
        return f"{budget.max_attempt_restarts} restarts of the whole job are all its budget allows"
    if _is_over(ledger.restarts_in_attempt, budget.restarts_per_attempt):
        return f"{budget.restarts_per_attempt} restarts of replicas within one attempt are all its budget allows"
    if _is_over(ledger.program_in_window, budget.program_restarts_per_window):
        many = f"{budget.program_restarts_per_window} restarts within {budget.window_s:.0f} s"
        return f"{many} after its program ended by itself are all its budget allows: the program is at fault"
    return ""


def _is_over(charged: int, limit: int | str) -> bool:
    return isinstance(limit, int) and charged >= limit


def unpaid(snapshot: JobSnapshot) -> bool:
    """The last attempt's end is charged to nobody, so what follows it is free, and is carried
    out from a spent budget too."""
    return snapshot.attempt is not None and snapshot.attempt.end_code in UNPAID


def _entry(action: Action, snapshot: JobSnapshot, reason_code: str) -> tuple[Entry, ...]:
    """`charged` False where a person's order or a refused start alone is the cause."""
    match action:
        case PlaceAttempt() if snapshot.attempt is not None:
            charged = reason_code not in UNPAID and not unpaid(snapshot)
            return (Entry(rung=Rung.ATTEMPT, charged=charged),)
        case StartReplica():
            rung = Rung.RANK if _same_devices(snapshot, action.replica, action.placements) else Rung.REPLICA
            unpaid_for = reason_code in UNPAID or reason_code == GROWS
            charged = not unpaid_for and action.replica not in _ordered_out(snapshot) | _refused(snapshot)
            return (Entry(rung=rung, charged=charged, replica=action.replica, incarnation=action.incarnation),)
        case AnnounceView() if _is_restart(current_view(snapshot), action.view):
            lost = _left_out(current_view(snapshot), action.view)
            free = _ordered_out(snapshot) | {replica.index for replica in relieved(snapshot)}
            return (Entry(rung=Rung.VIEW_CHANGE, charged=not lost or not lost <= free),)
        case _:
            return ()


def _ordered_out(snapshot: JobSnapshot) -> set[int]:
    return {replica.index for replica in snapshot.replicas if replica.ordered_out}


def _refused(snapshot: JobSnapshot) -> set[int]:
    return {replica.index for replica in snapshot.replicas if replica.refused}


def _left_out(before: View | None, after: View) -> set[int]:
    stay = {(member.replica, member.incarnation) for member in after.members}
    return {m.replica for m in (before.members if before else ()) if (m.replica, m.incarnation) not in stay}


def _same_devices(snapshot: JobSnapshot, index: int, placements: tuple[Placement, ...]) -> bool:
    before = next((replica.placements for replica in snapshot.replicas if replica.index == index), ())
    return set(before) == set(placements)


def _is_restart(before: View | None, after: View) -> bool:
    """Somebody was left out, or the same members have to start over."""
    if before is None:
        return False
    old = {(member.replica, member.incarnation) for member in before.members}
    new = {(member.replica, member.incarnation) for member in after.members}
    return not old < new
