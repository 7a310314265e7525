"""A program that is started as a fork is what it would be as a process of its own."""

import ast
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.forks import ROOT, Forked, command

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
CONFIGURED = """
import json, logging, sys
from controlplane.config.env import load, start_or_say_why
start_or_say_why()
import django
django.setup()
from django.conf import settings
from django.db import connection
import controlplane.config.celery as celery
told = {"connection": repr(connection.settings_dict), "open": connection.connection is not None}
told |= {name: repr(getattr(settings, name)) for name in dir(settings) if name.isupper()}
told["broker"], told["env"] = celery.app.conf.broker_url, repr(load())
told["log"] = [logging.getLogger().level, logging.getLogger().handlers[0].stream is sys.stderr]
print(json.dumps(told))
"""
# Read when it is imported: of Django's what names a model; of the command line what no program of the server imports.
READ_EARLY = {
    "controlplane/access/models.py": {"settings.AUTH_USER_MODEL"},
    "controlplane/cli/config.py": {"os.environ"},
}
READ_EARLY["controlplane/recovery/proof.py"] = {"time.monotonic"}
"""The last is read again by `tests.forks.server.with_own_settings`."""
ENV = {"PATH": os.environ["PATH"], "HOLDFAST_A": "b"}


def forked(*argv: str, place: Path) -> Forked:
    with (place / "log").open("ab") as log:
        return Forked(list(argv), env=ENV, cwd=place, output=log)


class Early(ast.NodeVisitor):
    """Names of settings, environment, connections, clock and processes that a module looks up when it is imported."""

    READ = ("settings.", "os.environ", "connection.", "connections[")
    CALLED = ("os.getpid", "os.urandom", "time.time", "time.monotonic")

    def __init__(self) -> None:
        self.found: set[str] = set()

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for early in (*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)):
            self.visit(early)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        return

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if (text := ast.unparse(node)).startswith(self.READ):
            self.found.add(text)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if (text := ast.unparse(node.func)).startswith(self.CALLED):
            self.found.add(text)
        self.generic_visit(node)


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


def test_a_program_of_the_backend_has_the_settings_of_its_own_environment(tmp_path: Path) -> None:
    own = ENV | {
        "DJANGO_SETTINGS_MODULE": "controlplane.config.settings.test", "HOLDFAST_STATE_DIR": str(tmp_path / "own"),
        "HOLDFAST_DATABASE_URL": f"sqlite://{tmp_path}/own.sqlite3", "HOLDFAST_REDIS_URL": "redis://127.0.0.1:7/3",
        "HOLDFAST_FRAME_INTERVAL_S": "0.7", "HOLDFAST_LOG_LEVEL": "ERROR", "HOLDFAST_DEMO": "true",
        "HOLDFAST_ALLOWED_HOSTS": "one,two",
    }  # fmt: skip
    with (tmp_path / "log").open("ab") as log:
        program = Forked(["-c", CONFIGURED], env=own, cwd=ROOT, output=log, kind="backend")
    ever = subprocess.run(
        [sys.executable, "-c", CONFIGURED], cwd=ROOT, env=own, capture_output=True, text=True, timeout=60, check=True
    )
    assert program.wait(60) == 0, (tmp_path / "log").read_text()
    told = json.loads((tmp_path / "log").read_text().splitlines()[-1])
    assert told == json.loads(ever.stdout)
    assert (told["FRAME_INTERVAL_S"], told["open"], told["log"]) == ("0.7", False, [40, True])


def test_a_program_of_the_backend_whose_settings_are_wrong_says_so_in_one_line(tmp_path: Path) -> None:
    wrong = ENV | {
        "DJANGO_SETTINGS_MODULE": "controlplane.config.settings.test", "HOLDFAST_STATE_DIR": str(tmp_path),
        "HOLDFAST_GRACE_S": "soon",
    }  # fmt: skip
    with (tmp_path / "log").open("ab") as log:
        assert Forked(["-c", "pass"], env=wrong, cwd=ROOT, output=log, kind="backend").wait(60) == 1
    assert (tmp_path / "log").read_text().splitlines()[-1].startswith("HOLDFAST_GRACE_S: ")


def test_nothing_of_the_server_looks_at_settings_environment_or_clock_when_it_is_imported() -> None:
    found = {}
    for path in sorted((ROOT / "controlplane").rglob("*.py")):
        name = str(path.relative_to(ROOT))
        if name.startswith(("controlplane/config/settings/", "controlplane/config/asgi.py")) or "/migrations/" in name:
            continue
        early = Early()
        early.visit(ast.parse(path.read_text()))
        if early.found:
            found[name] = early.found
    assert found == READ_EARLY


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
