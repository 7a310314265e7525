"""V7: ranks inherit the server's HOLDFAST_* (the Redis password stands in a rank's log)."""

import json
import os
import sys
import time
from pathlib import Path

import msgspec
import pytest

from controlplane.demo import processes
from controlplane.demo.supervisor import Supervisor
from controlplane.protocol.frames import RankExited, RankJoined, RankStarted
from controlplane.protocol.launch import RankPlacement
from tests.integration.agents.conftest import AgentProcess, end_everything_of, launch, start_order
from tests.integration.agents.server import Server

SECRET = "correct-horse-battery"
SERVERS = {
    "HOLDFAST_REDIS_URL": f"redis://:{SECRET}@127.0.0.1:6379/0",
    "HOLDFAST_SECRET_KEY": SECRET,
    "HOLDFAST_DATABASE_URL": f"postgres://holdfast:{SECRET}@127.0.0.1/holdfast",
    "DJANGO_SETTINGS_MODULE": "controlplane.config.settings.embedded",
    "AWS_SECRET_ACCESS_KEY": SECRET,
}
NAMED = {"HOLDFAST_SOCKET", "HOLDFAST_REF", "HOLDFAST_CONFIG", "HOLDFAST_NODE"}
PRINTS_ALL = (sys.executable, "-c", "import os, json; print(json.dumps(dict(os.environ)), flush=True)")
JOB = {"job_id": "job_1", "attempt": 1}


def environment_of(pid: int) -> dict[str, str]:
    # Its parent may go on a moment before the kernel has put the new program's environment in place.
    while not (told := Path(f"/proc/{pid}/environ").read_bytes()):
        time.sleep(0.01)
    pairs = told.decode().split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


@pytest.mark.parametrize("own_program", [True, False], ids=["own program", "forked by the rank host"])
async def test_a_rank_finds_no_secret_of_the_server_or_the_agent(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_program: bool
) -> None:
    for name, value in SERVERS.items():
        monkeypatch.setenv(name, value)
    agent = AgentProcess(server, tmp_path / "s").start()
    try:
        await server.until(lambda: server.hellos)
        order = start_order(
            entrypoint=PRINTS_ALL if own_program else None, world_size=1, ranks=(RankPlacement(0, 0),),
            env={"OF_THE_SPEC": "yes"},
        )  # fmt: skip
        await server.send(order, epoch=1, **JOB)
        if own_program:
            exited = await server.until(lambda: server.bodies(RankExited))
            found = json.loads(exited[0].log_tail.strip().splitlines()[-1])
            assert found["OF_THE_SPEC"] == "yes"
        else:
            await server.until(lambda: server.bodies(RankJoined))
            # As its host began: what a fork takes along.
            found = environment_of(server.bodies(RankStarted)[0].pid)
        logs = "".join(path.read_text() for path in agent.jobs_dir.glob("logs/*/*.log"))
    finally:
        agent.kill()
        end_everything_of(tmp_path / "s")
    assert {name for name, value in found.items() if SECRET in value} == set()
    assert {name for name in found if name.startswith(("HOLDFAST_", "DJANGO_"))} <= NAMED
    assert SECRET not in logs


@pytest.mark.parametrize("name", ["LD_PRELOAD", "LD_AUDIT", "PYTHONSTARTUP", "BASH_ENV", "HOLDFAST_AGENT_SERVER"])
async def test_a_spec_cannot_put_code_into_every_program_of_its_job(server: Server, tmp_path: Path, name: str) -> None:
    agent = AgentProcess(server, tmp_path / "s").start()
    try:
        order = msgspec.structs.replace(start_order(), launch=launch(env={name: "/tmp/evil.so"}))
        answer = await server.done(await server.send(order, epoch=1, **JOB))
    finally:
        agent.kill()
        end_everything_of(tmp_path / "s")
    assert (answer.state, server.bodies(RankStarted)) == ("failed", [])
    assert name in answer.detail


def test_the_demos_agents_get_none_of_the_servers_settings(tmp_path: Path) -> None:
    supervisor = Supervisor(
        env={**os.environ, **SERVERS}, logs=tmp_path / "logs", requests=tmp_path / "requests",
        node_state=lambda name: tmp_path / name,
    )  # fmt: skip
    where = processes.Addresses(host="127.0.0.1", web_port=1, redis_port=2, store_port=3)
    agent = processes.agent_process(
        addresses=where, node="node-1", state_dir=tmp_path, join_token_file=tmp_path, devices=1, seed=1
    )
    stays = ("/bin/sh", "-c", "exec sleep 60")
    supervisor.start(processes.ProcessSpec(name="agent:node-1", argv=stays, env=agent.env, settings=agent.settings))
    supervisor.start(processes.ProcessSpec(name="web-1", argv=stays))
    try:
        found = {name: environment_of(supervisor.pid(name) or 0) for name in ("agent:node-1", "web-1")}
    finally:
        supervisor.stop_all(grace_s=5.0)
    assert found["web-1"]["HOLDFAST_SECRET_KEY"] == SECRET
    assert found["agent:node-1"]["PATH"]
    assert [name for name in found["agent:node-1"] if name in SERVERS and name.startswith(("HOLDFAST", "DJ"))] == []
