"""A real agent process against the server of `server.py`, and builders of orders."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agents.ranks.identity import read_stat
from controlplane.protocol.commands import StartRanks
from controlplane.protocol.launch import RankPlacement, ReplicaLaunch, TrainerConfig
from controlplane.protocol.spec import Checkpoint, Model, Parallelism, Training
from tests.integration.agents.server import JOIN_TOKEN, Server

ROOT = Path(__file__).resolve().parents[3]


SAME_USER = '[users]\ndefault = "agent"\n'
"""The node's policy of tests that are about other things: ranks run as the agent does."""


class AgentProcess:
    """`python -m agents` with a state directory that outlives it; `policy` is its policy file."""

    def __init__(
        self, server: Server, state_dir: Path, *options: str, policy: str = SAME_USER, prefix: tuple[str, ...] = ()
    ) -> None:
        self.server = server
        self.state_dir = state_dir
        self.jobs_dir = state_dir.parent / "jobs"
        self.policy = policy
        self.prefix = prefix
        self.options = options
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> "AgentProcess":
        token = self.state_dir.parent / "token"
        token.touch(0o600)
        token.write_text(JOIN_TOKEN)
        argv = [*self.prefix, sys.executable, "-m", "agents", "--server", self.server.url, "--name", "node-1"]
        argv += ["--state-dir", str(self.state_dir), "--probe", "simulated", "--devices", "2"]
        rules = self.state_dir.parent / "policy.toml"
        rules.write_text(self.policy)
        rules.chmod(0o600)
        argv += ["--policy-file", str(rules), "--jobs-dir", str(self.jobs_dir)]
        argv += ["--host-module", "tests.integration.agents.fake_host", "--join-token-file", str(token)]
        with open(self.state_dir.parent / "agent.log", "ab") as log:
            self.process = subprocess.Popen([*argv, *self.options], stdout=log, stderr=log, cwd=ROOT)
        return self

    def kill(self, number: int = signal.SIGKILL) -> int:
        self.process.send_signal(number)
        return self.process.wait(10)

    def log(self) -> str:
        return (self.state_dir.parent / "agent.log").read_text()


def launch(**changes: Any) -> ReplicaLaunch:
    config = TrainerConfig(
        model=Model(),
        parallelism=Parallelism(),
        training=Training(),
        checkpoint=Checkpoint(),
        checkpoint_dir="s3://bucket/none",
        replicas=2,
        store="127.0.0.1:1",
        allow_faults=True,
    )
    values: dict[str, Any] = {
        "job_id": "job_1",
        "job_name": "demo",
        "attempt": 1,
        "epoch": 1,
        "replica": 0,
        "incarnation": 1,
        "world_size": 2,
        "ranks": (RankPlacement(0, 0), RankPlacement(1, 1)),
        "config": config,
    }
    return ReplicaLaunch(**(values | changes))


def start_order(**changes: Any) -> StartRanks:
    return StartRanks(launch(**changes))


def is_running(pid: int) -> bool:
    stat = read_stat(pid)
    return stat is not None and stat.state != "Z"


async def until_gone(*pids: int) -> None:
    """Processes end without telling us; this polls, with a bound."""
    async with asyncio.timeout(30):
        while any(is_running(pid) for pid in pids):
            await asyncio.sleep(0.01)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with Server() as running:
        yield running


@pytest.fixture
async def agent(server: Server, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[AgentProcess]:
    directory = tmp_path_factory.mktemp("a")
    process = AgentProcess(server, directory / "s").start()
    try:
        await server.until(lambda: server.hellos)
        yield process
    finally:
        if process.process.poll() is None:
            process.kill()
        end_everything_of(directory / "s")


def end_everything_of(state_dir: Path) -> None:
    """Hosts and ranks outlive agents by design; a test must not leave them."""
    marks = (str(state_dir).encode(), str(state_dir.parent / "jobs").encode())
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            told = Path(f"/proc/{entry}/cmdline").read_bytes() + Path(f"/proc/{entry}/environ").read_bytes()
            if any(mark in told for mark in marks):
                os.kill(int(entry), signal.SIGKILL)
        except OSError:
            continue
