"""The agent is killed, cut off or stopped; ranks must not notice, and no fact may be lost."""

import asyncio
import os
import signal
import time

from agents.link.journal import read_journal
from controlplane.protocol.codec import encode_frame
from controlplane.protocol.commands import InjectDeviceFault, InjectLinkFault, ResetDevice, StopRanks
from controlplane.protocol.frames import (
    Acked,
    CommandAnswer,
    DeviceLost,
    LogMarked,
    RankExited,
    RankSaid,
    RankStarted,
    Refused,
    XidSeen,
)
from tests.integration.agents.conftest import (
    AgentProcess,
    end_everything_of,
    is_running,
    start_order,
    until_gone,
)
from tests.integration.agents.server import JOIN_TOKEN, Server, sign
from tests.integration.agents.test_ranks import JOB, running_replica


async def test_ranks_survive_a_killed_agent_and_are_adopted(server: Server, agent: AgentProcess) -> None:
    pids = await running_replica(server)
    agent.kill(signal.SIGKILL)
    began_s = time.monotonic()
    agent.start()
    await server.until(lambda: len(server.hellos) == 2)
    print(f"agent start to hello: {time.monotonic() - began_s:.2f} s")
    assert {status.pid for status in server.hellos[1].ranks} == set(pids.values())
    assert server.hellos[1].journal_id == server.hellos[0].journal_id
    assert all(is_running(pid) for pid in pids.values())
    os.kill(pids[0], signal.SIGKILL)
    await server.until(lambda: len(server.bodies(RankExited)) == 2)
    assert server.bodies(RankExited)[0].signal == 9, "the host still knows the code"
    assert len(server.bodies(RankStarted)) == 2
    assert server.gaps == 0


async def test_an_exit_missed_by_a_dead_agent_is_told_with_its_code(server: Server, agent: AgentProcess) -> None:
    pids = await running_replica(server, env={"FAKE_EXIT_CODE": "17"}, log_markers={"left": "leaving now"})
    agent.kill(signal.SIGKILL)
    os.kill(pids[0], signal.SIGUSR1)
    await until_gone(pids[0])
    agent.start()
    await server.until(lambda: server.bodies(RankExited))
    exited = server.bodies(RankExited)[0]
    assert exited.exit_code == 17
    told = [event.body for event in server.events if isinstance(event.body, LogMarked | RankExited)]
    assert [body.marker for body in told[: told.index(exited)] if body.ref == exited.ref] == ["left"], "last words"


async def test_what_was_killed_together_with_its_agent_is_told_without_a_code_and_as_nobody_saw_it(
    server: Server, agent: AgentProcess
) -> None:
    """Agent, host and ranks at once, as a control group is killed: nobody is left who could have seen an end."""
    pids = await running_replica(server)
    agent.kill(signal.SIGKILL)
    end_everything_of(agent.state_dir)
    await until_gone(*pids.values())
    assert server.bodies(RankExited) == []
    agent.start()
    await server.until(lambda: len(server.bodies(RankExited)) == len(pids))
    assert not server.bodies(RankExited)[0].expected, "nobody had ordered it; its peers end with it"
    for told in server.bodies(RankExited):
        assert (told.exit_code, told.signal) == (None, None)
        assert told.cause == "unobserved"
        assert told.hint.startswith("exit not observed; the node's processes were gone when the agent came back")
    assert not server.hellos[1].ranks
    assert server.gaps == 0


async def test_a_repeated_command_after_a_restart_has_no_second_effect(server: Server, agent: AgentProcess) -> None:
    command = sign(server.keys[0], server.statement(start_order(), epoch=1, **JOB))
    await server.send_signed(command, command)
    await server.done(command.command_id)
    agent.kill(signal.SIGKILL)
    agent.start()
    await server.until(lambda: len(server.hellos) == 2)
    answers = len(server.bodies(CommandAnswer))
    await server.send_signed(command)
    await server.until(lambda: len(server.bodies(CommandAnswer)) > answers)
    assert server.answer(command.command_id).state == "succeeded"
    assert len(server.bodies(RankStarted)) == 2


async def test_sigterm_says_goodbye_and_leaves_ranks_running(server: Server, agent: AgentProcess) -> None:
    pids = await running_replica(server)
    assert agent.kill(signal.SIGTERM) == 0
    assert all(is_running(pid) for pid in pids.values())
    agent.start()
    await server.until(lambda: len(server.hellos) == 2)
    assert len(server.hellos[1].ranks) == 2


async def test_samples_of_an_outage_are_told_afterwards_with_their_age(server: Server, agent: AgentProcess) -> None:
    pids = await running_replica(server)
    command = await server.send(InjectLinkFault(3.0))  # samples come once a second: two rounds at least
    assert (await server.done(command)).state == "succeeded"
    await server.until(lambda: len(server.hellos) == 2)
    aged = await server.until(lambda: [f for f in server.frames if f.age_s > 1.0 and f.devices])
    assert aged[0].devices[0].temperature_c is not None
    assert all(is_running(pid) for pid in pids.values())


async def test_a_stop_under_way_is_finished_by_the_next_agent(server: Server, agent: AgentProcess) -> None:
    pids = await running_replica(server)
    command = await server.send(StopRanks("job_1", 1, 0, 1, 0.8, "preempted"), epoch=1, **JOB)
    await server.until(lambda: any(a.command_id == command for a in server.bodies(CommandAnswer)))
    agent.kill(signal.SIGKILL)
    agent.start()
    assert (await server.done(command)).state == "succeeded"
    await until_gone(*pids.values())


