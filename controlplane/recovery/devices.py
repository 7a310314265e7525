"""Devices that are kept from work, and their way back: barred, reset, returned.

Called by `rows` (how often an XID came) and by the API (a person orders a reset). What an agent made of a
reset is `changes.answers`'s to say. Decides nothing.
"""

from datetime import datetime, timedelta

from controlplane.access import services as access
from controlplane.access.actors import in_words
from controlplane.fleet.capable import device_acts
from controlplane.fleet.models import Device
from controlplane.fleet.present import holder_of
from controlplane.fleet.services import bar_device, return_device
from controlplane.policy.readings import READINGS
from controlplane.policy.xid import WINDOW_S
from controlplane.recovery.models import Signal
from controlplane.runtime import events
from controlplane.runtime.errors import NotFound, refuse
from controlplane.runtime.locks import lock_fleet


def reset_by_person(device_id: str, *, reason: str, actor: str, request_id: str = "") -> Device:
    """Bar the device, and have it reset as soon as its node is connected, by the order that the policy
    gives too. Raises NotFound, or Conflict while a rank is on it, or where no reset can help."""
    with events.unit_of_work():
        lock_fleet()
        device = Device.objects.select_related("node").filter(pk=device_id, node__removed_at=None).first()
        if device is None:
            raise NotFound(f"no device {device_id!r}")
        refuse(device_acts(device, device.node, holder_of(device))["reset"])
        access.audit(
            actor, "device.reset", device.node_id, reason=reason, request_id=request_id,
            data={"device_index": device.index, "uuid": device.uuid},
        )  # fmt: skip
        bar_device(device, f"{in_words(actor)} requested a reset: {reason}", reset=True)
    return device


def reading_ended(device: Device, reading: str) -> None:
    """A state that kept the device from work is over. What else bars it stands: the first reason
    does, and a reset that it waits for."""
    limit = READINGS[reading]
    if not device.healthy and device.reset_wanted_at is None and limit.is_in(device.health_reason):
        return_device(device, f"no more {limit.what}")


def xid_counts(node_id: str, index: int, xid: int, at: datetime, *, link: int | None = None) -> dict[str, int]:
    """`repeats` of this XID on this device within a day, this one included, and how many other
    devices had it (`elsewhere`). Of an NVLink (`link`) only those on the same link of it are repeats."""
    since = at - timedelta(seconds=WINDOW_S)
    rows = Signal.objects.filter(kind="xid", value=float(xid), seen_at__gte=since, seen_at__lte=at)
    of_link = rows if link is None else rows.filter(evidence__link=link)
    here = of_link.filter(node_id=node_id, device_index=index).count()
    places = set(rows.values_list("node_id", "device_index").distinct()) - {(node_id, index)}
    counts = {"repeats": here + 1, "elsewhere": len(places)}
    return counts if link is None else {**counts, "link": link}
