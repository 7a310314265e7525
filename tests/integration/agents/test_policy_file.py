"""The node's policy file under a real agent: at the start, and again on SIGHUP."""

import asyncio
import os
import signal
from pathlib import Path

from controlplane.protocol.commands import WarmHost
from controlplane.protocol.frames import RankStarted
from tests.integration.agents.conftest import SAME_USER, AgentProcess, start_order
from tests.integration.agents.server import Server

JOB = {"job_id": "job_1", "attempt": 1}


async def until_noted(agent: AgentProcess, words: str) -> None:
    async with asyncio.timeout(10):
        while words not in agent.log():
            await asyncio.sleep(0.01)


async def test_a_changed_file_holds_from_sighup_on_and_a_wrong_one_changes_nothing(
    server: Server, agent: AgentProcess
) -> None:
    file = agent.state_dir.parent / "policy.toml"
    file.write_text("observe_only = true\n" + SAME_USER)
    os.kill(agent.process.pid, signal.SIGHUP)
    await until_noted(agent, '"policy file read"')
    for body in (start_order(), WarmHost("job_1", 1)):
        answer = await server.done(await server.send(body, epoch=1, **JOB))
        assert (answer.state, "observe only" in answer.detail) == ("failed", True)
    assert not server.bodies(RankStarted)

    file.write_text("observe_only = false\nobserve_sometimes = true\n")
    os.kill(agent.process.pid, signal.SIGHUP)
    await until_noted(agent, "policy file refused, the rules stay as they are")
    answer = await server.done(await server.send(start_order(), epoch=1, **JOB))
    assert answer.state == "failed"


async def test_an_agent_does_not_start_with_a_wrong_policy_file(server: Server, tmp_path: Path) -> None:
    agent = AgentProcess(server, tmp_path / "s", policy="[users]\ndefault = 0\n").start()
    assert agent.process.wait(20) == 2
    assert "users: users.default must have a user id of 1000 or more, not 0" in agent.log()


async def test_where_programs_are_named_no_spec_brings_other_code_and_the_built_in_trainer_starts(
    server: Server, agent: AgentProcess
) -> None:
    file = agent.state_dir.parent / "policy.toml"
    file.write_text("entrypoints = []\n" + SAME_USER)
    os.kill(agent.process.pid, signal.SIGHUP)
    await until_noted(agent, '"policy file read"')
    answer = await server.done(await server.send(start_order(env={"PYTHONPATH": "/tmp"}), epoch=1, **JOB))
    assert (answer.state, "PYTHONPATH could put other code" in answer.detail) == ("failed", True)
    assert not server.bodies(RankStarted)
    answer = await server.done(await server.send(start_order(env={"NCCL_DEBUG": "INFO"}), epoch=1, **JOB))
    assert answer.state == "succeeded"
