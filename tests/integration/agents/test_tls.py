"""An agent believes a server by its certificate alone: host name, authorities, or the one it was given."""

import datetime as dt
import ssl
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from agents.config import load
from agents.errors import ConfigError
from tests.integration.agents.conftest import AgentProcess
from tests.integration.agents.server import Server

DAY = dt.timedelta(days=1)


@dataclass
class Authority:
    """Signs certificates; `file` is its own, in PEM, `served` that of its server."""

    directory: Path
    name: str

    def __post_init__(self) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, self.name)])
        self.file = self._written(f"{self.name}.crt", self._signed(self.subject, self.key, self.key, authority=True))

    def issue(self, host: str) -> tuple[Path, Path]:
        """(certificate, key) for a host, both in PEM."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
        made = self._written(f"{self.name}-{host}.crt", self._signed(subject, key, self.key, host=host))
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        path = self.directory / f"{self.name}-{host}.key"
        path.touch(0o600)
        path.write_bytes(private)
        return made, path

    def context(self, host: str, *, asks_for: "Authority | None" = None) -> ssl.SSLContext:
        """Of a server called `host`, which lets in whom `asks_for` has signed."""
        made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=asks_for.file if asks_for else None)
        self.served, key = self.issue(host)
        made.load_cert_chain(self.served, key)
        made.verify_mode = ssl.CERT_REQUIRED if asks_for else ssl.CERT_NONE
        return made

    def _signed(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, by: ec.EllipticCurvePrivateKey, *,
        host: str = "", authority: bool = False,
    ) -> x509.Certificate:  # fmt: skip
        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateBuilder(self.subject, subject, key.public_key(), x509.random_serial_number())
            .not_valid_before(now - DAY)
            .not_valid_after(now + DAY)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        )
        if host:
            builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        return builder.sign(by, hashes.SHA256())

    def _written(self, name: str, certificate: x509.Certificate) -> Path:
        path = self.directory / name
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return path


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
