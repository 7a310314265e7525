"""V4: twenty frames of invented devices blinded the sentinel for the whole fleet."""

import contextlib
import time
import tracemalloc
from typing import Any

import msgspec
import pytest
from asgiref.sync import sync_to_async
from websockets.exceptions import ConnectionClosed

from controlplane.api.overview import health
from controlplane.fleet.models import Node
from controlplane.protocol.codec import encode_frame
from controlplane.protocol.frames import AgentFrame, RankStatus
from controlplane.protocol.launch import RankRef
from controlplane.protocol.samples import DeviceInfo, DeviceSample
from controlplane.protocol.states import Phase, RankState, Section
from controlplane.recovery import ingest
from controlplane.runtime import beats
from controlplane.runtime.models import FrameCounter, ProcessBeat
from controlplane.sentinel.fleetmap import read_map
from controlplane.sentinel.heard import Heard
from controlplane.sentinel.history import History
from controlplane.sentinel.live_state import GROW, LiveState
from tests.integration.backend.builders import hello, live_ranks, make_fleet, ref_of, run_job
from tests.integration.backend.conftest import eventually
from tests.integration.backend.fleet_of_cores import World
from tests.integration.backend.servers import Stack

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(240)]

FRAMES = 20
DEVICES_A_FRAME = 8_000


def invented(number: int, *, session: str = "web.n1", at_s: float = 0.0) -> Heard:
    """A frame of node_1 with devices that it never listed."""
    first = 100 + number * DEVICES_A_FRAME
    devices = tuple(DeviceSample(index=first + n, temperature_c=50.0) for n in range(DEVICES_A_FRAME))
    frame = AgentFrame(seq=number + 1, uptime_s=float(number), devices=devices)
    return Heard(node_id="node_1", session_id=session, at_s=at_s, frame=frame)


def test_the_sentinels_picture_and_history_do_not_grow_with_what_a_node_invents() -> None:
    make_fleet(2)
    fleet = read_map()
    live_state, kept = LiveState(), History(60.0)
    live_state.expect(fleet.nodes, fleet.devices, fleet.placed)
    frames = [invented(n, at_s=float(n)) for n in range(FRAMES)]
    tracemalloc.start()
    kept.take(live_state.take(frames), live_state)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert not live_state.slots
    assert len(live_state.risk) == GROW
    assert not any(row for pending in kept.nodes.values() for row in pending.rows)
    assert live_state.dropped["node_1", "unknown_device"] == FRAMES * DEVICES_A_FRAME
    assert peak_bytes < 64 << 20


def test_a_node_cannot_speak_for_ranks_of_another_in_its_frames() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    row = next(row for row in live_ranks(job) if row.node.name != "n1")
    tables = read_map()
    assert tables.placed[ref_of(row)] == row.node_id
    live_state = LiveState()
    live_state.expect(tables.nodes, tables.devices, tables.placed)
    forged = tuple(status_of(ref) for ref in (ref_of(row), *(RankRef("job_x", 1, n, 1, 0) for n in range(5_000))))
    for seq, at_s in ((1, 0.0), (2, 10.0)):
        frame = AgentFrame(seq=seq, uptime_s=1.0, ranks=forged)
        live_state.take([Heard(node_id=fleet.nodes["n1"].id, session_id="s", at_s=at_s, frame=frame)])
    assert not live_state.ranks
    assert live_state.dropped[fleet.nodes["n1"].id, "unknown_rank"] == len(forged)


def status_of(ref: RankRef) -> RankStatus:
    """What a frame would say of a rank that trains."""
    return RankStatus(
        ref=ref, state=RankState.TRAINING, pid=1, device_index=0, section=Section.STEP, phase=Phase.COMPUTE,
        step=1, phase_age_s=0.0, silent_s=0.0,
    )  # fmt: skip


def test_a_node_has_no_more_devices_than_a_machine_can_hold_however_often_it_says_hello() -> None:
    fleet = make_fleet(1)
    node = fleet.nodes["n1"]
    for round_ in range(3):
        infos = tuple(
            DeviceInfo(index=index % 300, uuid=f"GPU-{index}", model="T", memory_bytes=1, driver="simulated")
            for index in range(100 * round_, 100 * round_ + 100)
        )
        said = hello("n1")
        ingest.open_session(node.id, f"web.n1.{round_}", msgspec.structs.replace(said, devices=(*infos, infos[0])))
    assert node.devices.count() <= 64
    assert FrameCounter.objects.filter(node_name="n1", reason="too_many_devices").exists()


def test_health_tells_blind_while_only_the_thread_that_beats_lives() -> None:
    beats.beat("sentinel", "sentinel:a", {"leads": True, "blind": False, "late_s": 0.1})
    assert health()["sentinel"]["ok"]
    beats.beat("sentinel", "sentinel:a", {"leads": True, "blind": False, "late_s": 12.0})
    told = health()["sentinel"]
    assert not told["ok"]
    assert "12 s late" in told["detail"]
    beats.beat("sentinel", "sentinel:a", {"leads": True, "blind": True, "why": "redis is away", "late_s": 0.0})
    assert "redis is away" in health()["sentinel"]["detail"]
    beats.beat("sentinel", "sentinel:b", {"leads": False, "blind": False, "late_s": 0.0})
    assert "redis is away" in health()["sentinel"]["detail"], "the one that leads is the one that counts"


async def test_twenty_frames_of_invented_devices_leave_the_fleet_in_sight(world: World, stack: Stack) -> None:
    evil = world.agents[0]

    def sentinel() -> dict[str, Any]:
        row = ProcessBeat.objects.filter(role="sentinel").order_by("-beat_at").first()
        return row.detail if row is not None else {}

    await eventually("the sentinel leads", lambda: sentinel().get("leads"), stack=stack)
    for number in range(1, FRAMES + 1):
        samples = tuple(DeviceSample(index=number * 60 + n) for n in range(60))
        await evil.send_raw(encode_frame(AgentFrame(seq=10_000 + number, uptime_s=1.0, devices=samples)))
    refused_before = len(evil.refused)
    for number in range(FRAMES):
        samples = tuple(DeviceSample(index=n) for n in range(200))
        with contextlib.suppress(ConnectionClosed):
            await evil.send_raw(encode_frame(AgentFrame(seq=20_000 + number, uptime_s=1.0, devices=samples)))
    reasons = FrameCounter.objects.filter(node_name=evil.name)
    await eventually(
        "invented devices are counted", lambda: reasons.filter(reason="unknown_device").exists(), stack=stack
    )
    await eventually(
        "frames with too many are refused", lambda: reasons.filter(reason="malformed_frame").exists(), stack=stack
    )
    await eventually("it was disconnected", lambda: len(evil.refused) > refused_before, stack=stack)
    began = time.time()

    def sees() -> bool:
        row = ProcessBeat.objects.filter(role="sentinel").order_by("-beat_at").first()
        return row is not None and row.beat_at.timestamp() > began and not row.detail["blind"]

    await eventually("the sentinel sees", sees, stack=stack)
    detail = await sync_to_async(sentinel)()
    known = await sync_to_async(Node.objects.count)() * 2
    assert detail["devices"] <= known
    assert (await sync_to_async(health)())["sentinel"]["ok"]
