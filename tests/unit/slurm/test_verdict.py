"""How a run comes out, and the certificate by which its agents know its server."""

import socket
import ssl
import threading
from pathlib import Path

import pytest

from controlplane.cli.exits import Exit
from controlplane.slurm import certificate
from controlplane.slurm.verdict import verdict


def said(state: str, *, committed: int = 40, saved: int | None = 38) -> tuple[Exit, str]:
    return verdict(state, committed_step=committed, checkpoint_step=saved, reason="out of memory")


def test_the_exit_code_is_the_jobs_outcome() -> None:
    assert said("succeeded") == (0, "The job is done: 40 steps.")
    assert said("failed") == (1, "The job has failed: out of memory")
    assert said("cancelled")[0] == 1
    for state in ("pending", "starting", "running", "recovering", "preempted", "resuming"):
        code, sentence = said(state)
        assert code == 6 and "40 steps were trained, the newest checkpoint is of step 38" in sentence
    assert "nothing is saved" in said("running", saved=None)[1]
    assert "no step was trained" in said("pending", committed=0, saved=None)[1]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_certificate_is_good_for_its_host_and_for_no_other(tmp_path: Path, host: str) -> None:
    pem, key = tmp_path / "server.crt", tmp_path / "server.key"
    certificate.make(host, certificate=pem, key=key)
    assert key.stat().st_mode & 0o077 == 0
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem, key)
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        for _ in range(2):
            try:
                with context.wrap_socket(listener.accept()[0], server_side=True) as peer:
                    peer.recv(1)
            except OSError:
                continue

    server = threading.Thread(target=serve, daemon=True)
    server.start()
    trusted = ssl.create_default_context(cafile=pem)
    with (
        socket.create_connection(listener.getsockname()) as plain,
        trusted.wrap_socket(plain, server_hostname=host) as peer,
    ):
        peer.send(b"x")
    with socket.create_connection(listener.getsockname()) as plain, pytest.raises(ssl.SSLCertVerificationError):
        trusted.wrap_socket(plain, server_hostname="other.example.org")
    server.join(10)
    listener.close()
