"""A real agent and its key: made first, kept, proved, replaced; tokens are not eaten (O10, V5)."""

import asyncio
import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from controlplane.fleet.keys import verifies
from controlplane.protocol.codec import encode_frame
from controlplane.protocol.frames import RankSaid, RankStarted, Refused
from controlplane.protocol.handshake import (
    Challenge,
    KeyAccepted,
    RotateKey,
    decode_bytes,
    enrolment_statement,
    rotation_statement,
)
from tests.integration.agents.conftest import AgentProcess, start_order
from tests.integration.agents.server import JOIN_TOKEN, Server

pytestmark = pytest.mark.timeout(120)


def state(agent: AgentProcess) -> dict[str, object]:
    return json.loads((agent.state_dir / "credential").read_text())


async def until_log(agent: AgentProcess, words: str) -> None:
    """Its log is a file: this polls, with a bound."""
    async with asyncio.timeout(20):
        while words not in agent.log():
            await asyncio.sleep(0.05)


async def test_no_join_token_is_spent_before_the_answer_can_be_kept(server: Server, tmp_path: Path) -> None:
    state_dir = tmp_path / "s"
    blocked = state_dir / "credential.reserved.tmp"
    blocked.mkdir(parents=True)
    agent = AgentProcess(server, state_dir).start()
    try:
        await until_log(agent, "the join token is not used")
        assert server.enrolments == []
        assert (state_dir / "key").stat().st_mode & 0o777 == 0o600
        blocked.rmdir()
        await server.until(lambda: server.hellos)
        assert len(server.enrolments) == 1
    finally:
        agent.kill()


def own_disk(state_dir: Path, size_kib: int, *more: str) -> tuple[str, ...]:
    """A command's prefix: its state directory is a disk of that size, seen by it alone."""
    script = f'mount -t tmpfs -o size={size_kib}k none {state_dir} && {" && ".join(more)} && exec "$@"'
    return ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh")


