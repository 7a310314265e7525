"""An agent of a load test over a real socket: it says what a real agent says, in the same numbers and answers."""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from agents.errors import EnrolmentError
from agents.link.enrol import Facts
from agents.link.server import Server as Where
from controlplane.bench.agent import NO_PROCESSES, Agent, Node
from controlplane.bench.hostile import BURST_FRAMES, FAR_DEVICE, GAP_EVENTS, Hostile
from controlplane.bench.identity import Registrar
from controlplane.bench.readings import HEATED_C, Readings
from controlplane.bench.script import Act, Kind
from controlplane.bench.tally import Tally
from controlplane.protocol.commands import ResetDevice
from controlplane.protocol.frames import NodeChecked, Refused, XidSeen
from tests.integration.agents.conftest import start_order
from tests.integration.agents.server import JOIN_TOKEN, Server

READINGS = Readings(devices=2, interval_s=0.05, seed=1)


def tally() -> Tally:
    return Tally(random.Random(1))


@asynccontextmanager
async def playing(server: Server, counted: Tally, kind: type[Agent] = Agent) -> AsyncIterator[Agent]:
    """An enrolled agent with a session."""
    registrar = Registrar(server.url.replace("ws", "http", 1), behind_tls=False)
    facts = Facts(node_name="bench-1-00001", boot_id="boot", machine_id="m", segment="", devices=READINGS.infos("n"))
    identity = await asyncio.to_thread(registrar.enrol, facts, JOIN_TOKEN)
    agent = kind(Node(1, "bench-1-00001", "boot", "jrn"), identity, Where(url=server.url), READINGS, counted)
    READINGS.prepare()
    agent.start()
    await server.until(lambda: server.hellos)
    while not agent.up:
        await asyncio.sleep(0.01)
    try:
        yield agent
    finally:
        await agent.stop()


async def beats(agent: Agent, number: int) -> None:
    for _ in range(number):
        agent.beat(time.monotonic())
        await asyncio.sleep(0.02)


async def test_it_enrols_with_a_key_of_its_own_and_proves_it() -> None:
    async with Server() as server, playing(server, tally()) as agent:
        (said,) = server.enrolments
        assert said["node_name"] == "bench-1-00001" and len(said["devices"]) == 2
        assert server.strangers == 0 and server.proofs[0].node_id == agent.link._identity.credential.node_id
        assert len(server.hellos[0].devices) == 2


async def test_a_token_that_is_not_taken_is_said_as_the_server_says_it() -> None:
    async with Server() as server:
        registrar = Registrar(server.url.replace("ws", "http", 1), behind_tls=False)
        facts = Facts(node_name="n", boot_id="b", machine_id="m", segment="", devices=())
        with pytest.raises(EnrolmentError, match=r"\(403\): this join token has expired"):
            await asyncio.to_thread(registrar.enrol, facts, "another")


async def test_each_beat_is_a_frame_with_all_devices_and_its_lateness_is_counted() -> None:
    counted = tally()
    async with Server() as server, playing(server, counted) as agent:
        await beats(agent, 5)
        await server.until(lambda: sum(bool(frame.devices) for frame in server.frames) == 5)
    numbers = [frame.seq for frame in server.frames]
    assert numbers == list(range(1, len(numbers) + 1)) and counted.frames == len(numbers)
    assert all(len(frame.devices) in (0, 2) for frame in server.frames)
    assert counted.lateness.total == 5 and counted.held == 0


async def test_an_xid_is_an_event_that_is_timed_until_it_is_acknowledged() -> None:
    counted = tally()
    async with Server() as server, playing(server, counted) as agent:
        agent.act(Act(at_s=0.0, agent=1, kind=Kind.XID, device=1, value=48.0))
        await server.until(lambda: server.bodies(XidSeen))
        await beats(agent, 3)
        assert server.bodies(XidSeen)[0].xid.index == 1 and server.bodies(NodeChecked)
        assert agent.state.events == (), "nothing waits any more"
    assert len(counted.xids_acknowledged_s) == 1 and counted.acknowledged.total == counted.events == 2


async def test_what_is_not_acknowledged_is_sent_again_in_the_next_session() -> None:
    async with Server(acks=False) as server, playing(server, tally()) as agent:
        agent.act(Act(at_s=0.0, agent=1, kind=Kind.XID, device=0, value=13.0))
        await server.until(lambda: server.bodies(XidSeen))
        server.acked["jrn"] = 0
        server.events.clear()
        await server.cut()
        await server.until(lambda: len(server.hellos) == 2 and server.bodies(XidSeen))
        assert server.gaps == 0 and len(agent.state.events) == 2


