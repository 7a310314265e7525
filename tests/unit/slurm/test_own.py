"""A control plane of the allocation's own is kept running while its caller waits for something else."""

import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from controlplane.demo.processes import ProcessSpec
from controlplane.demo.supervisor import Supervisor
from controlplane.slurm import own


def wait(what: str, reached: Callable[[], bool]) -> None:
    """As somebody who is blocked in a call: nothing here looks after the processes."""
    until_s = time.monotonic() + 20.0
    while not reached():
        assert time.monotonic() < until_s, what
        time.sleep(0.02)


def test_what_ends_is_started_again_though_its_caller_waits_and_it_cannot_be_started_for_a_while(
    tmp_path: Path,
) -> None:
    program, log, said = tmp_path / "program", tmp_path / "log", list[str]()
    program.write_text(f"#!{sys.executable}\nwith open({str(log)!r}, 'a') as log:\n    log.write('up\\n')\n")
    program.chmod(0o755)
    supervisor = Supervisor(
        env={}, logs=tmp_path / "logs", requests=tmp_path / "requests", node_state=lambda node: tmp_path / node
    )
    starts = lambda: log.read_text().count("up") if log.exists() else 0  # noqa: E731
    supervisor.start(ProcessSpec(name="web", argv=(str(program),), restart_delay_s=0.02))
    other = tmp_path / "other"
    beside = (sys.executable, "-c", f"open({str(other)!r}, 'a').write('x')")
    supervisor.start(ProcessSpec(name="worker", argv=beside, restart_delay_s=0.02))
    with own.supervised(supervisor, said.append):
        wait("it is started again", lambda: starts() >= 2)
        program.rename(tmp_path / "away")
        wait("that it cannot be started is said", lambda: bool(said))
        before, runs = starts(), len(other.read_text())
        wait("the one behind it is started again meanwhile", lambda: len(other.read_text()) > runs + 1)
        (tmp_path / "away").rename(program)
        wait("it is started again once it can be", lambda: starts() > before)
    supervisor.stop_all()
    (line,) = said
    assert line.startswith("A process of the control plane cannot be started: ") and str(program) in line


@pytest.mark.parametrize(
    ("host", "resolved", "mine", "bound"),
    [
        ("10.1.0.7", [], False, "10.1.0.7"),
        ("gpu-1", ["10.1.0.7"], True, "10.1.0.7"),
        ("gpu-1", ["127.0.1.1", "10.1.0.7"], True, "10.1.0.7"),
        ("gpu-1", ["127.0.1.1"], True, own.EACH_INTERFACE),
        ("gpu-1", ["10.1.0.7"], False, own.EACH_INTERFACE),
        ("gpu-1", None, True, own.EACH_INTERFACE),
    ],
)
def test_it_listens_on_the_address_of_the_nodes_name_alone_where_that_is_one_that_others_reach(
    monkeypatch: pytest.MonkeyPatch, host: str, resolved: list[str] | None, mine: bool, bound: str
) -> None:
    def getaddrinfo(asked: str, *_: object) -> list[tuple[object, ...]]:
        if resolved is None:
            raise socket.gaierror("Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, 0)) for each in resolved]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(own, "_here", lambda address: mine)
    assert own.bound_to(host) == bound


def test_an_address_is_this_machines_where_it_can_be_listened_on() -> None:
    assert own._here("127.0.0.1") and not own._here("192.0.2.1")


def test_the_control_plane_of_an_allocation_is_bound_to_that_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own.tools, "address_of", lambda node: node)
    monkeypatch.setattr(own, "bound_to", lambda host: {"gpu-1": "127.0.0.3"}[host])
    made = own.config(tmp_path, node="gpu-1", shared=tmp_path, checkpoints=tmp_path / "checkpoints")
    assert made.outside is not None and (made.outside.host, made.outside.bind) == ("gpu-1", "127.0.0.3")
