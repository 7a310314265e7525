"""A recorded decision made again: by its own policy, which must give the same bytes, or by another one.

Pure. `recovery.replay` reads the journal for it.
"""

import json
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

import msgspec

from controlplane.policy.asked import Asks
from controlplane.policy.config import PolicyConfig
from controlplane.policy.decide import decide
from controlplane.policy.fleet import FleetSnapshot, decide_fleet
from controlplane.policy.plan import CAUTION, Decision, is_key
from controlplane.policy.snapshot import JobSnapshot

EXACT = 2**53
"""Beyond it a whole number may come back from a database as a float."""
_SAME = (
    "rule",
    "choice",
    "reason_code",
    "sentence",
    "evidence",
    "alternatives",
    "actions",
    "cost_gpu_s",
    "routine",
    "mode",
)
_encode = msgspec.json.Encoder(order="deterministic").encode
Content = Mapping[str, Any]


class Kind(StrEnum):
    """What another policy makes of a recorded decision. HELD: the same, with less automation; FREED: with more;
    INSTEAD: the rule chooses something else; CHANGED: the same act with other words, numbers or targets; DROPPED: its
    rule decides nothing; ADDED: a decision that was not made."""

    HELD = "held"
    FREED = "freed"
    INSTEAD = "instead"
    CHANGED = "changed"
    DROPPED = "dropped"
    ADDED = "added"


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """`before`: what was decided, `after`: what is now; None: nothing."""

    kind: Kind
    before: Decision | None
    after: Decision | None


def content_of(decision: Decision) -> Content:
    """What the journal keeps of it, as plain data."""
    plain: Content = msgspec.to_builtins(decision)
    return {name: plain[name] for name in _SAME}


def differing(recorded: Content, again: Decision) -> tuple[str, ...]:
    """Fields that are not byte for byte what was recorded; () for an equal decision."""
    now = content_of(again)
    if _encode({name: recorded[name] for name in _SAME}) == _encode(now):
        return ()
    return tuple(name for name in _SAME if _spelled(recorded[name]) != _spelled(now[name]))


def found(decisions: Iterable[Decision], key: str, mode: str) -> Decision | None:
    """The one with the key as the journal keeps it, in this mode if any is."""
    same = [decision for decision in decisions if is_key(key, decision.key)]
    return next((decision for decision in same if decision.mode == mode), same[0] if same else None)


def made_assuming(snapshot: JobSnapshot | FleetSnapshot, config: PolicyConfig) -> tuple[tuple[Decision, ...], bool]:
    """What a policy decides by a stored snapshot. True: it asked for more of the fleet than was recorded, and was told
    that nothing more is free."""
    if isinstance(snapshot, FleetSnapshot):
        return decide_fleet(snapshot, config), False
    assumed = False
    while True:
        try:
            return decide(snapshot, config).decisions, assumed
        except Asks as asks:
            assert snapshot.elsewhere is not None, "a snapshot of the whole fleet asks nothing"
            nothing_more = msgspec.structs.replace(snapshot.elsewhere, needs=asks.needs)
            snapshot, assumed = msgspec.structs.replace(snapshot, elsewhere=nothing_more), True


def compared(before: Iterable[Decision], after: Iterable[Decision]) -> tuple[Difference, ...]:
    """Two plans made on one snapshot: what the second makes of each decision of the first, then what it adds."""
    left = {decision.key: decision for decision in after}
    old = list(before)
    differences: list[Difference] = []
    unmatched: list[Decision] = []
    for decision in old:
        other = left.pop(decision.key, None)
        if other is None:
            unmatched.append(decision)
        elif content_of(other) != content_of(decision):
            differences.append(Difference(kind=_kind(decision, other), before=decision, after=other))
    for decision in unmatched:
        key = next((key for key, other in left.items() if _answers(decision, other)), None)
        other = left.pop(key) if key is not None else None
        kind = Kind.DROPPED if other is None else Kind.INSTEAD
        differences.append(Difference(kind=kind, before=decision, after=other))
    differences += [Difference(kind=Kind.ADDED, before=None, after=decision) for decision in left.values()]
    return tuple(differences)


def _kind(before: Decision, after: Decision) -> Kind:
    if before.mode != after.mode:
        lower = CAUTION.index(after.mode) < CAUTION.index(before.mode)
        return Kind.HELD if lower else Kind.FREED
    return Kind.CHANGED if before.choice == after.choice else Kind.INSTEAD


def _answers(before: Decision, after: Decision) -> bool:
    """Both are about the same: of one rule, or of findings of which they share one."""
    return before.rule == after.rule or bool(set(before.signal_ids) & set(after.signal_ids))


def _spelled(value: Any) -> bytes:
    """A number is one number, whether a database gives it back as 2 or as 2.0."""
    plain = json.loads(
        json.dumps(value), parse_int=lambda text: _number(float(text)), parse_float=lambda t: _number(float(t))
    )
    return _encode(plain)


def _number(value: float) -> float:
    return int(value) if value.is_integer() and abs(value) < EXACT else value
