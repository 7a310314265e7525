"""Nodes and devices as the API and the events' patches show them (one shape for both)."""

from typing import Any

from controlplane.fleet.models import Device, Node
from controlplane.runtime.clock import iso

Json = dict[str, Any]


def node_summary(node: Node, *, hot: Json | None = None, devices: list[Device] | None = None) -> Json:
    """`hot`: the sentinel's picture of this node (`bus.read_hot("node:<id>")`), None when it
    is not known; then ages and live readings are null."""
    hot = hot or {}
    rows = devices if devices is not None else list(node.devices.order_by("index"))
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
        "last_seen_age_s": agent.get("silent_s"),
        "agent_version": node.agent_version,
        "segment": node.segment,
        "devices": [device_summary(device, live=live.get(device.index)) for device in rows],
        "ranks_running": node.ranks.filter(released_at=None).count(),
        "agent_cpu_ratio": agent.get("cpu_ratio"),
        "agent_rss_bytes": agent.get("rss_bytes"),
    }


def device_summary(device: Device, *, live: Json | None = None) -> Json:
    """`held_by` the unreleased rank on it; `spare_for` the job that reserved it."""
    rank = device.ranks.filter(released_at=None).select_related("replica__attempt").first()
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
