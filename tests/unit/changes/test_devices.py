"""What a node tells of its devices means for the fleet, and for the job that runs on them."""

from dataclasses import replace

import pytest

from controlplane.changes import rows as facts
from controlplane.changes.hearing import hear
from controlplane.changes.kinds import Change, DeviceKey, Judge, Lose, Raise, Wake
from controlplane.changes.speaker import Speaker
from controlplane.policy.signals.devices import DeviceGone, XidError
from controlplane.protocol.errors import IdentityMismatch
from controlplane.protocol.frames import DeviceLost, EventBody, XidSeen
from controlplane.protocol.samples import XidEvent
from controlplane.simulator.rows import JOB_ID

from .builders import NODES, World, placed

FATAL, OF_THE_PROGRAM = 79, 31
AT_S = 990.0
HELD, FREE = NODES[1], NODES[4]


def xid(number: int, index: int = 0, detail: str = "") -> XidSeen:
    return XidSeen(XidEvent(index=index, xid=number, detail=detail))


def does(world: World, body: EventBody, node: str = HELD, at_s: float = AT_S) -> list[Change]:
    changes = hear(world.store, body, Speaker(node, node, at_s))
    world.store.commit(changes, seen_s=at_s)
    return changes


def test_a_fatal_xid_bars_the_device_and_wakes_who_runs_on_it() -> None:
    world = placed()
    raised, judged, woken = does(world, xid(FATAL))
    assert isinstance(raised, Raise) and isinstance(raised.found, XidError)
    assert (raised.found.job_id, raised.found.place["device_index"]) == (JOB_ID, 0)
    assert isinstance(judged, Judge) and (judged.subject, judged.works) == (DeviceKey(HELD, 0), False)
    assert woken == Wake(job=JOB_ID)
    device = world.store.device(HELD, 0)
    assert device is not None and not device.works


def test_a_device_that_does_not_work_already_is_not_judged_again() -> None:
    world = placed()
    does(world, DeviceLost(0, "uuid"))
    assert [type(change) for change in does(world, xid(FATAL))] == [Raise, Wake]


def test_an_xid_that_is_not_fatal_by_itself_is_the_policys_to_judge() -> None:
    assert [type(change) for change in does(placed(), xid(OF_THE_PROGRAM))] == [Raise, Wake]


def test_how_often_an_xid_came_is_told_with_it() -> None:
    world = placed()
    for at_s, node, wanted in ((1.0, HELD, (1, 0)), (2.0, HELD, (2, 0)), (3.0, FREE, (1, 1)), (4.0, HELD, (3, 1))):
        raised = does(world, xid(OF_THE_PROGRAM), node, at_s)[0]
        assert isinstance(raised, Raise)
        assert (raised.found.evidence["repeats"], raised.found.evidence["elsewhere"]) == wanted


@pytest.mark.parametrize("body", [xid(FATAL), DeviceLost(0, "uuid")])
def test_a_device_that_nobody_uses_is_nobodys(body: EventBody) -> None:
    world = placed()
    changes = does(world, body, FREE)
    (found,) = [change.found for change in changes if isinstance(change, Raise)]
    assert found.job_id is None
    assert not [change for change in changes if isinstance(change, Wake)]


def test_a_device_that_is_gone_is_lost_and_found_once() -> None:
    world = placed()
    lost, raised, woken = does(world, DeviceLost(1, "uuid"))
    assert lost == Lose(DeviceKey(HELD, 1), "fell off the bus") and woken == Wake(job=JOB_ID)
    assert isinstance(raised, Raise) and isinstance(raised.found, DeviceGone)
    does(world, DeviceLost(1, "uuid"))
    assert [signal.kind for signal in world.rows.signals.values()] == ["device_lost"]
    assert world.rows.nodes[HELD].lost_devices == {1}


@pytest.mark.parametrize("body", [xid(FATAL, index=7), DeviceLost(7, "uuid")])
def test_a_node_speaks_for_its_own_devices_alone(body: EventBody) -> None:
    with pytest.raises(IdentityMismatch, match="device 7 is none of this node's"):
        does(placed(), body)


def test_a_device_knows_its_holder_as_long_as_a_process_is_not_proved_gone() -> None:
    world = placed()
    held = world.store.device(HELD, 0)
    assert held == facts.Device(f"{HELD}-0", reset_wanted=False, model="", works=True, holder=JOB_ID)
    world.rows.replicas[1].prove_gone(0)
    assert world.store.device(HELD, 0) == replace(held, holder="")
