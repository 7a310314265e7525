"""Nodes and devices: enrolment, sessions, state. The only writer of this app's rows."""

from collections.abc import Mapping, Sequence

from django.db.models import Q

from controlplane.access import services as access
from controlplane.access.actors import in_words
from controlplane.changes.acts import FOR_DEVICES
from controlplane.fleet import ends, flapping, sessions
from controlplane.fleet.capable import node_acts, node_stands
from controlplane.fleet.models import Device, Node, NodeLife
from controlplane.fleet.present import device_summary
from controlplane.fleet.publish import publish_node
from controlplane.protocol.frames import PROTOCOL_MAX
from controlplane.protocol.samples import DeviceInfo
from controlplane.protocol.states import NodeState
from controlplane.runtime import counters, events, guard
from controlplane.runtime.clock import now
from controlplane.runtime.errors import NotFound, refuse
from controlplane.runtime.ids import new_id
from controlplane.runtime.locks import lock_row
from controlplane.runtime.prepared import TEXT, Prepared

_DEVICE: Prepared[Device] = Prepared(
    lambda device: Device.objects.filter(pk=device).select_related("reservation"), device=TEXT
)
MAX_DEVICES_A_NODE = 64
"""Ends the reason of a node that left service for findings about devices, by no person's order."""
TAKES_WORK = (NodeState.READY, NodeState.DEGRADED)


def transition_node(node: Node, to: str, reason: str, *, before_deaf: Mapping[str, str] | None = None) -> None:
    """Move a node in its table, with the event. `before_deaf`: where it returns to once its events
    arrive again; whatever else moves it forgets that. Raises IllegalTransition, LostRace."""
    before = node.state
    guard.move(node, "node", to, state_reason=reason, before_deaf=before_deaf)
    publish_node(node, "node.state", f"Node {node.name}: {before} -> {to}. {reason}")


def take_out(node: Node, to: str, reason: str) -> None:
    """What policy decides about a node, its row locked. A node that is quarantined for its missing
    events alone is from now on quarantined for this too, so that their arrival ends nothing."""
    if node.state != to:
        transition_node(node, to, reason)
    elif to == NodeState.QUARANTINED and node.before_deaf is not None:
        node.before_deaf, node.state_reason = None, f"{node.state_reason}; {reason}"
        node.save(update_fields=["before_deaf", "state_reason"])
        publish_node(node, "node.state", f"Node {node.name} stays quarantined. {reason}")


def cordon(node_id: str, *, reason: str, actor: str, request_id: str = "") -> Node:
    """Take no new work here. Where that is so already nothing changes."""
    return _by_person(node_id, NodeState.CORDONED, "node.cordon", reason, actor, request_id)


def uncordon(node_id: str, *, reason: str, actor: str, request_id: str = "") -> Node:
    """Let work return to the node and its devices; where it is there already nothing changes. Raises Conflict where
    an administrator must decide who the node is, or has not admitted it yet (`policy.capabilities`)."""
    return _by_person(node_id, NodeState.READY, "node.uncordon", reason, actor, request_id)


def _by_person(node_id: str, to: NodeState, action: str, reason: str, actor: str, request_id: str) -> Node:
    with events.unit_of_work():
        node = _get(node_id)
        act = action.removeprefix("node.")
        if node_stands(node, act):
            return node
        refuse(node_acts(node)[act])
        access.audit(
            actor, action, node_id, reason=reason, request_id=request_id,
            before={"state": node.state}, after={"state": to.value},
        )  # fmt: skip
        if node.state != to:
            transition_node(node, to, f"{reason} ({in_words(actor)})")
        if to == NodeState.READY:
            heal_devices(node)
    return node


def heal_devices(node: Node) -> None:
    """A person vouches for the node: its present devices count as healthy again."""
    node.devices.update(reset_wanted_at=None)
    for device in node.devices.filter(healthy=False, present=True):
        set_device_health(device, healthy=True, reason="")


