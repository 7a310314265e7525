"""How well our own side sees: silence is evidence only while we could have heard.

The sentinel publishes its live state of the nodes (`live:nodes`) and the health of its own
loop (`live:sight`), a part for each shard of the fleet; this reads them. Redis or the sentinel of one shard away means
blind: what looks silent may be of that shard. What people are told comes from its beat in the database, so that it is
told while Redis is away as well.
"""

from datetime import datetime
from typing import Any

from django.conf import settings

from controlplane.changes.assembly import nodes
from controlplane.changes.assembly.replicas import FRESH_S
from controlplane.fleet.models import Node
from controlplane.runtime import beats, shards
from controlplane.runtime.clock import AHEAD_S, now_s

# The sentinel beats from a thread of its own; so late its reading one counts as deaf.
LATE_S = 2.0


def is_blind() -> bool:
    """True: no conclusion may be drawn from silence."""
    return any(map(_paused, shards.read_parts("sight")))


def _paused(part: dict[str, Any]) -> bool:
    """Of one shard. A live state from the future was written before the clock was set back: how old it is, is not
    known."""
    fresh = -AHEAD_S <= now_s() - float(part.get("at_s", 0.0)) <= FRESH_S
    return not fresh or bool(part.get("blind", True))


def clock_step() -> tuple[float | None, float]:
    """(server time to which the clock was last set, by how many seconds), as a sentinel saw it;
    None: it was not set while one watched."""
    parts = [part for part in shards.read_parts("sight") if part.get("clock_set_s") is not None]
    seen = [(float(part["clock_set_s"]), float(part.get("clock_step_s", 0.0))) for part in parts]
    # The leaders of shards began to watch at different times. A step in the future is of a clock before the newest one.
    latest_s = now_s() + AHEAD_S
    return max(seen, key=lambda step: (step[0] <= latest_s, step[0]), default=(None, 0.0))


def blind_reason() -> str:
    """Why the leading sentinel draws no conclusion from silence now; "" when it sees."""
    leaders = [row.detail for row in beats.live(beats.SENTINEL) if row.detail.get("leads")]
    if not leaders:
        return "no sentinel leads"
    for count in {int(detail.get("count", settings.SENTINEL_SHARDS)) for detail in leaders}:
        if count != settings.SENTINEL_SHARDS:
            here = f"this process with {settings.SENTINEL_SHARDS}"
            return f"sentinels run with {count} shards, {here}: HOLDFAST_SENTINEL_SHARDS differs"
    led = {str(shard) for detail in leaders for shard in detail.get("shards", {"0": 0})}
    if missing := sorted({str(shard) for shard in range(settings.SENTINEL_SHARDS)} - led, key=int):
        return f"no sentinel leads shard {', '.join(missing)}"
    reasons = [_reason(detail) for detail in leaders]
    return next((reason for reason in reasons if reason), "")


def _reason(detail: dict[str, Any]) -> str:
    """Of one that leads, by its beat."""
    late_s = float(detail.get("late_s", 0.0))
    if late_s > LATE_S:
        return f"its loop is {late_s:.0f} s late"
    return str(detail.get("why") or "it does not say why") if detail.get("blind") else ""


def silent_by_node() -> dict[str, Any] | None:
    """Node id to seconds since its last frame, by the sentinel; None: not known."""
    return shards.read_whole("nodes") or None


def silent_s(
    node: Node, live_state: dict[str, Any] | None, clock: tuple[float | None, float] | None = None
) -> float | None:
    """Seconds since the node was heard. `clock`: what `clock_step` said, for who asks about many nodes."""
    closed = closed_s(node.connected, node.disconnected_at, clock_step() if clock is None else clock)
    return nodes.silent_s((live_state or {}).get(node.id), closed)


def closed_s(connected: bool, since: datetime | None, clock: tuple[float | None, float]) -> float | None:
    """For how many seconds a node's connection is closed that is closed `since` then; None: it is open, or not known.
    `clock`: what `clock_step` said."""
    return None if connected else _since(since, clock)


def _since(moment: datetime | None, clock: tuple[float | None, float]) -> float | None:
    """Age in seconds; a time that was written before the clock was set is moved with it, and one
    in the future is not known."""
    if moment is None:
        return None
    set_s, step_s = clock
    at_s = moment.timestamp()
    if set_s is not None and (at_s < set_s or at_s > now_s() + AHEAD_S):
        at_s += step_s
    age = now_s() - at_s
    return None if age < -AHEAD_S else max(0.0, age)
