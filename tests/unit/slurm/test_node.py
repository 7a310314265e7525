"""An agent is kept running, and told of the end; real processes in the agent's place."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from controlplane.slurm import node, places
from controlplane.slurm.environment import Allocation, NoAllocation, read, segment
from controlplane.slurm.node import Keeper, agent_argv, parse
from tests.house.tree import ROOT

pytestmark = pytest.mark.timeout(60)
# Listens only after half a second, as an agent that is still importing; leaves 0.2 s after SIGTERM, with the grace that
# it was given in the file.
AGENT = """
import pathlib, signal, sys, time
log = pathlib.Path(sys.argv[1])
def ends(number, _):
    with log.open("a") as said:
        said.write(f"{number} {sys.argv[2]}\\n")
    time.sleep(0.2)
    sys.exit(0)
time.sleep(0.5)
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, ends)
signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGUSR1))
# Closed by name: a signal that comes while a file closes by itself is lost there, with the exit it asks for.
with log.open("a") as said:
    said.write("up\\n")
time.sleep(40)
"""
KEEP = """
import sys
from controlplane.slurm.node import Keeper
keeper = Keeper(lambda grace_s: (sys.executable, "-c", sys.argv[1], sys.argv[2], f"{grace_s:.2f}"), grace_s=20.0)
keeper.listen()
sys.exit(keeper.keep())
"""


def started(log: Path, agent: str = AGENT) -> "subprocess.Popen[bytes]":
    """A keeper as a process of its own: signals are its business."""
    return subprocess.Popen([sys.executable, "-c", KEEP, agent, str(log)], stderr=subprocess.PIPE)


def lines(log: Path, count: int) -> list[str]:
    until_s = time.monotonic() + 20.0
    while not log.exists() or len(log.read_text().splitlines()) < count:
        assert time.monotonic() < until_s, log.read_text() if log.exists() else "nothing"
        time.sleep(0.02)
    return log.read_text().splitlines()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_the_signal_of_the_end_is_passed_on_and_the_agents_code_is_its_own(tmp_path: Path, number: int) -> None:
    log = tmp_path / "log"
    keeper = started(log)
    lines(log, 1)
    keeper.send_signal(number)
    assert keeper.wait(20) == 0
    assert lines(log, 2) == ["up", f"{int(number)} 20.00"]


def test_a_signal_that_comes_before_the_agent_listens_is_not_its_death(tmp_path: Path) -> None:
    log = tmp_path / "log"
    signalling = AGENT.replace("time.sleep(0.5)", "log.write_text('here\\n'); time.sleep(0.5)")
    keeper = started(log, signalling)
    lines(log, 1)
    keeper.send_signal(signal.SIGTERM)
    assert keeper.wait(20) == 0
    assert lines(log, 2)[:2] == ["here", "15 20.00"]


def test_an_agent_that_dies_is_started_again(tmp_path: Path) -> None:
    log = tmp_path / "log"
    dies_once = AGENT.replace(
        "time.sleep(40)", "if len(log.read_text().splitlines()) == 1: sys.exit(1)\ntime.sleep(40)"
    )
    keeper = started(log, dies_once)
    assert lines(log, 2) == ["up", "up"]
    keeper.send_signal(signal.SIGTERM)
    assert keeper.wait(20) == 0
    assert keeper.stderr is not None and b"ended with 1; it is started again in 1 s" in keeper.stderr.read()


def test_an_agent_that_ends_at_once_is_not_started_in_a_loop_once_the_end_is_known(tmp_path: Path) -> None:
    log = tmp_path / "log"
    keeper = started(log, "import sys\nwith open(sys.argv[1], 'a') as said:\n    said.write('up\\n')\nsys.exit(1)")
    lines(log, 3)  # After 1 s and 2 s; it would wait for 4 s now.
    keeper.send_signal(signal.SIGTERM)
    began_s = time.monotonic()
    lines(log, 4)
    assert time.monotonic() - began_s < 3.0
    time.sleep(2.5)
    assert len(lines(log, 4)) <= 4 + 3
    keeper.kill()
    keeper.wait()


def test_an_agent_that_cannot_be_started_now_is_started_later(tmp_path: Path) -> None:
    program = tmp_path / "agent"
    keeper = Keeper(lambda _grace_s: (str(program),), grace_s=5.0)
    program.write_text("#!/bin/sh\nexit 3\n")
    made = threading.Timer(0.3, lambda: program.chmod(0o755))
    made.start()
    assert keeper.keep() == 3
    made.join()


def test_an_agent_that_dies_at_the_end_is_started_again_with_what_is_left_of_the_grace(tmp_path: Path) -> None:
    log = tmp_path / "log"
    dies = AGENT.replace(
        "sys.exit(0)", "sys.exit(0 if 'dead' in log.read_text() else (log.open('a').write('dead\\n'), 1)[1])"
    )
    keeper = started(log, dies)
    lines(log, 1)
    keeper.send_signal(signal.SIGTERM)
    assert keeper.wait(30) == 0
    said = lines(log, 4)
    assert said[:3] == ["up", "15 20.00", "dead"]
    number, left_s = said[-1].split()
    assert number == "15" and 10.0 < float(left_s) < 19.9


@pytest.mark.parametrize("code", [0, 2, 3, 4])
def test_what_another_start_would_not_change_ends_the_task(code: int) -> None:
    assert Keeper(lambda _grace_s: (sys.executable, "-c", f"raise SystemExit({code})"), grace_s=5.0).keep() == code


def test_the_agent_is_one_of_an_allocation_with_its_own_folder(tmp_path: Path) -> None:
    options = parse(["--server", "wss://n1:9", "--join-token-file", "/t", "--tls-ca-file", "/c", "--directory", "/d",
                     "--probe", "simulated", "--devices", "2", "--grace-s", "60", "--suffix", ".7",
                     "--owners", "ada"])  # fmt: skip
    here = Allocation(job="7", node="n1", index="0", segment="s0.s1")
    argv = agent_argv(options, here, folder=tmp_path, grace_s=12.5)
    words = dict(zip(argv[3::2], argv[4::2], strict=True))
    assert words == {
        "--server": "wss://n1:9", "--tls-ca-file": "/c", "--join-token-file": "/t", "--name": "n1.7",
        "--state-dir": f"{tmp_path}/a", "--probe": "simulated", "--devices": "2", "--metrics-bind": "off",
        "--tenancy": "allocation", "--grace-s": "12.5", "--owners": "ada", "--segment": "s0.s1",
    }  # fmt: skip
    argv = agent_argv(options, Allocation(job="7", node="GPU_a1", index="0", segment=""), folder=tmp_path, grace_s=1)
    assert "--segment" not in argv and argv[argv.index("--name") + 1] == "gpu-a1.7", "a name that a server takes"


def test_slurms_variables_are_checked() -> None:
    good = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "gpu-a1", "SLURM_NODEID": "3"}
    assert read(good) == Allocation(job="7", node="gpu-a1", index="3", segment="")
    for name, wrong in (
        ("SLURM_JOB_ID", "../7"),
        ("SLURM_JOB_ID", ""),
        ("SLURMD_NODENAME", "a b"),
        ("SLURM_NODEID", "-1"),
    ):
        with pytest.raises(NoAllocation, match=name):
            read(good | {name: wrong})


@pytest.mark.parametrize(
    ("address", "pattern", "found"),
    [
        ("s0.s1.n3", "switch.switch.node", "s0.s1"), ("n3", "node", ""), ("", "", ""), ("b1.n3", "block.node", "b1"),
        ("s0.n3", "node", ""), ("s0.s1", "switch.switch", ""), ("a b.n3", "switch.node", ""),
        ("x" * 99 + ".n3", "switch.node", ""),
    ],
)  # fmt: skip
def test_the_segment_is_what_is_above_the_node(address: str, pattern: str, found: str) -> None:
    assert segment(address, pattern) == found


def test_files_of_another_node_are_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "token"
    writer = threading.Timer(0.3, path.touch)
    writer.start()
    began_s = time.monotonic()
    node._await_files([path], stopped=lambda: False)
    assert path.exists() and 0.2 < time.monotonic() - began_s < 10.0
    writer.join()


def listens(pid: int) -> bool:
    """It has a handler of SIGTERM."""
    (caught,) = re.findall(r"^SigCgt:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


def test_the_end_of_the_allocation_waits_for_no_file_and_starts_no_agent(tmp_path: Path) -> None:
    argv = [
        sys.executable, "-m", "controlplane.slurm.node", "--server", "wss://n1:9", "--join-token-file",
        str(tmp_path / "none"), "--directory", str(tmp_path), "--grace-s", "20", "--owners", "ada",
    ]  # fmt: skip
    slurm = {"SLURM_JOB_ID": str(os.getpid()), "SLURMD_NODENAME": "n1", "SLURM_NODEID": "0"}
    folder = places.ROOT / f"hf-{os.geteuid()}" / f"{os.getpid()}.0"
    places.sweep(slurm["SLURM_JOB_ID"])
    task = subprocess.Popen(argv, env=os.environ | slurm, cwd=ROOT, stderr=subprocess.PIPE)
    try:
        until_s = time.monotonic() + 20.0
        while not listens(task.pid):
            assert time.monotonic() < until_s
            time.sleep(0.02)
        task.send_signal(signal.SIGTERM)
        _, said = task.communicate(timeout=10)
    finally:
        task.kill()
        task.wait()
    assert (task.returncode, said) == (0, b"") and not folder.exists()
