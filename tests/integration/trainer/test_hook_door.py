"""The debug door of a program that brings its own loop, asked as its agent asks it."""

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agents.ranks import door
from agents.ranks.identity import identity_of
from agents.ranks.look import Subject, look
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
time.sleep(60)
"""


@pytest.fixture
def program(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Subject]:
    """Where a shell runs it, that is the process that an agent knows."""
    agent, doors = FakeAgent(tmp_path), door.prepare(tmp_path)
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
    yield Subject(rank=0, identity=identity, log_path=log, doors=doors, duration_s=0.2)
    os.killpg(process.pid, 9)
    process.wait()
    agent.close()


@pytest.mark.parametrize("program", ["direct"], indirect=True)
def test_a_programs_stacks_are_told(program: Subject) -> None:
    until(lambda: look("ping", program)[1] == "door", program)
    until(lambda: "wait_for_torch" in look("stacks", program)[0], program)
    assert look("stacks", program)[1] in ("py-spy", "faulthandler")


@pytest.mark.parametrize("program", ["shell"], indirect=True)
def test_a_program_answers_before_it_has_torch_and_with_all_of_it_afterwards(program: Subject, tmp_path: Path) -> None:
    until(lambda: look("ping", program)[0].startswith("pong after "), program)
    text, method = look("profile", program)
    assert method == "sampling"
    assert "wait_for_torch (program.py:" in text
    assert "no process group of torch.distributed, and so no Flight Recorder" in look("flight_recorder", program)[0]
    assert "no wait counters" in look("wait_counters", program)[0]
    assert (program.doors / f"{program.identity.pid}.sock").stat().st_mode & 0o077 == 0

    (tmp_path / "go").touch()
    until(lambda: (program.doors / f"{program.identity.pid}.json").exists(), program)
    until(lambda: look("flight_recorder", program)[1] == "door", program)
    until(lambda: decode_dump(look("flight_recorder", program)[0]).entries, program)
    dump = decode_dump(look("flight_recorder", program)[0])
    assert [entry.operation for entry in dump.entries] == ["all_reduce"]
    until(lambda: "mine" in [group.desc for group in decode_dump(look("flight_recorder", program)[0]).groups], program)
    assert "c10d.init_process_group: 1 calls" in look("wait_counters", program)[0]
    assert look("ping", program)[0].startswith("pong after ")
    assert "samples of every Python thread" in look("profile", program)[0]


def until(holds: Callable[[], object], program: Subject) -> None:
    deadline_s = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline_s, program.log_path.read_text()
        time.sleep(0.05)
