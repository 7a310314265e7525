"""The rendezvous store tells Prometheus what it holds, and the control plane where."""

import argparse
import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from controlplane.protocol.store_keys import store_token
from controlplane.runtime import beats
from controlplane.sentinel import store_probe
from trainer.store import exporter, wire
from trainer.store.server import FORGET_AFTER_S, StoreServer
from trainer.store.wire import Query

KEY = b"the key of the store in this test, 32 bytes or more"
WAIT_S = 60.0


class Store(NamedTuple):
    """A real process."""

    process: subprocess.Popen[str]
    address: str
    metrics: str

    def figures(self) -> dict[str, float]:
        with urllib.request.urlopen(f"http://{self.metrics}/metrics", timeout=WAIT_S) as answer:
            lines = [line.split() for line in answer.read().decode().splitlines() if line.startswith("holdfast_store")]
        return {name: float(value) for name, value in lines}


@contextlib.contextmanager
def store(folder: Path, *more: str) -> Iterator[Store]:
    (folder / "key").write_bytes(KEY)
    argv = [sys.executable, "-m", "trainer.store", "--key-file", str(folder / "key"), *more]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        address = process.stdout.readline().split()[-1]
        told = process.stdout.readline().split() if "off" not in more else ["", "", "", ""]
        yield Store(process, address, told[3])
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Store]:
    with store(tmp_path, "--metrics-bind", "127.0.0.1:0") as found:
        yield found


def connected(of: Store) -> socket.socket:
    host, port = of.address.split(":")
    connection = socket.create_connection((host, int(port)), timeout=WAIT_S)
    connection.sendall(struct.pack("<BI", Query.VALIDATE, wire.MAGIC))
    return connection


def sized(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data


def key_of(name: str) -> bytes:
    return sized(f"/job_a/{store_token(KEY, 'job_a')}/{name}".encode())


def until(of: Store, **wanted: float) -> dict[str, float]:
    """The figures once these are so: what a client sends takes a moment."""
    deadline_s = time.monotonic() + WAIT_S
    while True:
        found = of.figures()
        if all(found[f"holdfast_store_{name}"] == value for name, value in wanted.items()):
            return found
        assert time.monotonic() < deadline_s, found
        time.sleep(0.05)


def test_connections_keys_waits_and_refusals_are_told(running: Store) -> None:
    until(running, up=1, connections=0, jobs=0, waits=0, keys=0, held_bytes=0, refused_total=0)
    with connected(running) as writer, connected(running) as waiter:
        until(running, connections=2, jobs=0)
        writer.sendall(bytes([Query.SET]) + key_of("x") + sized(b"1234"))
        waiter.sendall(bytes([Query.WAIT]) + struct.pack("<Q", 2) + key_of("y") + key_of("z"))
        until(running, keys=1, waits=1, jobs=1, held_bytes=len("x") + len(b"1234"))
        for name in ("y", "z"):
            writer.sendall(bytes([Query.SET]) + key_of(name) + sized(b""))
        assert waiter.recv(1) == wire.STOP_WAITING
        until(running, waits=0, keys=3)
    until(running, connections=0, jobs=0)
    with connected(running) as stranger:
        stranger.sendall(bytes([Query.GET]) + sized(b"/job_a/guess/x"))
        assert stranger.recv(1) == b""
    until(running, refused_total=1, connections=0)


def test_a_store_that_stands_still_does_not_look_well(running: Store) -> None:
    os.kill(running.process.pid, signal.SIGSTOP)
    with pytest.raises(OSError), urllib.request.urlopen(f"http://{running.metrics}/metrics", timeout=1.0):
        pass
    os.kill(running.process.pid, signal.SIGCONT)
    assert running.figures()["holdfast_store_up"] == 1


@pytest.mark.django_db
def test_health_says_where_the_store_exports(running: Store, settings: Any, tmp_path: Path) -> None:
    settings.STORE_ADDRESS, settings.STORE_KEY = running.address, KEY
    assert beats.metrics_addresses()["store"] == []
    deadline_s = time.monotonic() + WAIT_S
    while beats.metrics_addresses()["store"] != [running.metrics]:
        # It tells us a moment after it has told its log.
        assert time.monotonic() < deadline_s
        store_probe.look()

    with pytest.raises(store_probe.NoAnswer):
        store_probe.metrics_of(running.address, b"another key, of 32 bytes or even more")
    with store(tmp_path, "--metrics-bind", "off") as quiet:
        assert store_probe.metrics_of(quiet.address, KEY) == ""
    store_probe.look()
    running.process.kill()
    running.process.wait()
    store_probe.look()


def test_what_the_store_says_of_itself_is_not_forgotten() -> None:
    server = StoreServer(KEY)
    server.tell_health("127.0.0.1:9475")
    server.shelf("job_a")
    server.tidy(time.monotonic() + 2 * FORGET_AFTER_S)
    assert len(server.shelves) == 1


def test_a_port_that_is_taken_stops_no_store() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        bind = f"127.0.0.1:{taken.getsockname()[1]}"
        assert exporter.start(exporter.parse_bind(bind), StoreServer(KEY), None) == ""  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "meant"), [("off", None), ("127.0.0.1:9475", ("127.0.0.1", 9475)), ("[::1]:0", ("::1", 0))]
)
def test_a_bind_names_address_and_port(text: str, meant: object) -> None:
    assert exporter.parse_bind(text) == meant


@pytest.mark.parametrize("text", ["", "127.0.0.1", "host:1", "127.0.0.1:x", "127.0.0.1:65536"])
def test_another_bind_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        exporter.parse_bind(text)
