"""A real agent reads a checkpoint back: by a process of its own, as the job's owner, one at a time."""

import asyncio
import hashlib
import json
import os
import signal
from pathlib import Path

from agents.ranks.identity import uid_of
from controlplane.protocol.commands import EndVerification, VerifyCheckpoint
from controlplane.protocol.frames import CommandAnswer
from tests.attacks.agents.separate import ALICE, BOB, NEEDS_ROOT, policy, within_reach, workplace
from tests.integration.agents.conftest import AgentProcess, is_running, until_gone
from tests.integration.agents.server import Server

LIMIT_S = 300.0


def checkpoint(folder: Path, *, bytes_: int = 4) -> Path:
    """Of job_1; a large one is a hole that is read for hours."""
    path = folder / "job_1" / "step_00000007-e2"
    path.mkdir(parents=True)
    (path / "shard").write_bytes(b"good")
    os.truncate(path / "shard", bytes_)
    digest = hashlib.blake2b(b"good", digest_size=16).hexdigest()
    files = [{"name": "shard", "bytes": bytes_, "blake2b": digest}]
    (path / "COMMITTED.json").write_text(json.dumps({"job_id": "job_1", "step": 7, "epoch": 2, "files": files}))
    return path


def order(path: Path, *, limit_s: float = LIMIT_S, user: str = "") -> VerifyCheckpoint:
    return VerifyCheckpoint("job_1", str(path), 7, 2, limit_s, user)


def readers(path: Path) -> list[int]:
    """Processes that read this checkpoint."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"controlplane.checkpoints.reading" in words and str(path).encode() in words:
            found.append(int(entry))
    return found


async def reader_of(path: Path) -> int:
    async with asyncio.timeout(30):
        while not (found := readers(path)):
            await asyncio.sleep(0.05)
        return found[0]


async def verdict(server: Server, body: VerifyCheckpoint) -> dict[str, object]:
    answer = await server.done(await server.send(body, job_id="job_1", attempt=1), 60.0)
    assert answer.state == "succeeded", answer.detail
    return json.loads(answer.data)


async def test_sound_harmed_and_unseen_are_told_apart(server: Server, agent: AgentProcess, tmp_path: Path) -> None:
    path = checkpoint(tmp_path)
    assert await verdict(server, order(path)) == {"ok": True, "detail": "1 files read back equal", "absent": False}
    (path / "shard").write_bytes(b"evil")
    said = await verdict(server, order(path))
    assert (said["ok"], said["detail"]) == (False, "shard has another digest than was committed")
    (path / "shard").unlink()
    assert (await verdict(server, order(path)))["absent"]
    (path / "COMMITTED.json").unlink()
    path.rmdir()
    said = await verdict(server, order(path))
    assert (said["ok"], said["detail"]) == (None, f"{path} is not visible from here")
    path.symlink_to(tmp_path)
    said = await verdict(server, order(path))
    assert said["ok"] is False
    assert "not followed" in str(said["detail"])


async def test_a_second_one_is_refused_and_the_first_can_be_called_off(
    server: Server, agent: AgentProcess, tmp_path: Path
) -> None:
    path = checkpoint(tmp_path, bytes_=1 << 42)
    first = await server.send(order(path), job_id="job_1", attempt=1)
    pid = await reader_of(path)
    async with asyncio.timeout(30):
        while os.getpriority(os.PRIO_PROCESS, pid) != 19:
            await asyncio.sleep(0.05)
    second = await server.done(await server.send(order(path), job_id="job_1", attempt=1))
    assert (second.state, second.detail) == ("failed", "another checkpoint is being read back on this node")
    other = await server.done(await server.send(EndVerification("cmd_of_yesterday"), job_id="job_1"))
    assert (other.state, other.detail) == ("succeeded", "that command is not running here")
    assert is_running(pid)
    await server.send(EndVerification(first), job_id="job_1")
    ended = await server.done(first)
    assert (ended.state, ended.detail) == ("failed", "it was called off")
    await until_gone(pid)
    assert (await verdict(server, order(checkpoint(tmp_path / "other"))))["ok"] is True


async def test_one_that_takes_longer_than_its_limit_is_given_up(
    server: Server, agent: AgentProcess, tmp_path: Path
) -> None:
    path = checkpoint(tmp_path, bytes_=1 << 42)
    answer = await server.done(await server.send(order(path, limit_s=1.0), job_id="job_1"), 60.0)
    assert answer.state == "failed"
    assert "no verdict within its limit" in answer.detail
    assert not readers(path)


async def test_a_killed_agent_takes_its_reader_along_and_says_so_when_it_is_back(
    server: Server, agent: AgentProcess, tmp_path: Path
) -> None:
    path = checkpoint(tmp_path, bytes_=1 << 42)
    command_id = await server.send(order(path), job_id="job_1", attempt=1)
    pid = await reader_of(path)
    agent.kill(signal.SIGKILL)
    await until_gone(pid)
    agent.start()
    answer = await server.done(command_id)
    assert (answer.state, answer.detail) == ("failed", "interrupted by a restart of the agent")
    states = [body.state for body in server.bodies(CommandAnswer) if body.command_id == command_id]
    assert states == ["acknowledged", "failed"]


@NEEDS_ROOT
async def test_it_reads_as_the_jobs_owner_and_within_the_nodes_roots(server: Server) -> None:
    with workplace() as place:
        (place / "checkpoints").mkdir(mode=0o755)
        (place / "n1").mkdir(mode=0o711)
        alices, bobs = (checkpoint(place / "checkpoints" / name) for name in ("a", "b"))
        large = checkpoint(place / "checkpoints" / "l", bytes_=1 << 42)
        for path, uid in ((alices, ALICE), (bobs, BOB), (large, ALICE)):
            for each in (path, path.parent, *path.iterdir()):
                os.chown(each, uid, uid)
                each.chmod(0o700 if each.is_dir() else 0o600)
        agent = AgentProcess(server, place / "n1" / "s", policy=policy(place), prefix=within_reach(place)).start()
        try:
            await server.until(lambda: server.hellos)
            assert (await verdict(server, order(alices, user="alice")))["ok"] is True
            said = await verdict(server, order(bobs, user="alice"))
            assert (said["ok"], said["detail"]) == (None, "it cannot be read: Permission denied")
            stranger = await server.done(await server.send(order(bobs, user="carol"), job_id="job_1"))
            assert stranger.state == "failed"
            assert "no user for jobs of carol" in stranger.detail
            outside = await server.done(await server.send(order(Path("/etc/job_1/x"), user="alice"), job_id="job_1"))
            assert "refuses the checkpoint" in outside.detail
            command_id = await server.send(order(large, user="alice"), job_id="job_1")
            assert uid_of(await reader_of(large)) == ALICE
            await server.send(EndVerification(command_id), job_id="job_1")
            await server.done(command_id)
        finally:
            agent.kill()
