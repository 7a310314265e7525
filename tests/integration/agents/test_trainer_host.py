"""The real rank host and a real Megatron rank under the real agent, up to its join."""

import asyncio
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from controlplane.demo.ports import free_port
from controlplane.protocol.commands import CollectStacks, StopRanks, WarmHost
from controlplane.protocol.frames import RankExited, RankJoined, RankStarted, StacksCollected
from controlplane.protocol.launch import RankPlacement
from controlplane.protocol.spec import Parallelism
from controlplane.protocol.store_keys import store_token
from tests.integration.agents.conftest import (
    ROOT,
    AgentProcess,
    end_everything_of,
    is_running,
    launch,
    start_order,
    until_gone,
)
from tests.integration.agents.server import Server

pytest.importorskip("trainer.host", reason="the trainer is not installed")
pytestmark = pytest.mark.trainer
STORE_KEY = b"the store's key in these tests, 32 bytes or more"
JOB = {"job_id": "job_1", "attempt": 1}


@pytest.mark.timeout(110)
async def test_a_megatron_rank_joins_survives_the_agent_and_stops(server: Server, tmp_path: Path) -> None:
    port = free_port("127.0.0.1")
    (tmp_path / "store_key").write_bytes(STORE_KEY)
    argv = [sys.executable, "-m", "trainer.store", "--host", "127.0.0.1", "--port", str(port)]
    argv += ["--key-file", str(tmp_path / "store_key")]
    store = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.DEVNULL)
    agent = AgentProcess(server, tmp_path / "s", "--host-module", "trainer.host").start()
    try:
        await server.until(lambda: server.hellos)
        warm = await server.send(WarmHost("job_1", 1), epoch=1, **JOB)
        assert (await server.done(warm, 60.0)).state == "succeeded"
        config = msgspec.structs.replace(
            launch().config,
            store=f"127.0.0.1:{port}",
            store_token=store_token(STORE_KEY, "job_1"),
            checkpoint_dir=str(tmp_path / "ckpt"),
            parallelism=Parallelism(),
            replicas=1,
        )
        order = start_order(config=config, world_size=1, ranks=(RankPlacement(0, 0),))
        await server.done(await server.send(order, epoch=1, **JOB), 30.0)
        joined = await server.until(lambda: server.bodies(RankJoined), 60.0)
        pid = server.bodies(RankStarted)[0].pid
        print(f"fork to join {joined[0].setup_s:.2f} s")
        await asyncio.to_thread(agent.kill, signal.SIGKILL)
        agent.start()
        await server.until(lambda: len(server.hellos) == 2)
        for number, what in enumerate(("ping", "flight_recorder", "wait_counters", "profile", "stacks"), 1):
            look = CollectStacks("job_1", 0, 1, 0, what, 0.2)
            assert (await server.done(await server.send(look, epoch=1, **JOB), 20.0)).state == "succeeded"
            looks = await server.until(lambda n=number: b if len(b := server.bodies(StacksCollected)) == n else [])
            assert looks[-1].look == what
            assert looks[-1].method != "none", looks[-1].text
        assert stat.S_IMODE(next(agent.jobs_dir.glob("*/debug")).stat().st_mode) == 0o700
        assert is_running(pid)
        stop = await server.send(StopRanks("job_1", 1, -1, 0, 0.0, "test"), epoch=1, **JOB)
        assert (await server.done(stop)).state == "succeeded"
        assert server.bodies(RankExited)[0].signal == signal.SIGKILL
        await until_gone(pid)
    finally:
        if agent.process is not None and agent.process.poll() is None:
            agent.kill()
        end_everything_of(tmp_path / "s")
        os.kill(store.pid, signal.SIGKILL)
        store.wait()


async def test_a_host_that_cannot_import_fails_the_start_with_its_last_words(server: Server, tmp_path: Path) -> None:
    agent = AgentProcess(server, tmp_path / "s", "--host-module", "trainer.no_such_host").start()
    try:
        await server.until(lambda: server.hellos)
        command = await server.send(start_order(), epoch=1, **JOB)
        answer = await server.done(command)
        assert answer.state == "failed"
        assert "exited with code 1" in answer.detail
        assert "trainer.no_such_host" in answer.detail
    finally:
        agent.kill()
