"""A job's own program is looked for on the node, as its rank will look for it, before the start."""

import os
import sys
from pathlib import Path

import msgspec
import pytest

from agents.core.health import Needs, Readings, judge
from agents.core.policy import Policy
from agents.probes.libraries import Interpreters
from agents.probes.node_checks import read_launch
from agents.probes.programs import GONE, fault_of
from agents.ranks.launch import Standing
from agents.ranks.users import RunAs
from controlplane.protocol.launch import ReplicaLaunch
from controlplane.protocol.launch_checks import Run, python_run
from tests.properties.agents.world import launch

NEEDS = Needs(driver_major=570, free_bytes=0)
NOBODY = RunAs(uid=65534, gid=65534, groups=(65534,), name="nobody")


def wanting(*argv: str, **env: str) -> ReplicaLaunch:
    config = msgspec.structs.replace(launch().config, checkpoint_dir="s3://bucket/job")
    return msgspec.structs.replace(launch(), config=config, entrypoint=argv, env=env)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A program's directory: an interpreter that may be run, one that may not, and a script."""
    for name, mode in (("python3", 0o755), ("python", 0o644)):
        (tmp_path / name).write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        (tmp_path / name).chmod(mode)
    (tmp_path / "train.py").write_text("print('trains')\n")
    return tmp_path


def test_the_form_of_the_shipped_example_passes_where_its_files_are(folder: Path) -> None:
    for argv in (
        (str(folder / "python3"), str(folder / "train.py"), "--config", "config.yaml"),
        ("env", f"--chdir={folder}", "./python3", "train.py", "--config", "config.yaml"),
        ("env", "-C", str(folder), str(folder / "python3"), "-u", "train.py"),
        ("env", "A=1", "nice", "-n", "5", sys.executable, "-m", "train"),
        ("sh", "-c", "cd /nowhere && python train.py"),
    ):
        assert fault_of(wanting(*argv), Standing()) == "", argv
    named = wanting("python3", str(folder / "train.py"), PATH=str(folder))
    assert fault_of(named, Standing()) == "", "the job's own PATH counts"


def test_each_fault_says_what_is_wrong_where_it_was_looked_for_and_what_to_do(folder: Path) -> None:
    here = os.getcwd()
    path = "give its absolute path, or set PATH in the job's env"
    for argv, said in (
        (("python9", "train.py"), f"python9 is not there (PATH {folder}): {path}"),
        (("python", "train.py"), f"python may not be executed (PATH {folder}): {path}"),
        ((f"{folder}/run",), f"{folder}/run is not there: put the program there, or correct the entrypoint"),
        ((f"{folder}/train.py",), f"{folder}/train.py may not be executed: put the program there, "),
        ((str(folder),), f"{folder} is a directory: "),
        (("python3", "train.py"), f"{here}/train.py is not there: give the script's absolute path, or begin with env"),
        (("/usr/bin/env", "--chdir=/nowhere", "python3", "a.py"), "/nowhere is not there, and the program is to begin"),
        (("/usr/bin/env", f"--chdir={folder}/train.py", "python3"), f"{folder}/train.py is no directory, and"),
        (("/usr/bin/env", f"--chdir={folder}", "python3", "other.py"), f"{folder}/other.py is not there: "),
        (("/usr/bin/env", "python9", "train.py"), f"python9 is not there (PATH {folder}): {path}"),
    ):
        assert fault_of(wanting(*argv, PATH=str(folder)), Standing()).startswith(said), argv


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can look with another user's rights")
def test_it_is_looked_for_with_the_rights_of_the_jobs_user(folder: Path) -> None:
    places = [folder, *folder.parents]
    closed = [place for place in places if place.stat().st_mode & 0o005 != 0o005]
    modes = [place.stat().st_mode for place in closed]
    argv = (sys.executable, str(folder / "train.py"))
    try:
        for place in closed:
            place.chmod(0o755)
        (folder / "train.py").chmod(0o600)
        other = fault_of(wanting("sh", "-c", "true"), Standing(user=NOBODY))
        script = fault_of(wanting("/usr/bin/env", *argv), Standing(user=NOBODY))
        folder.chmod(0o700)
        program = fault_of(wanting(str(folder / "python3")), Standing(user=NOBODY))
    finally:
        for place, mode in zip(closed, modes, strict=True):
            place.chmod(mode)
    assert other == ""
    # The interpreter of the tests may itself be out of that user's reach.
    assert "for user nobody: " in script and "may not be re" in script
    assert program.startswith(f"{folder}/python3 may not be reached for user nobody: ")
    assert os.access(folder / "train.py", os.R_OK), "the agent's own rights are back"


def test_a_start_is_refused_with_these_words_however_long_the_path(folder: Path) -> None:
    job = wanting(f"{folder}/{'d' * 300}/python3", "train.py")
    (failed,) = judge(read_launch(job, (), Interpreters(), Standing(), policy=Policy()), NEEDS)
    assert failed.name == "program"
    assert failed.detail.startswith("...ddd") and failed.detail.endswith("or correct the entrypoint")
    built_in = msgspec.structs.replace(job, entrypoint=None)
    assert read_launch(built_in, (), Interpreters(), Standing(), policy=Policy()).program == ""


def test_an_agent_whose_own_directory_was_removed_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = folder / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert fault_of(wanting("sh", "-c", "true"), Standing()) == GONE
    assert [check.detail for check in judge(Readings(program=GONE), NEEDS)] == [GONE], "it is not cut short"


@pytest.mark.parametrize(
    ("argv", "run"),
    [
        (("python", "train.py", "-m"), Run("", "python", "train.py")),
        (("env", "--chdir=/a", "A=1", "/v/bin/python3.12", "-u", "t.py"), Run("/a", "/v/bin/python3.12", "t.py")),
        (("env", "-C", "/a", "python", "-W", "ignore", "-X", "dev", "t.py"), Run("/a", "python", "t.py")),
        (("python", "-m", "train"), Run("", "python", "")),
        (("python", "-Ic", "print()"), Run("", "python", "")),
        (("python", "-"), Run("", "python", "")),
        (("python",), Run("", "python", "")),
        (("env", "-i", "python", "t.py"), Run()),
        (("bash", "-c", "python t.py"), Run()),
        (("./train",), Run()),
        (("env", "PYSPARK_PYTHON=/usr/bin/python3", "/srv/train/run.sh"), Run()),
        (("env", "PYTHON=/opt/v/bin/python", "bash", "-c", "python t.py"), Run()),
    ],
)
def test_a_command_is_read_as_far_as_its_words_go(argv: tuple[str, ...], run: Run) -> None:
    assert python_run(list(argv)) == run
