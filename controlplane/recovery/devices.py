"""Devices that are kept from work, and their way back: barred, reset, returned.

Called by `apply` (what was decided), by `answers` (what an agent made of a reset), by `facts`
(how often an XID came) and by the API (a person orders a reset). Decides nothing.
"""

from datetime import datetime, timedelta

from controlplane.access import services as access
from controlplane.dispatch import services as dispatch
from controlplane.dispatch.models import Command
from controlplane.fleet.capable import device_acts
from controlplane.fleet.models import Device
from controlplane.fleet.services import FOR_DEVICES, bar_device, return_device, set_device_health
from controlplane.jobs.models import Rank
from controlplane.policy import plan
from controlplane.policy.readings import READINGS
from controlplane.policy.xid import WINDOW_S
from controlplane.protocol import commands
from controlplane.protocol.states import CommandState
from controlplane.recovery.models import Signal
from controlplane.runtime import events
from controlplane.runtime.clock import now
from controlplane.runtime.errors import NotFound, refuse
from controlplane.runtime.locks import lock_fleet

RESET_TTL_S = 60.0
RULE = "device_fault"
XID_ENDED_IT = "xid_fatal"


def reason_of(rule: str, code: str, sentence: str) -> str:
    """Why a node leaves service, so that it can be told who may bring it back."""
    return f"{sentence} {FOR_DEVICES}" if rule == RULE or code == XID_ENDED_IT else sentence


def bar(action: plan.BarDevice, sentence: str) -> None:
    """Start nothing on it. A device that is no row any more needs no bar."""
    device = _find(action.node_id, action.device_index)
    if device is not None:
        bar_device(device, sentence, reset=action.reset)


def order_reset(action: plan.ResetDevice, decision_id: str) -> None:
    """One order for one wish."""
    device = _find(action.node_id, action.device_index)
    if device is None or device.reset_wanted_at is None:
        return
    Device.objects.filter(pk=device.pk).update(reset_wanted_at=None)
    body = commands.ResetDevice(device_index=device.index, uuid=device.uuid)
    dispatch.enqueue(body, node_id=device.node_id, decision_id=decision_id, ttl_s=RESET_TTL_S)


def reset_by_person(device_id: str, *, reason: str, actor: str, request_id: str = "") -> Device:
    """Bar the device, and have it reset as soon as its node is connected, by the order that the policy
    gives too. Raises NotFound, or Conflict while a rank is on it, or where no reset can help."""
    with events.unit_of_work():
        lock_fleet()
        device = Device.objects.select_related("node").filter(pk=device_id, node__removed_at=None).first()
        if device is None:
            raise NotFound(f"no device {device_id!r}")
        held = Rank.objects.filter(device=device, released_at=None).select_related("replica__attempt__job").first()
        refuse(device_acts(device, device.node, held)["reset"])
        access.audit(
            actor, "device.reset", device.node_id, reason=reason, request_id=request_id,
            data={"device_index": device.index, "uuid": device.uuid},
        )  # fmt: skip
        bar_device(device, f"{actor} requested a reset: {reason}", reset=True)
    return device


def reset_answered(command: Command) -> None:
    """A device that was reset returns; one that could not be is a person's."""
    device = _find(command.node_id, command.body["device_index"])
    if device is None or device.uuid != command.body["uuid"]:
        return
    if command.state == CommandState.SUCCEEDED:
        return_device(device, "it was reset")
    else:
        detail = command.detail or command.state
        set_device_health(device, healthy=False, reason=f"It could not be reset: {detail}. A person must inspect it.")


def reset_unanswered(command: Command) -> None:
    """Whether it was done is not known: it is wanted again."""
    with events.unit_of_work():
        Device.objects.filter(node_id=command.node_id, index=command.body["device_index"]).update(reset_wanted_at=now())


def reading_ended(device: Device, reading: str) -> None:
    """A state that kept the device from work is over. What else bars it stands: the first reason
    does, and a reset that it waits for."""
    words = READINGS[reading].what
    if not device.healthy and device.reset_wanted_at is None and words in device.health_reason:
        return_device(device, f"no more {words}")


def xid_counts(node_id: str, index: int, xid: int, at: datetime) -> dict[str, int]:
    """`repeats` of this XID on this device within a day, this one included, and how many other
    devices had it (`elsewhere`)."""
    since = at - timedelta(seconds=WINDOW_S)
    rows = Signal.objects.filter(kind="xid", value=float(xid), seen_at__gte=since, seen_at__lte=at)
    here = rows.filter(node_id=node_id, device_index=index).count()
    places = set(rows.values_list("node_id", "device_index").distinct()) - {(node_id, index)}
    return {"repeats": here + 1, "elsewhere": len(places)}


def _find(node_id: str, index: int) -> Device | None:
    return Device.objects.select_related("node").filter(node_id=node_id, index=index).first()
