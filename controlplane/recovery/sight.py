"""How well our own side sees: silence is evidence only while we could have heard.

The sentinel publishes its picture of the nodes (`hot:nodes`) and the health of its own
loop (`hot:sight`); this reads them. Redis or the sentinel away means blind.
"""

from typing import Any

from controlplane.fleet.models import Node
from controlplane.runtime import bus
from controlplane.runtime.clock import age_s, now_s

FRESH_S = 3.0


def is_blind() -> bool:
    """True: no conclusion may be drawn from silence."""
    picture = bus.read_hot("sight")
    if not picture:
        return True
    stale = now_s() - float(picture.get("at_s", 0.0)) > FRESH_S
    return stale or bool(picture.get("blind", True))


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
