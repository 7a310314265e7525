"""A program that is started as a fork is what it would be as a process of its own."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.forks import Forked, command

TELL = """
import json, os, sys
told = {
    "argv": sys.argv[1:], "name": __name__, "place": os.getcwd(), "first": os.path.realpath(sys.path[0]),
    "env": {name: value for name, value in os.environ.items() if name in ("HOLDFAST_A", "PATH")},
    "files": sorted(map(int, os.listdir("/proc/self/fd")))[:3], "read": sys.stdin.read(),
    "main": os.path.realpath(sys.modules["__main__"].__file__), "leads": os.getsid(0) == os.getpid(),
    "ours": [name for name in sys.modules if name.partition(".")[0] in ("controlplane", "agents", "trainer")],
    "measured": "prometheus_client" in sys.modules, "umask": os.umask(0o22),
}
print(json.dumps(told), flush=True)
print("an error", file=sys.stderr)
sys.exit(7)
"""
TOLD = TELL.replace('os.path.realpath(sys.modules["__main__"].__file__)', '""')
"""What is given whole has no file."""
ENV = {"PATH": os.environ["PATH"], "HOLDFAST_A": "b"}


def forked(*argv: str, place: Path) -> Forked:
    with (place / "log").open("ab") as log:
        return Forked(list(argv), env=ENV, cwd=place, output=log)


@pytest.mark.parametrize("argv", [("tell.py", "-x", "y"), ("-m", "tell", "z")])
def test_it_has_its_own_arguments_environment_folder_and_files(argv: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "tell.py").write_text(TELL)
    code = forked(*argv, place=tmp_path).wait(60)
    ever = subprocess.run(
        [sys.executable, *argv], cwd=tmp_path, env=ENV, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=60, check=False, start_new_session=True,
    )  # fmt: skip
    told, error = (tmp_path / "log").read_text().splitlines()
    assert code == ever.returncode == 7
    assert error == "an error"
    assert json.loads(told) == json.loads(ever.stdout.splitlines()[0])


@pytest.mark.parametrize("kind", ["server", "trainer"])
@pytest.mark.parametrize("argv", [("tell.py", "-x", "y"), ("-m", "tell", "z"), ("-c", TOLD, "z")])
def test_a_shell_starts_it_by_a_small_program_and_it_reads_and_ends_as_ever(
    argv: tuple[str, ...], kind: str, tmp_path: Path
) -> None:
    (tmp_path / "tell.py").write_text(TELL)
    starts = ([sys.executable], command(kind=kind))
    done = [
        subprocess.run(
            [*start, *argv], cwd=tmp_path, env=ENV, input="words", capture_output=True, text=True, timeout=60,
            check=False,
        )
        for start in starts
    ]  # fmt: skip
    assert [each.returncode for each in done] == [7, 7]
    assert [each.stderr for each in done] == ["an error\n"] * 2
    ever, here = (json.loads(each.stdout) for each in done)
    assert here == ever | {"leads": True} and here["read"] == "words"


def test_a_program_that_does_not_exist_ends_as_ever(tmp_path: Path) -> None:
    assert forked("-m", "no_such_program", place=tmp_path).wait(60) == 1
    assert "no_such_program" in (tmp_path / "log").read_text()


def test_it_is_signalled_and_waited_for_as_a_child(tmp_path: Path) -> None:
    (tmp_path / "wait.py").write_text("import time; print('here', flush=True); time.sleep(600)")
    program = forked("wait.py", place=tmp_path)
    while (tmp_path / "log").read_text() != "here\n":
        assert program.poll() is None
        time.sleep(0.01)
    with pytest.raises(subprocess.TimeoutExpired):
        program.wait(0.01)
    os.killpg(program.pid, signal.SIGTERM)
    assert program.wait(30) == -signal.SIGTERM == program.poll()


def test_it_ends_when_nobody_is_left_to_wait_for_it(tmp_path: Path) -> None:
    (tmp_path / "wait.py").write_text("import time; time.sleep(600)")
    program = forked("wait.py", place=tmp_path)
    pid = program.pid
    del program
    while Path(f"/proc/{pid}").exists():
        time.sleep(0.01)
