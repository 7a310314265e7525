"""The libraries of a job's own program are those of the interpreter that it names."""

import os
import resource
import shlex
import signal
import sys
import time
from pathlib import Path

import msgspec
import pytest

from agents.core.health import Needs, Readings, judge
from agents.core.policy import Policy
from agents.probes.libraries import Interpreters
from agents.probes.node_checks import read_launch
from agents.ranks.launch import Standing
from controlplane.protocol.launch import ReplicaLaunch
from controlplane.protocol.launch_checks import interpreter_of
from tests.properties.agents.world import launch

NEEDS = Needs(driver_major=570, free_bytes=0)
WAIT_S = 20.0
SCRIPT = str(Path(__file__).resolve())
"""Stands for the job's own, which must be there."""


def install(site: Path, version: str) -> None:
    """A torch as pip leaves it, in place of what was there."""
    for older in site.glob("torch-*"):
        (older / "METADATA").unlink()
        older.rmdir()
    folder = site / f"torch-{version}.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")


def interpreter(folder: Path, line: str = 'exec {python} "$@"') -> Path:
    """A python that counts in a file beside it how often it ran."""
    path = folder / "bin" / "python3"
    path.parent.mkdir(exist_ok=True)
    counting = f"echo $$ >> {shlex.quote(str(folder / 'runs'))}"
    path.write_text(f"#!/bin/sh\n{counting}\necho hello\n{line.format(python=shlex.quote(sys.executable))}\n")
    path.chmod(0o755)
    return path


def runs(folder: Path) -> list[int]:
    return [int(line) for line in (folder / "runs").read_text().splitlines()]


def wanting(argv: tuple[str, ...], env: dict[str, str]) -> ReplicaLaunch:
    config = msgspec.structs.replace(launch().config, checkpoint_dir="s3://bucket/job")
    return msgspec.structs.replace(launch(), config=config, entrypoint=argv, env=env)


def test_a_torch_that_cannot_recover_is_refused_with_where_it_is_until_another_is_installed(tmp_path: Path) -> None:
    site, asked = tmp_path / "site", Interpreters()
    install(site, "2.4.1")
    path = interpreter(tmp_path)
    job = wanting(("env", "A=1", "python3", SCRIPT), {"PYTHONPATH": str(site), "PATH": f"{path.parent}:/bin"})
    for _ in range(3):
        (failed,) = judge(read_launch(job, (), asked, Standing(), policy=Policy()), NEEDS)
    assert failed.name == "library"
    assert failed.detail.startswith("torch 2.4.1 in ") and "bin/python3 is known not to recover" in failed.detail
    assert failed.detail.endswith("install 2.5.1 or newer")
    assert len(runs(tmp_path)) == 1, "its answer is kept"
    install(site, "2.9.0")
    found = read_launch(job, (), asked, Standing(), policy=Policy())
    assert (found.interpreter, dict(found.libraries)["torch"]) == (str(path), "2.9.0")
    assert judge(found, NEEDS) == ()
    assert len(runs(tmp_path)) == 2


def test_an_interpreter_that_hangs_is_ended_and_keeps_no_start_away(tmp_path: Path) -> None:
    job = wanting((str(interpreter(tmp_path, "sleep 600 & wait")), SCRIPT), {})
    assert read_launch(job, (), Interpreters(answer_s=0.5), Standing(), policy=Policy()) == Readings()
    deadline_s = time.monotonic() + WAIT_S
    while exists(runs(tmp_path)[0]):
        assert time.monotonic() < deadline_s, "what it started goes on"
        time.sleep(0.01)


@pytest.mark.parametrize("line", ["exec cat /dev/zero", "{python} -c 'print(\"[\" * 200_000)'"])
def test_a_program_that_says_more_than_an_answer_costs_no_memory_and_no_start(tmp_path: Path, line: str) -> None:
    job = wanting((str(interpreter(tmp_path, line)), SCRIPT), {})
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert read_launch(job, (), Interpreters(answer_s=2.0), Standing(), policy=Policy()) == Readings()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 50_000


def test_what_it_left_in_a_session_of_its_own_holds_up_nobody(tmp_path: Path) -> None:
    left = tmp_path / "left"
    line = f"setsid sh -c 'echo $$ > {shlex.quote(str(left))}; exec sleep 600' &\nwait"
    began_s = time.monotonic()
    job = wanting((str(interpreter(tmp_path, line)), SCRIPT), {})
    assert read_launch(job, (), Interpreters(answer_s=0.5), Standing(), policy=Policy()) == Readings()
    assert time.monotonic() - began_s < WAIT_S
    os.kill(int(left.read_text()), signal.SIGKILL)


def exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("line", ["exit 1", "echo [1, 2]", "echo '[[], []]'", "echo '[{{}}, 5]'", "echo '['"])
def test_an_answer_that_is_none_is_no_proof_of_a_fault(tmp_path: Path, line: str) -> None:
    job = wanting((str(interpreter(tmp_path, line)), SCRIPT), {})
    assert judge(read_launch(job, (), Interpreters(), Standing(), policy=Policy()), NEEDS) == ()


@pytest.mark.parametrize(
    ("argv", "found"),
    [
        (("python", "train.py"), "python"),
        (("env", "A=1", "nice", "-n", "5", "/opt/venv/bin/python3.12", "-m", "train"), "/opt/venv/bin/python3.12"),
        (("env", "PATH=/opt/venv/bin", "python", "train.py"), ""),
        (("bash", "-c", "source venv/bin/activate; python train.py"), ""),
        (("./train", "python"), ""),
        ((), ""),
    ],
)
def test_the_interpreter_is_the_one_that_runs_the_program(argv: tuple[str, ...], found: str) -> None:
    assert interpreter_of(list(argv)) == found