def may_mount() -> bool:
    """Containers without user namespaces cannot run these."""
    probe = ["unshare", "--user", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif("not may_mount()")
@pytest.mark.parametrize("free_pages", [0, 1, 2, 3])
async def test_an_agent_without_room_for_all_that_an_enrolment_needs_spends_no_token_however_often_it_starts(
    server: Server, tmp_path: Path, free_pages: int
) -> None:
    state_dir = tmp_path / "s"
    state_dir.mkdir()
    filler = state_dir / "filler"
    # Its journal, its key, its count of sessions and the server's answer need a page each.
    prefix = own_disk(state_dir, 16, f"head -c {(4 - free_pages) * 4096} /dev/zero > {filler}")
    for start in (1, 2):
        agent = AgentProcess(server, state_dir, prefix=prefix).start()
        try:
            await until_log(agent, "the join token is not used")
            assert server.enrolments == []
            if start == 2:
                # Somebody makes room.
                os.truncate(f"/proc/{agent.process.pid}/root{filler}", 0)
                await server.until(lambda: server.hellos)
        finally:
            agent.kill()
            (tmp_path / "agent.log").unlink()
    assert len(server.enrolments) == 1


@pytest.mark.skipif("not may_mount()")
async def test_an_agent_whose_disk_is_read_only_ends_and_spends_no_token(server: Server, tmp_path: Path) -> None:
    state_dir = tmp_path / "s"
    state_dir.mkdir()
    agent = AgentProcess(server, state_dir, prefix=own_disk(state_dir, 64, f"mount -o remount,ro {state_dir}")).start()
    assert await asyncio.to_thread(agent.process.wait, 30) == 2
    assert "Read-only file system" in agent.log()
    assert server.enrolments == []


async def test_a_revoked_agent_says_what_to_do_and_eats_no_token_however_often_it_starts(
    server: Server, agent: AgentProcess
) -> None:
    server.refusal = Refused("revoked", "node node-1 was revoked", 0.1)
    await server.cut()
    await server.until(lambda: server.refusals >= 3)
    agent.kill()
    agent.start()
    await server.until(lambda: server.refusals >= 5)
    assert len(server.enrolments) == 1
    assert "holdfast node re-enrol" in agent.log()


async def test_a_fresh_token_lets_a_revoked_node_back_under_a_new_key_that_the_old_one_signs(
    server: Server, agent: AgentProcess
) -> None:
    server.second_token = "holdfast_join_2_secret"
    old_key = server.public_key
    server.refusal = Refused("revoked", "node node-1 was revoked", 0.1)
    agent.kill()
    token = agent.state_dir.parent / "second"
    token.write_text(server.second_token)
    again = AgentProcess(server, agent.state_dir, "--join-token-file", str(token)).start()
    try:
        await server.until(lambda: server.refusals)
        server.refusal = None
        await server.until(lambda: len(server.hellos) == 2)
    finally:
        again.kill()
    first, second = server.enrolments
    assert second["public_key"] != first["public_key"] == old_key
    statement = enrolment_statement(
        token_sha256=str(state(agent)["token_sha256"]),
        node_name="node-1",
        public_key=second["public_key"],
        boot_id=second["boot_id"],
    )
    assert verifies(old_key, decode_bytes(second["old_key_proof"], 64), statement)
    assert server.second_token not in agent.log()
    assert JOIN_TOKEN not in agent.log()


async def test_an_agent_proves_itself_again_whenever_it_is_asked(server: Server, agent: AgentProcess) -> None:
    await server.send_raw(encode_frame(Challenge(bytes(32))))
    await server.until(lambda: len(server.proofs) == 2)
    first, again = server.proofs
    assert (again.counter, again.boot_id, again.journal_id) == (first.counter, first.boot_id, first.journal_id)
    assert again.signature != first.signature
    assert again.server_host == "127.0.0.1"


async def test_a_new_key_takes_the_old_ones_place_when_the_server_has_it_and_not_before(
    server: Server, agent: AgentProcess
) -> None:
    nonce = bytes(range(32))
    old = server.public_key
    await server.send_raw(encode_frame(RotateKey(nonce)))
    await server.until(lambda: server.new_keys)
    said = server.new_keys[0]
    statement = rotation_statement(nonce=nonce, node_id="node_01", new_key=said.public_key)
    assert verifies(old, said.by_old, statement)
    assert verifies(said.public_key, said.by_new, statement)
    # The server's answer is lost: after a restart the new key is tried, then the old one, which counts.
    agent.kill(signal.SIGKILL)
    agent.start()
    await server.until(lambda: len(server.hellos) == 2)
    assert server.strangers >= 1
    await server.send_raw(encode_frame(RotateKey(nonce)))
    await server.until(lambda: len(server.new_keys) == 2)
    assert server.new_keys[1].public_key == said.public_key
    server.public_key = said.public_key
    await server.send_raw(encode_frame(KeyAccepted(said.public_key)))
    await until_log(agent, "the node's key was replaced")
    await server.cut()
    await server.until(lambda: len(server.hellos) == 3)
    assert not (agent.state_dir / "key.next").exists()


@pytest.mark.parametrize("how", ["the server was set back", "the server asks"])
async def test_a_journal_that_cannot_go_on_begins_anew_and_no_event_is_lost(
    server: Server, agent: AgentProcess, how: str
) -> None:
    await server.send(start_order(env={"FAKE_STEP_S": "0.05"}), job_id="job_1", attempt=1, epoch=1)
    await server.until(lambda: len(server.bodies(RankSaid)) > 10)
    journal = server.hellos[0].journal_id
    pids = {body.pid for body in server.bodies(RankStarted)}
    if how == "the server was set back":
        server.acked[journal] = 2
        await server.cut()
    else:
        await server.send_raw(encode_frame(Refused("resync", "begin a new journal", 0.1)))
    await server.until(lambda: server.hellos[-1].journal_id != journal)
    count = len(server.bodies(RankSaid))
    await server.until(lambda: len(server.bodies(RankSaid)) > count + 10)
    for rank in (0, 1):
        steps = [body.report.step for body in server.bodies(RankSaid) if body.ref.rank == rank]
        assert sorted(set(steps)) == list(range(max(steps) + 1))
    assert {status.pid for status in server.hellos[-1].ranks} == pids
