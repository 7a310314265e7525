"""An agent believes a server by its certificate alone: host name, authorities, or the one it was given."""

from pathlib import Path

import pytest

from agents.config import load
from agents.errors import ConfigError
from controlplane.protocol.codec import encode_frame
from controlplane.protocol.handshake import Challenge
from tests.integration.agents.authority import Authority, fingerprint
from tests.integration.agents.conftest import AgentProcess
from tests.integration.agents.server import Server

OFFER = "X-Holdfast-Channel: tls-certificate\r\n"


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "ours")


@pytest.fixture
def theirs(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "theirs")


@pytest.mark.parametrize("pin", ["file", "served"])
async def test_with_the_pinned_authority_or_certificate_it_enrols_and_connects(
    pin: str, tmp_path: Path, ours: Authority
) -> None:
    server = Server()
    server.tls = ours.context("localhost")
    async with server:
        agent = AgentProcess(server, tmp_path / "state", "--tls-ca-file", str(getattr(ours, pin))).start()
        try:
            await server.until(lambda: server.connections)
            assert len(server.enrolments) == 1
        finally:
            agent.kill()


async def test_it_gives_its_token_to_no_server_of_another_authority_though_the_machine_trusts_it(
    tmp_path: Path, ours: Authority, theirs: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SSL_CERT_FILE stands for the machine's authorities: without a pin the agent goes there."""
    monkeypatch.setenv("SSL_CERT_FILE", str(theirs.file))
    server = Server()
    server.tls = theirs.context("localhost")
    async with server:
        pinned = AgentProcess(server, tmp_path / "pinned", "--tls-ca-file", str(ours.file)).start()
        try:
            await _told(pinned, "certificate verify failed")
            assert server.enrolments == []
        finally:
            pinned.kill()
        trusting = AgentProcess(server, tmp_path / "trusting").start()
        try:
            await server.until(lambda: server.connections)
        finally:
            trusting.kill()


async def test_it_gives_its_token_to_no_server_that_has_another_name(tmp_path: Path, ours: Authority) -> None:
    server = Server()
    server.tls = ours.context("other.example")
    async with server:
        agent = AgentProcess(server, tmp_path / "state", "--tls-ca-file", str(ours.file)).start()
        try:
            await _told(agent, "Hostname mismatch")
            assert server.enrolments == []
        finally:
            agent.kill()


async def test_a_proxy_that_asks_agents_for_a_certificate_gets_it(tmp_path: Path, ours: Authority) -> None:
    server = Server()
    server.tls = ours.context("localhost", asks_for=ours)
    certificate, key = ours.issue("node-1")
    pin = ("--tls-ca-file", str(ours.file))
    async with server:
        bare = AgentProcess(server, tmp_path / "bare", *pin).start()
        try:
            await _told(bare, "cannot reach localhost")
            assert server.enrolments == []
        finally:
            bare.kill()
        shown = AgentProcess(
            server, tmp_path / "state", *pin, "--tls-certificate", str(certificate), "--tls-key", str(key)
        ).start()
        try:
            await server.until(lambda: server.connections)
        finally:
            shown.kill()


async def test_its_proof_has_the_certificate_that_its_own_connection_showed_each_time_that_it_is_asked(
    tmp_path: Path, ours: Authority
) -> None:
    server = Server()
    server.tls, server.bind_tls = ours.context("localhost"), True
    async with server:
        agent = AgentProcess(server, tmp_path / "state", "--tls-ca-file", str(ours.file)).start()
        try:
            await server.until(lambda: server.hellos)
            await server.send_raw(encode_frame(Challenge(bytes(32), bind_tls=True)))
            await server.until(lambda: len(server.proofs) > 1)
        finally:
            agent.kill()
    assert [proof.tls_certificate for proof in server.proofs] == [fingerprint(ours.served)] * 2
    assert [proof.server_host for proof in server.proofs] == ["localhost"] * 2
    assert OFFER in server.headers[0]


@pytest.mark.parametrize(("tls", "asked"), [(True, False), (False, True)], ids=["not asked", "no TLS"])
async def test_its_proof_is_as_before_where_it_is_not_asked_and_where_there_is_no_tls(
    tmp_path: Path, ours: Authority, tls: bool, asked: bool
) -> None:
    server = Server()
    server.tls, server.bind_tls = ours.context("localhost") if tls else None, asked
    pin = ("--tls-ca-file", str(ours.file)) if tls else ()
    async with server:
        agent = AgentProcess(server, tmp_path / "state", *pin).start()
        try:
            await server.until(lambda: server.hellos)
        finally:
            agent.kill()
    assert server.proofs[0].tls_certificate == ""
    assert (OFFER in server.headers[0]) == tls


def test_files_that_are_none_and_keys_that_others_can_read_stop_the_start(tmp_path: Path, ours: Authority) -> None:
    certificate, key = ours.issue("node-1")
    server = ["--server", "wss://localhost:1", "--state-dir", str(tmp_path / "s")]
    own = ["--tls-certificate", str(certificate), "--tls-key", str(key)]
    load([*server, "--tls-ca-file", str(ours.file), *own], {})
    (tmp_path / "text").write_text("no certificate")
    for options, says in (
        (["--tls-ca-file", str(tmp_path / "none")], "no certificate"),
        (["--tls-ca-file", str(tmp_path / "text")], "no certificate"),
        (["--tls-certificate", str(certificate)], "go together"),
        (["--tls-certificate", str(ours.file), "--tls-key", str(key)], "go together"),
    ):
        with pytest.raises(ConfigError, match=says):
            load([*server, *options], {})
    key.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        load([*server, *own], {})
    with pytest.raises(ConfigError, match="are for wss://"):
        load(["--server", "ws://127.0.0.1:1", "--tls-ca-file", str(ours.file)], {})


async def _told(agent: AgentProcess, words: str) -> None:
    """Its log says so."""
    import asyncio

    async with asyncio.timeout(20):
        while words not in agent.log():
            await asyncio.sleep(0.1)
