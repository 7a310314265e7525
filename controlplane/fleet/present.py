"""Nodes and devices as the API and the events' patches show them (one shape for both)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from controlplane.fleet.models import Device, Node
from controlplane.runtime.beside import beside
from controlplane.runtime.clock import iso
from controlplane.runtime.pieces import batched

Json = dict[str, Any]
DEVICES_A_QUERY = 500


def node_summary(node: Node, *, hot: Json | None = None, parts: "Parts | None" = None) -> Json:
    """`hot`: the sentinel's picture of this node (`bus.read_hot("node:<id>")`), None when it
    is not known; then ages and live readings are null. `parts`: its devices and ranks, where
    they were read for many nodes at once."""
    hot = hot or {}
    parts = parts or parts_of([node])[node.id]
    live = {sample["index"]: sample for sample in hot.get("devices", [])}
    agent = hot.get("agent", {})
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


@dataclass(frozen=True, slots=True)
class Parts:
    """What stands on a node: its devices by index and its unreleased ranks (rows of `jobs`); and
    what apps above add to its summary."""

    devices: list[Device]
    ranks: list[Any]
    added: Json

    def held_by(self, device: Device) -> Any | None:
        """The rank on it, None when it is free."""
        return next((rank for rank in self.ranks if rank.device_id == device.id), None)


def parts_of(nodes: Sequence[Node]) -> dict[str, Parts]:
    """By node id, in as many queries for many nodes as for one."""
    added = beside("node", [node.id for node in nodes])
    found = {node.id: Parts([], [], added[node.id]) for node in nodes}
    for device in Device.objects.filter(node__in=found).select_related("reservation").order_by("index"):
        found[device.node_id].devices.append(device)
    for rank in _unreleased().filter(node__in=found):
        found[rank.node_id].ranks.append(rank)
    return found


def _unreleased() -> Any:
    """Ranks that hold a device. The table is of `jobs`, above: reached over the relation."""
    ranks = Device._meta.get_field("ranks").related_model
    return ranks._default_manager.filter(released_at=None).select_related("replica__attempt__job").order_by("id")


def device_summary(device: Device, *, live: Json | None = None) -> Json:
    """`held_by` the unreleased rank on it; `spare_for` the job that reserved it."""
    return _device(device, _unreleased().filter(device=device).first(), live)


def device_summaries(ids: Sequence[str]) -> dict[str, Json]:
    """`device_summary` of many, by id."""
    found = {}
    for some in batched(ids, DEVICES_A_QUERY):
        holders = {rank.device_id: rank for rank in _unreleased().filter(device_id__in=some)}
        for device in Device.objects.filter(pk__in=some).select_related("reservation"):
            found[device.id] = _device(device, holders.get(device.id), None)
    return found


def _device(device: Device, rank: Any | None, live: Json | None) -> Json:
    held_by = None
    if rank is not None:
        held_by = {"job_id": rank.replica.attempt.job_id, "replica": rank.replica.index, "rank": rank.rank}
    reservation = getattr(device, "reservation", None)
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
        "spare_for": None if reservation is None else reservation.job_id,
        "live": live,
    }
