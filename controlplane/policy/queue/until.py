"""Nodes that are known to leave (ADR 0050) or are reserved for a project (ADR 0051), in the queue's count.

Until it leaves such a node lends to those alone who are expected to be over by then: its models are counted under a
name of their own, which `Types` reads. From its return on it lends to everybody: as another node, whose devices an end
holds until that moment. So the plan needs no other arithmetic. A reserved node lends to others in the same way until it
is reserved, and then to its project alone; nobody else counts on its end, as nobody knows how long jobs of its project
stay. Pure.
"""

import math
from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from controlplane.policy.known_end import KnownEnd
from controlplane.policy.leaving import is_away
from controlplane.policy.placement import is_type
from controlplane.policy.queue.rows import Demand, Holder, Lender, Pending
from controlplane.policy.reserved import against
from controlplane.policy.reserved_words import Kept, count

MARK, BUT, BACK, WINDOW = "\x1f", "\x1e", "+back", "window:"
RUNS = -math.inf
"""When a node that is reserved now has left others."""
UNRANKED = (1 << 31) - 1
"""Nobody outranks a window."""


def named(model: str, leaves_s: float, project: str = "") -> str:
    """As the model of a node is counted that leaves then, for all but jobs of this project."""
    return f"{model}{MARK}{leaves_s!r}{BUT}{project}"


def of_type(model: str, demand: Demand) -> bool:
    """It is what is asked for, whenever it is there."""
    return demand.gpu_type is None or is_type(model.partition(MARK)[0], demand.gpu_type)


def suits(model: str, demand: Demand) -> bool:
    """A device of this model may be taken: it is of the type, and there for as long as it is needed."""
    _, *marks = model.split(MARK)
    if not of_type(model, demand):
        return False
    alone = False
    for mark in marks:
        leaves, _, project = mark.partition(BUT)
        if project and project == demand.project:
            alone = alone or float(leaves) == RUNS
        elif demand.over_s is None or demand.over_s > float(leaves):
            return False
    return alone or not demand.alone


def lent(lender: Lender, end: KnownEnd | None, now_s: float) -> tuple[Lender, ...]:
    """What a node with this end, and with the reservations that it has, lends now, and when it is back."""
    here = lender
    for each in lender.reservations:
        if each.until_s > now_s:
            here = _marked(here, RUNS if each.runs(now_s) else each.from_s, each.project)
    if end is None:
        return (here,)
    found = [] if is_away(end, now_s) else [_marked(here, end.leaves_s)]
    if end.back_s is not None:
        found.append(Lender(id=f"{lender.id}{BACK}", usable=here.usable, free={}))
    return tuple(found)


def kept_from(job: Pending, nodes: Iterable[Lender], now_s: float) -> tuple[Kept, ...]:
    """Free devices of its type that it cannot have, as they are reserved for others."""
    found: dict[str, Kept] = {}
    for node in nodes:
        first = against(node.reservations, job.project, now_s) if node.reservations else None
        for model, free in node.free.items() if first is not None else ():
            if first is not None and free and of_type(model, job.demand) and not suits(model, job.demand):
                count(found, first, free)
    return tuple(sorted(found.values(), key=lambda each: (each.reservation.until_s, each.reservation.id)))


def _marked(lender: Lender, leaves_s: float, project: str = "") -> Lender:
    usable = {named(model, leaves_s, project): number for model, number in lender.usable.items()}
    free = {named(model, leaves_s, project): number for model, number in lender.free.items()}
    return replace(lender, usable=usable, free=free)


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
