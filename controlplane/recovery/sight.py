"""How well our own side sees: silence is evidence only while we could have heard.

The sentinel publishes its picture of the nodes (`hot:nodes`) and the health of its own
loop (`hot:sight`); this reads them. Redis or the sentinel away means blind. What people are
told comes from its beat in the database, so that it is told while Redis is away as well.
"""

from typing import Any

from controlplane.fleet.models import Node
from controlplane.runtime import beats, bus
from controlplane.runtime.clock import age_s, now_s

FRESH_S = 3.0
# The sentinel beats from a thread of its own; so late its reading one counts as deaf.
LATE_S = 2.0


def is_blind() -> bool:
    """True: no conclusion may be drawn from silence."""
    picture = bus.read_hot("sight")
    if not picture:
        return True
    stale = now_s() - float(picture.get("at_s", 0.0)) > FRESH_S
    return stale or bool(picture.get("blind", True))


def blind_reason() -> str:
    """Why the leading sentinel draws no conclusion from silence now; "" when it sees."""
    rows = list(beats.live("sentinel"))
    leader = next((row for row in rows if row.detail.get("leads")), None)
    if leader is None:
        return "no sentinel leads"
    late_s = float(leader.detail.get("late_s", 0.0))
    if late_s > LATE_S:
        return f"its loop is {late_s:.0f} s late"
    return str(leader.detail.get("why") or "it does not say why") if leader.detail.get("blind") else ""


def silent_by_node() -> dict[str, Any] | None:
    """Node id to seconds since its last frame, by the sentinel; None: not known."""
    picture = bus.read_hot("nodes")
    return picture or None


def silent_s(node: Node, picture: dict[str, Any] | None) -> float | None:
    """Seconds since the node was heard. A closed connection is evidence of its own."""
    heard = (picture or {}).get(node.id)
    since_closed = None if node.connected else age_s(node.disconnected_at)
    readings = [value for value in (heard, since_closed) if value is not None]
    return max(readings) if readings else None
