"""V6: what a job's processes can do at the sockets for ranks by being many, or by passing a
connection on: keep ranks out, or have the agent take another process for the one that connected."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from agents.core.events import Event, RankConnected
from agents.core.state import Identity, ProcessState, Rank
from agents.ranks import gate, socket
from agents.ranks.identity import identity_of
from agents.ranks.places import Places
from controlplane.protocol.codec import encode_line
from controlplane.protocol.launch import RankRef
from controlplane.protocol.rank import RankHello
from tests.properties.agents.puppet import Puppet
from tests.properties.agents.world import launch

OWN, OTHERS = RankRef("job_a", 1, 0, 1, 0), RankRef("job_b", 1, 0, 1, 0)
CROWD = """
import os, socket, sys, time
leader = os.getpid()
for _ in range(6):
    if os.fork() == 0:
        os.setsid()
        held = []
        for _ in range(3):
            held.append(socket.socket(socket.AF_UNIX))
            held[-1].connect(sys.argv[1])
        os.write(1, b"in\\n")
        while os.getppid() == leader:
            time.sleep(0.05)
        os._exit(0)
sys.stdin.read()
"""


@dataclass
class Doors:
    server: socket.RankServer
    heard: list[Event]
    ranks: dict[RankRef, Rank]
    paths: dict[str, Path]

    async def until_heard(self, ref: RankRef) -> RankConnected:
        async with asyncio.timeout(10):
            while True:
                for event in self.heard:
                    if isinstance(event, RankConnected) and event.hello.ref == ref:
                        return event
                await asyncio.sleep(0.005)


@pytest.fixture
async def doors(tmp_path: Path) -> AsyncIterator[Doors]:
    heard: list[Event] = []
    ranks: dict[RankRef, Rank] = {}
    server, places = socket.RankServer(heard.append, lambda: ranks), Places(tmp_path / "j")
    places.open()
    paths = {}
    for job_id in ("job_a", "job_b"):
        place = places.prepare(job_id, None)
        server.open(job_id, place)
        paths[job_id] = place.agent_socket
    yield Doors(server, heard, ranks, paths)
    server.close()


async def test_any_number_of_sessions_of_one_job_keeps_no_rank_out(
    doors: Doors, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MAX_STRANGERS_OF_JOB", "MAX_STRANGERS_OF_USER", "MAX_STRANGERS"):
        monkeypatch.setattr(gate, name, 8)
    crowd = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CROWD, str(doors.paths["job_a"]),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    puppets = [Puppet(doors.paths[ref.job_id], ref) for ref in (OWN, OTHERS)]
    try:
        assert crowd.stdout is not None
        async with asyncio.timeout(20):
            for _ in range(6):
                assert await crowd.stdout.readline() == b"in\n"
            while doors.server.refused_connections < 10:
                await asyncio.sleep(0.005)
        assert len(doors.server._gate._strangers) == 8
        for puppet in puppets:
            identity = identity_of(puppet.process.pid)
            assert identity is not None and puppet.ref is not None
            doors.ranks[puppet.ref] = Rank(
                ref=puppet.ref,
                device_index=0,
                launch=launch(),
                launched_at_s=0.0,
                process=ProcessState.ALIVE,
                identity=identity,
            )
            await puppet.say(b"")
            await doors.until_heard(puppet.ref)
        assert len(doors.server._gate._strangers) == 8, "nobody had to yield to a known rank"
        unborn = Puppet(doors.paths["job_a"], RankRef("job_a", 1, 0, 1, 1))
        puppets.append(unborn)
        await unborn.say(b"")
        await doors.until_heard(RankRef("job_a", 1, 0, 1, 1))
    finally:
        for puppet in puppets:
            puppet.end()
        assert crowd.stdin is not None
        crowd.stdin.close()
        await crowd.wait()


@pytest.mark.parametrize("changed", ["process", "user"])
async def test_a_hello_on_a_connection_of_a_process_that_is_another_now_is_not_heard(
    doors: Doors, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    """Its number was given out again between the connection and the hello."""
    _, writer = await asyncio.open_unix_connection(str(doors.paths["job_a"]))
    async with asyncio.timeout(10):
        while not doors.server._peers:
            await asyncio.sleep(0.005)
    if changed == "process":
        monkeypatch.setattr(socket, "identity_of", lambda pid: Identity(pid, 1))
    else:
        monkeypatch.setattr(socket, "uid_of", lambda pid: os.getuid() + 1, raising=False)
    writer.write(encode_line(RankHello(OWN, 1)))
    async with asyncio.timeout(10):
        while not doors.heard and doors.server.refused_lines == 0:
            await asyncio.sleep(0.005)
    assert (doors.heard, doors.server.refused_lines) == ([], 1)
    writer.close()
