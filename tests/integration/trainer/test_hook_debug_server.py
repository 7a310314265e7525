"""The debug server of a program that brings its own loop, asked as its agent asks it."""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from agents.ranks import debug_client
from agents.ranks.diagnose import Subject, look
from agents.ranks.identity import identity_of
from controlplane.protocol.flight import decode_dump
from tests.unit.trainer.agent import FakeAgent

pytestmark = pytest.mark.trainer
ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """
import pathlib, sys, time
from trainer import hooks

run = hooks.start()
assert "torch" not in sys.modules
folder = pathlib.Path(sys.argv[1])

def wait_for_torch():
    while not (folder / "go").exists():
        time.sleep(0.01)

wait_for_torch()
import torch
import torch.distributed as dist

dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=0, world_size=1)
dist.new_group([0], group_desc="mine")
dist.all_reduce(torch.ones(3))
while not (folder / "end").exists():
    time.sleep(0.01)
sys.exit(run.finish())
"""


class Running(NamedTuple):
    """The program as an agent sees it, and its process."""

    subject: Subject
    process: subprocess.Popen[bytes]


@pytest.fixture
def program(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Running]:
    """Where a shell runs it, that is the process that an agent knows."""
    agent, doors = FakeAgent(tmp_path), tmp_path / debug_client.FOLDER
    doors.mkdir(mode=0o700)
    log = tmp_path / "log"
    (tmp_path / "program.py").write_text(PROGRAM)
    argv = [sys.executable, str(tmp_path / "program.py"), str(tmp_path)]
    with log.open("ab") as output:
        process = subprocess.Popen(
            argv if request.param == "direct" else ["bash", "-c", f"{shlex.join(argv)}; exit $?"],
            env=os.environ | agent.environment() | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    identity = identity_of(process.pid)
    assert identity is not None
    yield Running(Subject(rank=0, identity=identity, log_path=log, debug_servers=doors, duration_s=0.2), process)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    agent.close()


@pytest.mark.parametrize("program", ["direct"], indirect=True)
def test_a_programs_stacks_are_told(program: Running) -> None:
    subject, _ = program
    until(lambda: look("ping", subject)[1] == "debug server", subject)
    until(lambda: "wait_for_torch" in look("stacks", subject)[0], subject)
    assert look("stacks", subject)[1] in ("py-spy", "faulthandler")


@pytest.mark.parametrize("program", ["shell"], indirect=True)
def test_a_program_answers_before_it_has_torch_and_with_all_of_it_afterwards(program: Running, tmp_path: Path) -> None:
    subject, process = program
    until(lambda: look("ping", subject)[0].startswith("pong after "), subject)
    text, method = look("profile", subject)
    assert method == "sampling"
    assert "wait_for_torch (program.py:" in text
    assert "no process group of torch.distributed, and so no Flight Recorder" in look("flight_recorder", subject)[0]
    assert "no wait counters" in look("wait_counters", subject)[0]
    assert (subject.debug_servers / f"{subject.identity.pid}.sock").stat().st_mode & 0o077 == 0

    (tmp_path / "go").touch()
    until(lambda: (subject.debug_servers / f"{subject.identity.pid}.json").exists(), subject)
    until(lambda: look("flight_recorder", subject)[1] == "debug server", subject)
    until(lambda: decode_dump(look("flight_recorder", subject)[0]).entries, subject)
    dump = decode_dump(look("flight_recorder", subject)[0])
    assert [entry.operation for entry in dump.entries] == ["all_reduce"]
    until(lambda: "mine" in [group.desc for group in decode_dump(look("flight_recorder", subject)[0]).groups], subject)
    assert "c10d.init_process_group: 1 calls" in look("wait_counters", subject)[0]
    assert look("ping", subject)[0].startswith("pong after ")
    assert "samples of every Python thread" in look("profile", subject)[0]

    (tmp_path / "end").touch()
    assert process.wait(30) == 0, "torch's server may not break the interpreter's end"


def until(holds: Callable[[], object], subject: Subject) -> None:
    deadline_s = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline_s, subject.log_path.read_text()
        time.sleep(0.05)