async def test_a_reset_is_answered_and_timed_since_the_xid_of_its_device() -> None:
    counted = tally()
    async with Server() as server, playing(server, counted) as agent:
        agent.act(Act(at_s=0.0, agent=1, kind=Kind.XID, device=1, value=119.0))
        command = await server.send(ResetDevice(device_index=1, uuid=agent.devices[1].uuid))
        assert (await server.done(command)).state == "succeeded"
        await server.send(ResetDevice(device_index=0, uuid=agent.devices[0].uuid))
        await server.until(lambda: counted.commands == 2)
    assert [reset.device for reset in counted.resets] == [1], "device 0 had none"


async def test_a_start_of_ranks_fails_with_the_reason() -> None:
    async with Server() as server, playing(server, tally()):
        command = await server.send(start_order(), epoch=1, job_id="job_1", attempt=1)
        answer = await server.done(command)
        assert answer.state == "failed" and NO_PROCESSES in answer.detail


async def test_a_storm_drops_the_session_and_the_agent_returns_with_what_it_kept() -> None:
    counted = tally()
    async with Server() as server, playing(server, counted) as agent:
        await beats(agent, 2)
        agent.act(Act(at_s=0.0, agent=1, kind=Kind.DROP))
        await server.until(lambda: server._socket is None or len(server.hellos) == 2)
        while not agent.up or len(server.hellos) < 2:
            agent.beat(time.monotonic())
            await asyncio.sleep(0.02)
        await beats(agent, 3)
        kept = len([frame for frame in server.frames if frame.age_s > 0.0])
        assert kept == counted.backfilled == counted.away, "readings of the time without a session come afterwards"


async def test_a_silent_agent_says_nothing_and_keeps_its_session() -> None:
    counted = tally()
    async with Server() as server, playing(server, counted) as agent:
        await server.until(lambda: server.bodies(NodeChecked))
        agent.act(Act(at_s=0.0, agent=1, kind=Kind.SILENCE, value=3600.0))
        before = len(server.frames)
        await beats(agent, 5)
        agent.act(Act(at_s=0.0, agent=1, kind=Kind.XID, device=0, value=13.0))
        await asyncio.sleep(0.05)
        assert len(server.frames) == before and counted.silent == 5 and agent.up
        agent.act(Act(at_s=0.0, agent=1, kind=Kind.SILENCE, value=0.0))
        await beats(agent, 1)
        await server.until(lambda: server.bodies(XidSeen))


async def test_a_refusal_is_counted_and_its_pause_is_kept() -> None:
    counted = tally()
    async with Server() as server, playing(server, counted) as agent:
        server.refusal = Refused("overloaded", "later", 0.4)
        refused_s = time.monotonic()
        await server.cut()
        await server.until(lambda: server.refusals == 1)
        server.refusal = None
        await server.until(lambda: len(server.hellos) == 2)
        assert time.monotonic() - refused_s >= 0.4 and counted.refused["overloaded"] == 1
        assert not agent.state.link.oldest_sent_s or agent.up


async def test_a_heated_device_reads_so() -> None:
    async with Server() as server, playing(server, tally()) as agent:
        agent.act(Act(at_s=0.0, agent=1, kind=Kind.HEAT))
        await beats(agent, 40)
        await server.until(lambda: sum(bool(frame.devices) for frame in server.frames) == 40)
    warmest = max(frame.devices[0].temperature_c or 0.0 for frame in server.frames if frame.devices)
    assert warmest > HEATED_C - 5.0
    assert max(frame.devices[1].temperature_c or 0.0 for frame in server.frames if frame.devices) < 90.0


async def test_a_hostile_agent_breaks_each_rule_by_turns() -> None:
    counted = tally()
    async with Server() as server, playing(server, counted, Hostile) as agent:
        await server.until(lambda: server.bodies(NodeChecked))
        agent.act(Act(at_s=0.0, agent=1, kind=Kind.HOSTILE))
        await beats(agent, 8)
        await server.until(lambda: len(server.frames) > BURST_FRAMES)
        devices = {sample.index for frame in server.frames for sample in frame.devices}
        seqs = {event.seq for frame in server.frames for event in frame.events}
        jobs = {getattr(event.body, "ref", None) for frame in server.frames for event in frame.events} - {None}
    assert max(devices) >= FAR_DEVICE and max(seqs) > GAP_EVENTS and {ref.job_id for ref in jobs if ref}
    assert {"unlisted", "foreign", "gap", "burst"} <= counted.hostile.keys()
