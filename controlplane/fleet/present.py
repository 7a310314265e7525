"""Nodes and devices as the API and the events' patches show them (one shape for both)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from django.db.models import Q, QuerySet

from controlplane.fleet.models import Device, KnownEnd, Node
from controlplane.runtime.beside import beside
from controlplane.runtime.clock import iso, now
from controlplane.runtime.prepared import TEXT, Prepared, Several

Json = dict[str, Any]


def node_summary(node: Node, *, live_state: Json | None = None, parts: "Parts | None" = None) -> Json:
    """`live_state`: what the sentinel last heard of this node (`bus.read_live("node:<id>")`), None when it
    is not known; then ages and live readings are null. `parts`: its devices and ranks, where
    they were read for many nodes at once."""
    live_state = live_state or {}
    parts = parts or parts_of([node])[node.id]
    live = {sample["index"]: sample for sample in live_state.get("devices", [])}
    agent = live_state.get("agent", {})
    return {
        "id": node.id,
        "name": node.name,
        "state": node.state,
        "state_reason": node.state_reason,
        "state_since": iso(node.state_since),
        "connected": node.connected,
        "revoked": node.revoked_at is not None,
        "held": node.held,
        "last_seen_age_s": agent.get("silent_s"),
        "agent_version": node.agent_version,
        "segment": node.segment,
        "devices": [_device(device, parts.held_by(device), live.get(device.index)) for device in parts.devices],
        "ranks_running": len(parts.ranks),
        "agent_cpu_ratio": agent.get("cpu_ratio"),
        "agent_rss_bytes": agent.get("rss_bytes"),
        **parts.added,
    }


class Holder(NamedTuple):
    """The unreleased rank on a device. Of a replica of thousands no objects are made."""

    node_id: str
    device_id: str
    job_id: str
    job: str
    replica: int
    rank: int


_HOLDER = ("node_id", "device_id", "replica__attempt__job_id", "replica__attempt__job__name", "replica__index", "rank")


class Shown(NamedTuple):
    """A device's row as people see it; `spare_for` the job that reserved it."""

    id: str
    node_id: str
    index: int
    uuid: str
    model: str
    memory_bytes: int | None
    driver: str
    present: bool
    healthy: bool
    health_reason: str
    risk: float | None
    spare_for: str | None


_SHOWN = (*Shown._fields[:-1], "reservation__job_id")


@dataclass(frozen=True, slots=True)
class Parts:
    """What stands on a node: its devices by index and its unreleased ranks; and what apps above add to
    its summary."""

    devices: list[Shown]
    ranks: list[Holder]
    added: Json

    def held_by(self, device: Shown) -> Holder | None:
        """The rank on it, None when it is free."""
        return next((rank for rank in self.ranks if rank.device_id == device.id), None)


def parts_of(nodes: Sequence[Node]) -> dict[str, Parts]:
    """By node id, in as many queries for many nodes as for one."""
    added, known = beside("node", [node.id for node in nodes]), _ends([node.id for node in nodes])
    for node in nodes:
        added[node.id]["known_end"] = known.get(node.id)
    found = {node.id: Parts([], [], added[node.id]) for node in nodes}
    for device in map(Shown._make, _DEVICES_ON(nodes=found)):
        found[device.node_id].devices.append(device)
    for rank in map(Holder._make, _HOLDERS_ON(nodes=found)):
        found[rank.node_id].ranks.append(rank)
    return found


def _devices(**which: Any) -> QuerySet[Device, Any]:
    return Device.objects.filter(**which).order_by("index").values_list(*_SHOWN)


def holding(at: Any = None) -> QuerySet[KnownEnd]:
    """Known ends of nodes that are not over (`at`: then; None: now), the first to leave first."""
    rows = KnownEnd.objects.filter(Q(back_at=None) | Q(back_at__gt=now() if at is None else at), over_at=None)
    return rows.order_by("leaves_at", "id")


def _ends(node_ids: Sequence[str]) -> Json:
    """By node id what is known of its end: of the first that is not over."""
    found: Json = {}
    for row in holding().filter(node__in=node_ids):
        shown = {"id": row.id, "source": row.source, "reason": row.reason, "who": row.who}
        found.setdefault(row.node_id, shown | {"leaves_at": iso(row.leaves_at), "back_at": iso(row.back_at)})
    return found


def holder_of(device: Device) -> Holder | None:
    """The unreleased rank on it."""
    row = _HOLDER_OF.first(device=device.pk)
    return Holder(*row) if row is not None else None


def _holders(**which: Any) -> QuerySet[Any, Any]:
    """Ranks that hold a device. The table is of `jobs`, above: reached over the relation."""
    ranks = Device._meta.get_field("ranks").related_model
    rows: QuerySet[Any, Any] = ranks._default_manager.filter(released_at=None, **which)
    return rows.order_by("id").values_list(*_HOLDER)


_DEVICES_ON: Prepared[Any] = Prepared(lambda nodes: _devices(node__in=nodes), nodes=Several(TEXT))
_HOLDERS_ON: Prepared[Any] = Prepared(lambda nodes: _holders(node__in=nodes), nodes=Several(TEXT))
_HOLDER_OF: Prepared[Any] = Prepared(lambda device: _holders(device=device)[:1], device=TEXT)


def device_summary(device: Device, *, live: Json | None = None) -> Json:
    """`held_by` the unreleased rank on it; `spare_for` the job that reserved it."""
    reservation = getattr(device, "reservation", None)
    columns = (getattr(device, name) for name in Shown._fields[:-1])
    spare_for = None if reservation is None else reservation.job_id
    return _device(Shown(*columns, spare_for=spare_for), holder_of(device), live)


def _device(device: Shown, rank: Holder | None, live: Json | None) -> Json:
    held_by = None
    if rank is not None:
        held_by = {"job_id": rank.job_id, "job_name": rank.job, "replica": rank.replica, "rank": rank.rank}
    return {
        "id": device.id,
        "node_id": device.node_id,
        "index": device.index,
        "uuid": device.uuid,
        "model": device.model,
        "memory_bytes": device.memory_bytes,
        "driver": device.driver,
        "present": device.present,
        "healthy": device.healthy,
        "health_reason": device.health_reason,
        "risk": device.risk,
        "held_by": held_by,
        "spare_for": device.spare_for,
        "live": live,
    }