def open_session(
    node: Node, *, session_id: str, boot_id: str, journal_id: str, version: str, segment: str = ""
) -> None:
    """Note the live socket (the newest wins; `fleet.identity` has admitted it). Event numbers go on
    where that journal ended."""
    news = sessions.is_news(node, boot_id, journal_id, version, segment)
    node.connected, node.session_id, node.connected_at = True, session_id, now()
    if node.journal_id != journal_id:
        _keep_seq(node)
        node.last_event_seq = _kept_seq(node, journal_id)
        node.gap_since = None
    ends.booted(node, boot_id[:64])
    node.boot_id, node.journal_id, node.agent_version = boot_id[:64], journal_id[:64], version[:40]
    node.segment = sessions.segment_of(node, segment)
    node.save(
        update_fields=[
            "connected", "session_id", "connected_at", "boot_id", "journal_id", "agent_version", "segment",
            "last_event_seq", "gap_since",
        ]
    )  # fmt: skip
    if news:
        flapping.tell(node, "node.connected", f"Node {node.name} is connected.")


def note_revision(node: Node, newest: int) -> None:
    """The revision of the protocol that its agent and this server speak; `newest` that the agent does."""
    node.revision = min(PROTOCOL_MAX, newest)
    node.save(update_fields=["revision"])


def _keep_seq(node: Node) -> None:
    """Where this journal ended, should the node come back to it."""
    if node.journal_id:
        NodeLife.objects.update_or_create(
            node=node,
            boot_id=node.boot_id,
            journal_id=node.journal_id,
            defaults={"last_event_seq": node.last_event_seq, "last_seen_at": now()},
        )


def _kept_seq(node: Node, journal_id: str) -> int:
    """The newest event applied of a journal; 0 for one that is new."""
    kept = NodeLife.objects.filter(node=node, journal_id=journal_id[:64])
    return kept.order_by("-last_event_seq").values_list("last_event_seq", flat=True).first() or 0


def devices_differ(known: Mapping[int, Sequence[object]], infos: Sequence[DeviceInfo]) -> bool:
    """`sync_devices` would write something. `known`: of each device, by index, what `LISTED` names."""
    listed = {info.index: (*_values_of(info).values(), True) for info in infos}
    if len(listed) != len(infos) or any(known.get(index) != values for index, values in listed.items()):
        return True
    return bool(infos) and any(present for index, (*_, present) in known.items() if index not in listed)


def _values_of(info: DeviceInfo) -> dict[str, object]:
    return {
        "uuid": info.uuid[:80],
        "model": info.model[:80],
        "memory_bytes": info.memory_bytes,
        "driver": info.driver[:16],
    }


LISTED = ("uuid", "model", "memory_bytes", "driver", "present")
"""Of a device what its driver's list says of it, as a row has it."""


def reopen_session(node_id: str, session_id: str) -> bool:
    """The process that holds the socket says that it lives after all (its beat was late).
    False when a newer session had replaced it."""
    with events.unit_of_work():
        opened = Node.objects.filter(pk=node_id, session_id=session_id, connected=False).update(connected=True)
        if opened:
            node = _get(node_id)
            publish_node(node, "node.connected", f"Node {node.name} is connected after all: its web process was late.")
    return bool(opened)


def sync_devices(node: Node, infos: Sequence[DeviceInfo]) -> str:
    """Make the rows say what the driver lists. A device that is not listed is absent, never
    deleted (ranks refer to it); a replaced one (other uuid) is healthy again. Of new ones the caller makes the event,
    of these words ("": there are none)."""
    known = {device.index: device for device in node.devices.all()}
    before, room = len(known), MAX_DEVICES_A_NODE - len(known)
    new: list[Device] = []
    for info in _each_once(node, infos):
        device = known.pop(info.index, None)
        if device is None and room <= len(new):
            counters.count(node.name, "too_many_devices", detail=f"device {info.index}: {MAX_DEVICES_A_NODE} are known")
            continue
        values = _values_of(info)
        if device is None:
            new.append(Device(id=new_id("dev"), node=node, index=info.index, **values))
            continue
        if not device.present:
            set_device_present(device)
        if device.uuid != values["uuid"]:
            values |= {"healthy": True, "health_reason": "", "risk": None, "reset_wanted_at": None, "uuid_since": now()}
        if all(getattr(device, name) == value for name, value in values.items()):
            continue
        Device.objects.filter(pk=device.pk).update(**values)
        publish_device(device, "device.changed", f"{node.name} device {info.index} changed.")
    for device in known.values() if infos else ():
        if device.present:
            mark_device_lost(device, "not listed by its driver")
    Device.objects.bulk_create(new)
    return _words_of(new, more=before > 0)


