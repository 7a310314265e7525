"""Stopping an installation: in order, in bounded time, and at once when asked twice."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from controlplane.demo.ending import INTERRUPTED
from controlplane.demo.processes import ProcessSpec
from controlplane.demo.supervisor import SERVERS_FROM, Supervisor

PATIENCE_S = 30
Start = Callable[[str], tuple[subprocess.Popen[str], int]]
# The same few lines as `controlplane.demo`, around one process.
PROGRAM = """
import sys
from pathlib import Path
from controlplane.demo.ending import Ending
from controlplane.demo.processes import ProcessSpec
from controlplane.demo.supervisor import Supervisor

here = Path(sys.argv[1])
supervisor = Supervisor(env={}, logs=here / "logs", requests=here / "requests", node_state=lambda name: here / name)
ending = Ending(supervisor.kill_all)
supervisor.start(ProcessSpec(name="only", argv=("/bin/sh", "-c", sys.argv[2])))
ending.after(3600.0)
print(supervisor.pid("only"), flush=True)
supervisor.run(until=ending.asked)
print("stopping", flush=True)
supervisor.stop_all(grace_s=3600.0)
"""
LOOP = "touch up; while true; do sleep 0.1; done"
STUBBORN = f"trap '' TERM; {LOOP}"


def eventually(claim: Callable[[], bool]) -> None:
    """Poll; the run's own limit ends what never comes."""
    while not claim():
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    """Not a process that is dead and merely unreaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Start]:
    """Starts the program around a script; gives it and the script's pid, once the script runs."""
    started = []

    def start(script: str) -> tuple[subprocess.Popen[str], int]:
        argv = [sys.executable, "-c", PROGRAM, str(tmp_path), f"cd {tmp_path}; {script}"]
        started.append(subprocess.Popen(argv, stdout=subprocess.PIPE, text=True))
        pid = int(line(started[-1]))
        eventually((tmp_path / "up").exists)
        return started[-1], pid

    yield start
    for process in started:
        process.kill()
        process.wait()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_one_signal_ends_it_whatever_time_it_was_given(
    demo: Callable[[str], tuple[subprocess.Popen[str], int]],
) -> None:
    process, pid = demo(LOOP)
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == 0
    assert not is_running(pid)


def test_a_second_signal_ends_what_does_not_end(demo: Start) -> None:
    process, pid = demo(STUBBORN)
    process.send_signal(signal.SIGTERM)
    assert line(process) == "stopping"
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == INTERRUPTED
    eventually(lambda: not is_running(pid))


def test_what_serves_others_ends_after_them_and_what_does_not_end_is_killed(tmp_path: Path) -> None:
    supervisor = Supervisor(env={}, logs=tmp_path / "logs", requests=tmp_path / "req", node_state=lambda name: tmp_path)
    pids: dict[str, int] = {}

    def start(name: str, script: str, stop_order: int = 50) -> None:
        home = tmp_path / name
        home.mkdir()
        argv = ("/bin/sh", "-c", f"cd {home}; {script}")
        supervisor.start(ProcessSpec(name=name, argv=argv, stop_order=stop_order))
        pids[name] = supervisor.pid(name) or 0
        eventually((home / "up").exists)

    start("server", LOOP, SERVERS_FROM)
    start("client", f"trap 'sleep 0.2; kill -0 {pids['server']} && touch served; exit 0' TERM; {LOOP}")
    start("stubborn", STUBBORN)
    supervisor.stop_all(grace_s=1.0)
    assert (tmp_path / "client" / "served").exists()
    assert [name for name, pid in pids.items() if is_running(pid)] == []
