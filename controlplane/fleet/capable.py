"""What may be done to nodes and devices now: their rows as facts for `policy.capabilities`.

Called before each order of a person is carried out, and by the answers that serve `capabilities`.
"""

from typing import Any

from controlplane.fleet.models import Device, Node
from controlplane.fleet.present import Holder, Parts, Shown
from controlplane.policy import capabilities
from controlplane.policy.capabilities import Acts, DeviceFacts, NodeFacts


def node_acts(node: Node, parts: Parts | None = None) -> Acts:
    """`parts`: its devices and ranks, where they were read already."""
    return capabilities.node(_of(node, parts))


def node_stands(node: Node, act: str) -> bool:
    """It is as the act would leave it, and nothing else is against the act."""
    return capabilities.node_stands(_of(node), act)


def _of(node: Node, parts: Parts | None = None) -> NodeFacts:
    if parts is None:
        ranks, barred = (
            node.ranks.filter(released_at=None).count(),
            node.devices.filter(present=True, healthy=False).exists(),
        )
    else:
        ranks, barred = len(parts.ranks), any(device.present and not device.healthy for device in parts.devices)
    return NodeFacts(
        name=node.name,
        state=node.state,
        doubt=node.doubt,
        held=node.held,
        revoked=node.revoked_at is not None,
        ranks=ranks,
        barred=barred,
    )


def device_acts(device: Device | Shown, node: Node, rank: Holder | None) -> Acts:
    """`rank`: the unreleased one on it; None where it is free."""
    where = {"index": device.index, "node": node.name, "revoked": node.revoked_at is not None}
    if rank is None:
        return capabilities.device(DeviceFacts(**where, present=device.present))
    held = {"job": rank.job, "replica": rank.replica, "rank": rank.rank}
    return capabilities.device(DeviceFacts(**where, present=device.present, **held))


def with_acts(view: dict[str, Any], node: Node, parts: Parts) -> dict[str, Any]:
    """A node's summary and its devices', each with what may be done to it."""
    for shown, device in zip(view["devices"], parts.devices, strict=True):
        shown["capabilities"] = device_acts(device, node, parts.held_by(device))
    return view | {"capabilities": node_acts(node, parts)}