def _words_of(new: Sequence[Device], *, more: bool) -> str:
    if len(new) == 1:
        return f"device {new[0].index}: {new[0].model}"
    models = ", ".join(sorted({device.model for device in new}))
    return f"{len(new)} {'more ' if more else ''}devices: {models}" if new else ""


def _each_once(node: Node, infos: Sequence[DeviceInfo]) -> list[DeviceInfo]:
    """The first of each index, as many as a node may have; the others are counted."""
    first: dict[int, DeviceInfo] = {}
    for info in infos:
        first.setdefault(info.index, info)
    kept = list(first.values())[:MAX_DEVICES_A_NODE]
    if len(kept) < len(infos):
        counters.count(node.name, "too_many_devices", number=len(infos) - len(kept), detail=f"{len(infos)} listed")
    return kept


def mark_device_lost(device: Device, reason: str) -> None:
    """It fell off the bus."""
    Device.objects.filter(pk=device.pk).update(present=False, healthy=False, health_reason=reason)
    publish_device(device, "device.lost", f"Device {device.index} of {device.node.name} is gone: {reason}.")


def set_device_health(device: Device, *, healthy: bool, reason: str) -> bool:
    """True when it changed something."""
    changed = (
        Device.objects.filter(pk=device.pk)
        .filter(~Q(healthy=healthy) | ~Q(health_reason=reason))
        .update(healthy=healthy, health_reason=reason)
    )
    if changed:
        word = "healthy" if healthy else "not healthy"
        publish_device(device, "device.health", f"Device {device.index} of {device.node.name} is {word}. {reason}")
    return bool(changed)


def bar_device(device: Device, reason: str, *, reset: bool) -> None:
    """Start nothing here any more. A device that waits for a reset already goes on waiting; the
    first reason stands, for it is what a reset or a person must answer."""
    wanted_at = device.reset_wanted_at or (now() if reset else None)
    if wanted_at != device.reset_wanted_at:
        Device.objects.filter(pk=device.pk).update(reset_wanted_at=wanted_at)
    if device.healthy:
        set_device_health(device, healthy=False, reason=reason)


def return_device(device: Device, why: str) -> None:
    """What kept it away is over, and its node may follow."""
    Device.objects.filter(pk=device.pk).update(reset_wanted_at=None)
    set_device_health(device, healthy=True, reason="")
    _return_node(device, why)


def _return_node(device: Device, why: str) -> None:
    """It left service for its devices alone, and none of them is left."""
    node = _get(device.node_id)
    still = node.devices.filter(healthy=False, present=True).exists()
    left = node.state in (NodeState.CORDONED, NodeState.DEGRADED) and FOR_DEVICES in node.state_reason
    if left and not still:
        transition_node(node, NodeState.READY, f"Device {device.index}: {why}.")


def set_device_risk(device: Device, risk: float | None) -> None:
    """The newest score that crossed a border."""
    Device.objects.filter(pk=device.pk).update(risk=risk)
    shown = "unknown" if risk is None else f"{risk:.2f}"
    publish_device(device, "device.risk", f"Risk of device {device.index} of {device.node.name}: {shown}.")


def set_device_present(device: Device) -> None:
    """It is there again, by its samples or its driver's list, after it had been away."""
    if Device.objects.filter(pk=device.pk, present=False).update(present=True, healthy=True, health_reason=""):
        publish_device(device, "device.back", f"Device {device.index} of {device.node.name} is back.")
        _return_node(device, "it is back")


def publish_device(device: Device, kind: str, sentence: str, *, job_id: str = "") -> None:
    """An event with the device's summary as this unit of work leaves it."""
    events.publish(
        kind,
        sentence,
        node_id=device.node_id,
        job_id=job_id,
        entity="device",
        entity_id=device.id,
        patch=lambda: device_summary(_DEVICE.get(device=device.id)),
    )


def _get(node_id: str) -> Node:
    node = lock_row(Node, node_id)
    if node is None:
        raise NotFound(f"no node {node_id!r}")
    return node
