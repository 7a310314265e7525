"""What a node tells of its devices means. A finding about one is the fleet's, whoever runs on it; that job is woken."""

from collections.abc import Callable, Iterator
from typing import Any

from controlplane.changes.kinds import Change, DeviceKey, Judge, Lose, Raise, Wake
from controlplane.changes.rows import Device, Rows
from controlplane.changes.speaker import Speaker
from controlplane.policy.signals.devices import DeviceGone, XidError
from controlplane.policy.xid import XidBucket, link_of, look_up
from controlplane.protocol.errors import IdentityMismatch
from controlplane.protocol.frames import DeviceLost, XidSeen

DETAIL_CHARS = 500


def _device_of(rows: Rows, index: int, speaker: Speaker) -> Device:
    device = rows.device(speaker.node_id, index)
    if device is None:
        raise IdentityMismatch(f"device {index} is none of this node's")
    return device


def _xid(rows: Rows, body: XidSeen, speaker: Speaker) -> Iterator[Change]:
    """One that is fatal by itself bars the device at once; what others call for is the policy's."""
    xid = body.xid
    device, verdict = _device_of(rows, xid.index, speaker), look_up(xid.xid)
    link = link_of(xid.xid, xid.detail)
    found = XidError(
        job_id=device.holder or None,
        node_id=speaker.node_id,
        device_index=xid.index,
        xid=xid.xid,
        at_s=speaker.at_s,
        node=speaker.node,
        detail=xid.detail[:DETAIL_CHARS],
        meaning=verdict.description,
        uuid=device.uuid,
        model=device.model,
        more=dict(rows.xid_counts(speaker.node_id, xid.index, xid.xid, at_s=speaker.at_s, link=link)),
    )
    yield Raise(found)
    if verdict.bucket is XidBucket.FATAL and device.works:
        yield Judge(DeviceKey(speaker.node_id, xid.index), False, f"XID {xid.xid}: {verdict.description}")
    yield from _woken(device)


def _lost(rows: Rows, body: DeviceLost, speaker: Speaker) -> Iterator[Change]:
    device = _device_of(rows, body.index, speaker)
    yield Lose(DeviceKey(speaker.node_id, body.index), "fell off the bus")
    found = DeviceGone(
        job_id=device.holder or None,
        node_id=speaker.node_id,
        device_index=body.index,
        node=speaker.node,
        uuid=body.uuid,
    )
    yield Raise(found)
    yield from _woken(device)


def _woken(device: Device) -> Iterator[Change]:
    if device.holder:
        yield Wake(job=device.holder)


OF_DEVICES: dict[type, Callable[[Rows, Any, Speaker], Iterator[Change]]] = {XidSeen: _xid, DeviceLost: _lost}
