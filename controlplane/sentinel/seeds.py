"""What counted before a sentinel watched: the newest stored totals, for the counters of `sentinel.readings`.

Called by the leader, for a few nodes a turn: errors that rose while nobody watched are found when somebody does
again. A total is taken of the history, or of the newest finding about the device if that is newer; never of
a device that another one has replaced since.
"""

from collections.abc import Collection, Iterable, Mapping
from functools import partial
from itertools import islice

from django.db.models import Window
from django.db.models.functions import RowNumber

from controlplane.recovery.models import Signal
from controlplane.runtime.isolate import isolated
from controlplane.sentinel.fleetmap import DeviceInfo, FleetMap
from controlplane.sentinel.live_state import LiveState
from controlplane.sentinel.readings import COUNTERS, Total
from controlplane.telemetry.selectors import newest_totals

FIELDS = tuple(COUNTERS.values())
AT_ONCE = 20
"""Nodes a turn: each costs a read of the database and one of Redis, and all of them one more."""
Place = tuple[str, int]


def name(live_state: LiveState, fleet: FleetMap, touched: Collection[str] | None = None) -> None:
    """Which device is at each place, so that one that was replaced hands its counters on to nobody. `touched`: the
    only nodes of which that has changed; devices that are watched since a moment ago are named too."""
    watch = live_state.watch
    nameless, watch.nameless = watch.nameless, set()
    if touched is None:
        keys: Iterable[tuple[str, int]] = fleet.devices
    else:
        slots = ((node_id, live_state.nodes[node_id].slots) for node_id in touched if node_id in live_state.nodes)
        keys = nameless.union((node_id, index) for node_id, indexes in slots for index in indexes)
    for key in keys:
        info = fleet.devices.get(key)
        if info is not None:
            watch.name(*key, info.uuid)


def seed(live_state: LiveState, fleet: FleetMap, *, at_once: int = AT_ONCE) -> None:
    """Of the nodes that are watched since a moment ago."""
    watch = live_state.watch
    began = dict(islice(watch.begun.items(), at_once))
    if not began:
        return
    # Whoever waits stays where the database does not answer.
    found = _newest_findings(began)
    for node_id, began_s in began.items():
        isolated("counters", node_id, partial(_seed, live_state, fleet, node_id, began_s, found))
        del watch.begun[node_id]


def _seed(live_state: LiveState, fleet: FleetMap, node_id: str, began_s: float, found: dict[Place, Signal]) -> None:
    stored, node = newest_totals(node_id, FIELDS, before_s=began_s), live_state.nodes.get(node_id)
    for index, sample in node.samples.items() if node is not None else ():
        info = fleet.devices.get((node_id, index))
        if info is not None:
            row, before = found.get((node_id, index)), stored.get(index, {})
            before = before if row is None else {**before, **_said(row, info, began_s, before)}
            mine = {name: total for name, total in before.items() if total[1] >= info.since_s}
            live_state.watch.seed(node_id, sample, mine)


def _newest_findings(node_ids: Collection[str]) -> dict[Place, Signal]:
    """The newest finding about each device of these nodes."""
    rows = Signal.objects.filter(kind="device_reading", node_id__in=node_ids, device_index__isnull=False)
    newest = Window(RowNumber(), partition_by=["node_id", "device_index"], order_by=["-seen_at", "-id"])
    return {(str(row.node_id), int(row.device_index or 0)): row for row in rows.annotate(age=newest).filter(age=1)}


def _said(row: Signal, info: DeviceInfo, began_s: float, stored: Mapping[str, Total]) -> dict[str, Total]:
    """Totals that the newest finding about the device says, where they are newer than what is stored."""
    if row.evidence.get("uuid") != info.uuid or row.seen_at.timestamp() > began_s:
        return {}
    at_s = row.seen_at.timestamp()
    totals = {name: row.evidence.get(name) for name in FIELDS}
    return {
        name: (total, at_s)
        for name, total in totals.items()
        if isinstance(total, int) and at_s > stored.get(name, (0, 0.0))[1]
    }