async def test_events_of_an_outage_arrive_once_and_in_order(server: Server, agent: AgentProcess) -> None:
    await running_replica(server, env={"FAKE_STEP_S": "0.05"})
    await server.until(lambda: len(server.bodies(RankSaid)) > 20)
    await server.cut()
    await server.until(lambda: len(server.hellos) == 2)
    count = len(server.bodies(RankSaid))
    await server.until(lambda: len(server.bodies(RankSaid)) > count + 40)
    for rank in (0, 1):
        steps = [body.report.step for body in server.bodies(RankSaid) if body.ref.rank == rank]
        assert steps == list(range(len(steps)))


async def test_enrolment_trades_the_token_for_a_credential(server: Server, agent: AgentProcess) -> None:
    assert server.enrolments[0]["join_token"] == JOIN_TOKEN
    assert [device["index"] for device in server.enrolments[0]["devices"]] == [0, 1]
    stored = agent.state_dir / "credential"
    assert stored.stat().st_mode & 0o777 == 0o600
    key = agent.state_dir / "key"
    assert key.stat().st_mode & 0o777 == 0o600
    private = "".join(key.read_text().splitlines()[1:-1])
    told = agent.log() + "".join(server.headers) + str(server.enrolments)
    assert private not in told
    assert "Authorization" not in server.headers[0]
    assert JOIN_TOKEN not in agent.log()
    agent.kill(signal.SIGKILL)
    agent.start()
    await server.until(lambda: len(server.hellos) == 2)
    assert len(server.enrolments) == 1
    assert [proof.counter for proof in server.proofs] == [1, 2]


async def test_a_refused_token_ends_the_agent_with_the_servers_reason(server: Server, agent: AgentProcess) -> None:
    token = agent.state_dir.parent / "bad"
    token.write_text("wrong")
    bad = AgentProcess(server, agent.state_dir.parent / "t", "--join-token-file", str(token)).start()
    assert await asyncio.to_thread(bad.process.wait, 10) == 4
    assert "this join token has expired" in bad.log()


async def test_a_second_agent_on_the_same_state_is_refused(server: Server, agent: AgentProcess) -> None:
    second = AgentProcess(server, agent.state_dir).start()
    assert await asyncio.to_thread(second.process.wait, 10) == 3
    assert agent.process.poll() is None


async def test_garbage_from_the_server_harms_nothing(server: Server, agent: AgentProcess) -> None:
    for data in (b"", b"\xff" * 100, b"\x81\xa4type\xa5order", encode_frame(Acked(10**9, True))):
        await server.send_raw(data)
    wrong_node = await server.send(start_order(), epoch=1, node_id="node_02", **JOB)
    assert (await server.done(wrong_node)).state == "failed"
    assert (await running_replica(server)).keys() == {0, 1}
    assert server.connections == 1


async def test_a_refused_session_is_tried_again_when_the_server_says(server: Server, agent: AgentProcess) -> None:
    server.refusal = Refused("overloaded", "later", 0.1)
    await server.cut()
    await server.until(lambda: server.connections >= 1)
    server.refusal = None
    await server.until(lambda: len(server.hellos) == 2)


async def test_device_faults_become_events(server: Server, agent: AgentProcess) -> None:
    first = await server.send(InjectDeviceFault(0, "xid", 48))
    assert (await server.done(first)).state == "succeeded"
    await server.until(lambda: server.bodies(XidSeen))
    assert server.bodies(XidSeen)[0].xid.xid == 48
    await server.send(InjectDeviceFault(1, "off_bus"))
    await server.until(lambda: server.bodies(DeviceLost))
    assert server.bodies(DeviceLost)[0].index == 1
    unknown = await server.send(InjectDeviceFault(7, "ecc"))
    assert (await server.done(unknown)).state == "failed"


async def test_an_empty_device_is_reset_and_one_in_use_or_replaced_is_not(server: Server, agent: AgentProcess) -> None:
    uuid = server.hellos[0].devices[0].uuid
    await server.send(InjectDeviceFault(0, "ecc", 3))
    await server.until(lambda: any(s.ecc_uncorrected_total == 3 for f in server.frames for s in f.devices))
    other = await server.send(ResetDevice(0, "GPU-of-yesterday"))
    assert "not GPU-of-yesterday" in (await server.done(other)).detail
    done = await server.done(await server.send(ResetDevice(0, uuid)))
    assert (done.state, done.detail) == ("succeeded", "the driver has reset it")
    server.frames.clear()
    await server.until(lambda: any(f.devices for f in server.frames))
    sample = next(f.devices[0] for f in server.frames if f.devices)
    assert (sample.ecc_uncorrected_total, sample.row_remap_pending) == (0, False)
    await running_replica(server)
    used = await server.done(await server.send(ResetDevice(0, uuid)))
    assert (used.state, used.detail) == ("failed", "device 0 is in use here; it was not reset")


async def test_a_device_that_left_the_bus_cannot_be_reset(server: Server, agent: AgentProcess) -> None:
    uuid = server.hellos[0].devices[1].uuid
    await server.send(InjectDeviceFault(1, "off_bus"))
    await server.until(lambda: server.bodies(DeviceLost))
    answer = await server.done(await server.send(ResetDevice(1, uuid)))
    assert (answer.state, answer.detail) == ("failed", "the device is not on the bus: reboot the node")


async def test_the_journal_is_readable_after_a_kill(server: Server, agent: AgentProcess) -> None:
    await running_replica(server)
    agent.kill(signal.SIGKILL)
    with open(agent.state_dir / "journal", "ab") as file:
        file.write(b"\x40\x00\x00\x00torn")
    assert read_journal(agent.state_dir / "journal")
    agent.start()
    await server.until(lambda: len(server.hellos) == 2)
    assert len(server.hellos[1].ranks) == 2
