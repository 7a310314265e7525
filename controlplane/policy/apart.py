"""Which failures of one moment have a cause of their own, so that each is decided by itself.

Called by the rules that answer failures. One view leaves all of them out, but who is on call for one
machine reads nothing of another: each part is a decision with its own name, price and incident. More than
`MOST_APART` causes within one breath are taken for one (a rack, a switch, a power feed): a page for
each would hide what happened.
"""

from collections.abc import Set

from controlplane.policy.causes import same_cause
from controlplane.policy.facts import is_member
from controlplane.policy.plan import Scalar
from controlplane.policy.proved import Failure
from controlplane.policy.snapshot import JobSnapshot, SignalFact
from controlplane.policy.titles import list_of

MOST_APART = 4
Failures = tuple[Failure, ...]


def parts_of(snapshot: JobSnapshot, failures: Failures, started: Set[int] = frozenset()) -> tuple[Failures, ...]:
    """The failures by cause, first the part that carries the view: one with a member, of these one of which a
    replica is `started` again, as the budget charges a view with the start that it makes room for. What rests on
    no finding accuses nobody and stays with that part."""
    if len(failures) < 2:
        return (failures,)
    found = {signal.id: signal for signal in snapshot.signals}
    groups: list[tuple[Failures, tuple[SignalFact, ...]]] = []
    bare: list[Failure] = []
    for failure in failures:
        signals = tuple(found[i] for i in failure.signal_ids if i in found)
        if not signals:
            bare.append(failure)
            continue
        same = [group for group in groups if same_cause(group[1], signals)]
        groups = [group for group in groups if group not in same]
        joined = tuple(other for group in same for other in group[0])
        groups.append(((*joined, failure), (*(s for group in same for s in group[1]), *signals)))
        if len(groups) > MOST_APART:
            return (failures,)
    if len(groups) < 2:
        return (failures,)
    # Of equals the first.
    first = max((group[0] for group in groups), key=lambda part: (_has_member(snapshot, part), _starts(part, started)))
    rest = sorted((group[0] for group in groups if group[0] is not first), key=_lowest)
    return ((*first, *bare), *rest)


def share(part: Failures, failures: Failures) -> float:
    """Of the price of the moment: all of it is paid once, however many decisions tell it."""
    return len(part) / len(failures)


def together(part: Failures, failures: Failures) -> dict[str, Scalar]:
    """Evidence that the price is shared, and with whom; {} where it is not."""
    mine = {failure.replica.index for failure in part}
    others = sorted({failure.replica.index for failure in failures} - mine)
    if not others:
        return {}
    return {"answered_with": list_of([str(index) for index in others], "replica")}


def _has_member(snapshot: JobSnapshot, part: Failures) -> bool:
    return any(is_member(snapshot, failure.replica) for failure in part)


def _starts(part: Failures, started: Set[int]) -> bool:
    return any(failure.replica.index in started for failure in part)


def _lowest(part: Failures) -> int:
    return min(failure.replica.index for failure in part)
