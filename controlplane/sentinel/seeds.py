"""What counted before a sentinel watched: the newest stored totals, for the counters of `sentinel.readings`.

Called by the leader, for a few nodes a turn: errors that rose while nobody watched are found when somebody does
again. A total is taken of the history, or of the newest finding about the device if that is newer; never of
a device that another one has replaced since.
"""

from collections.abc import Mapping
from functools import partial

from controlplane.recovery.models import Signal
from controlplane.runtime.isolate import isolated
from controlplane.sentinel.fleetmap import DeviceInfo, FleetMap
from controlplane.sentinel.live_state import LiveState
from controlplane.sentinel.readings import COUNTERS, Total
from controlplane.telemetry.selectors import newest_totals

FIELDS = tuple(COUNTERS.values())
AT_ONCE = 20
"""Nodes a turn: each costs two reads of the database and one of Redis."""


def name(live_state: LiveState, fleet: FleetMap) -> None:
    """Which device is at each place, so that one that was replaced hands its counters on to nobody."""
    for (node_id, index), info in fleet.devices.items():
        live_state.watch.name(node_id, index, info.uuid)


def seed(live_state: LiveState, fleet: FleetMap, *, at_once: int = AT_ONCE) -> None:
    """Of the nodes that are watched since a moment ago."""
    watch = live_state.watch
    for node_id in list(watch.begun)[:at_once]:
        began_s = watch.begun.pop(node_id)
        isolated("counters", node_id, partial(_seed, live_state, fleet, node_id, began_s))


def _seed(live_state: LiveState, fleet: FleetMap, node_id: str, began_s: float) -> None:
    stored, node = newest_totals(node_id, FIELDS, before_s=began_s), live_state.nodes.get(node_id)
    for index, sample in node.samples.items() if node is not None else ():
        info = fleet.devices.get((node_id, index))
        if info is not None:
            before = {**stored.get(index, {}), **_found(node_id, index, info, began_s, stored.get(index, {}))}
            mine = {name: total for name, total in before.items() if total[1] >= info.since_s}
            live_state.watch.seed(node_id, sample, mine)


def _found(node_id: str, index: int, info: DeviceInfo, began_s: float, stored: Mapping[str, Total]) -> dict[str, Total]:
    """Totals that the newest finding about the device says, where they are newer than what is stored."""
    rows = Signal.objects.filter(kind="device_reading", node_id=node_id, device_index=index)
    row = rows.order_by("-seen_at").first()
    if row is None or row.evidence.get("uuid") != info.uuid or row.seen_at.timestamp() > began_s:
        return {}
    at_s = row.seen_at.timestamp()
    totals = {name: row.evidence.get(name) for name in FIELDS}
    return {
        name: (total, at_s)
        for name, total in totals.items()
        if isinstance(total, int) and at_s > stored.get(name, (0, 0.0))[1]
    }
