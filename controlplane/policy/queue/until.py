"""Nodes that are known to leave, in the queue's count (ADR 0050).

Until it leaves such a node lends to those alone who are expected to be over by then: its models are counted under a
name of their own, which `Types` reads. From its return on it lends to everybody: as another node, whose devices an end
holds until that moment. So the plan needs no other arithmetic. Pure.
"""

from collections.abc import Iterable, Mapping

from controlplane.policy.known_end import KnownEnd
from controlplane.policy.leaving import is_away
from controlplane.policy.placement import is_type
from controlplane.policy.queue.rows import Demand, Holder, Lender

MARK, BACK, WINDOW = "\x1f", "+back", "window:"
UNRANKED = (1 << 31) - 1
"""Nobody outranks a window."""


def named(model: str, leaves_s: float) -> str:
    """As the model of a node that leaves then is counted."""
    return f"{model}{MARK}{leaves_s!r}"


def suits(model: str, demand: Demand) -> bool:
    """A device of this model may be taken: it is of the type, and there for as long as it is needed."""
    name, _, leaves = model.partition(MARK)
    if demand.gpu_type is not None and not is_type(name, demand.gpu_type):
        return False
    return not leaves or (demand.over_s is not None and demand.over_s <= float(leaves))


def lent(lender: Lender, end: KnownEnd | None, now_s: float) -> tuple[Lender, ...]:
    """What a node with this end lends now, and when it is back."""
    if end is None:
        return (lender,)
    found = []
    if not is_away(end, now_s):
        usable = {named(model, end.leaves_s): number for model, number in lender.usable.items()}
        free = {named(model, end.leaves_s): number for model, number in lender.free.items()}
        found.append(Lender(id=lender.id, usable=usable, free=free, reserved_for=lender.reserved_for))
    if end.back_s is not None:
        found.append(Lender(id=f"{lender.id}{BACK}", usable=lender.usable, free={}))
    return tuple(found)


def returning(lenders: Iterable[Lender], ends: Mapping[str, KnownEnd]) -> tuple[Holder, ...]:
    """Who holds the devices of nodes that are back later, until then."""
    found = []
    for lender in lenders:
        end = ends.get(lender.id.removesuffix(BACK)) if lender.id.endswith(BACK) else None
        if end is not None and end.back_s is not None:
            devices = ((lender.id, sum(lender.usable.values())),)
            name = f"a window ({end.reason})"
            held = Holder(id=f"{WINDOW}{end.id}", name=name, priority=UNRANKED, devices=devices, ends_s=end.back_s)
            found.append(held)
    return tuple(found)


def is_window(holder_id: str) -> bool:
    """No job: the devices of a node that is back later."""
    return holder_id.startswith(WINDOW)
