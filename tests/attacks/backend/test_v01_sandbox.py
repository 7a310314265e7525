"""V1, should code run after all: inside the sandbox it reaches nothing of the server's.

Each attack is a script that is run as whatever the server runs in the sandbox; it writes down
what it could do. Means that this machine does not give are skipped by name; root gets all.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pytest_django.fixtures import Settings

from controlplane.runtime.sandbox import service
from controlplane.runtime.sandbox.plan import MEANS, NOT_ISOLATED, OUT_OF_TIME, Limits, Plan, Report
from controlplane.runtime.sandbox.service import Task

pytestmark = pytest.mark.timeout(300)
MIB = 1 << 20
WROTE = "found.json"
Attack = Callable[..., tuple[int, Any]]
BEGIN = """
import json, os, socket, sys, time
out = os.path.join(os.environ["HOME"], "out", "found.json")
def tried(act):
    try:
        return act()
    except Exception as error:
        return type(error).__name__
def told(found):
    with open(out, "w") as file:
        json.dump(found, file)
"""


@pytest.fixture
def attack(tmp_path: Path) -> Attack:
    """attack(script, *arguments, needs=..., **limits) -> (exit code, what it wrote)."""
    place = tmp_path / "place"
    place.mkdir()

    def run(script: str, *arguments: str, needs: str = "environment", **limits: Any) -> tuple[int, Any]:
        task = Task(
            module="attack",
            arguments=arguments,
            place=place,
            files={"attack.py": BEGIN + script},
            outputs=[WROTE],
            limits=Limits(**{"wall_s": 60.0, "memory_bytes": 1 << 30, **limits}),
        )
        code = service.run(task)
        report = service.report_of(place) or Report()
        if os.geteuid() == 0:
            assert sorted(report.applied) == sorted(MEANS), report.missing
        elif needs in report.missing:
            pytest.skip(f"this machine does not give a user other than root {needs}: {report.missing[needs]}")
        found = place / WROTE
        return code, json.loads(found.read_text()) if found.exists() else None

    return run


def test_it_cannot_read_the_servers_environment_or_files(
    attack: Attack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret_key"
    secret.write_text("the key")
    secret.chmod(0o644)
    monkeypatch.setenv("HOLDFAST_SECRET_KEY", "the key")
    script = """
told({
    "environment": sorted(os.environ),
    "secret": tried(lambda: open(sys.argv[1]).read()),
    "folder": tried(lambda: os.listdir(os.path.dirname(sys.argv[1]))),
    "server": tried(lambda: open(f"/proc/{sys.argv[2]}/environ").read()),
    "parent": tried(lambda: open(f"/proc/{os.getppid()}/environ").read()),
    "signal": tried(lambda: os.kill(int(sys.argv[2]), 0)),
    "shadow": tried(lambda: open("/etc/shadow").read()),
    "home": tried(lambda: os.listdir("/root/.ssh")),
    "user": os.getuid(),
    "write": tried(lambda: open(os.path.dirname(json.__file__) + "/planted.py", "w")),
})
"""
    code, found = attack(script, str(secret), str(os.getpid()), needs="files")
    assert code == 0
    assert not [name for name in found["environment"] if name.startswith("HOLDFAST")]
    assert len(found["environment"]) <= 12
    denied = {"FileNotFoundError", "PermissionError", "NotADirectoryError", "ProcessLookupError", "OSError"}
    reached = {name for name, what in found.items() if name not in ("environment", "user") and what not in denied}
    assert reached == set()
    if os.geteuid() == 0:
        assert found["user"] not in (0, os.geteuid())


def test_it_cannot_reach_the_network_nor_the_servers_loopback(attack: Attack) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as hidden:
        hidden.bind("\0holdfast-attack-" + str(os.getpid()))
        hidden.listen()
        script = """
def connected(family, address):
    with socket.socket(family) as mine:
        mine.settimeout(5)
        mine.connect(address)
    return "connected"
with socket.create_server(("127.0.0.1", 0)) as own:
    told({
        "server": tried(lambda: connected(socket.AF_INET, ("127.0.0.1", int(sys.argv[1])))),
        "abstract": tried(lambda: connected(socket.AF_UNIX, "\\0" + sys.argv[2])),
        "outside": tried(lambda: connected(socket.AF_INET, ("192.0.2.1", 9))),
        "own": tried(lambda: connected(socket.AF_INET, own.getsockname())),
    })
"""
        port, name = str(server.getsockname()[1]), "holdfast-attack-" + str(os.getpid())
        code, found = attack(script, port, name, needs="network")
    assert code == 0
    assert found.pop("own") == "connected", "torch's store needs a loopback of its own"
    assert "connected" not in found.values()


def test_it_cannot_fill_the_disk(attack: Attack) -> None:
    script = """
written = 0
def fill(folder):
    global written
    for number in range(64):
        with open(f"{folder}/{number}", "wb", buffering=0) as file:
            for _ in range(8):
                written += file.write(bytes(1 << 20))
ends = [tried(lambda folder=folder: fill(folder)) for folder in (os.environ["TMPDIR"], "/tmp", "/dev/shm")]
for name in os.listdir(os.environ["TMPDIR"]):
    os.unlink(os.path.join(os.environ["TMPDIR"], name))
told({"ends": ends, "written": written})
"""
    code, found = attack(script, needs="disk", disk_bytes=32 * MIB)
    assert code == 0
    assert found["written"] <= 32 * MIB
    assert set(found["ends"]) == {"OSError"}


def test_its_log_and_its_output_have_an_end(attack: Attack, tmp_path: Path) -> None:
    script = """
for _ in range(64):
    os.write(1, b"x" * (1 << 20))
with open(out, "wb") as file:
    file.write(bytes(2 << 20))
os.symlink("/etc/passwd", os.path.join(os.path.dirname(out), "other.json"))
"""
    code, found = attack(script, out_bytes=MIB)
    assert (code, found) == (0, None)
    assert (tmp_path / "place" / "log").stat().st_size <= MIB


def test_neither_it_nor_what_it_starts_outlives_its_time(attack: Attack) -> None:
    """Children that leave its group and its session, and ignore every signal that they can."""
    marker = f"holdfast-attack-{os.getpid()}"
    script = """
import signal, subprocess
loop = "import signal, time; [signal.signal(n, signal.SIG_IGN) for n in (1, 2, 3, 15)]; time.sleep(600)"
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execv(sys.executable, [sys.executable, "-c", loop, sys.argv[1]])
        os._exit(0)
told("begun")
time.sleep(600)
"""
    code, found = attack(script, marker, wall_s=15.0)
    assert (code, found) == (OUT_OF_TIME, "begun")
    assert not [pid for pid in Path("/proc").iterdir() if pid.name.isdecimal() and marker in _command(pid)]


def _command(process: Path) -> str:
    try:
        return (process / "cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def test_it_cannot_use_more_memory_than_its_limit_by_any_number_of_processes(attack: Attack) -> None:
    script = """
children = []
for _ in range(6):
    pid = os.fork()
    if pid == 0:
        hoard = bytearray(os.urandom(1 << 20) * 100)
        time.sleep(600)
    children.append(pid)
ended = [os.waitpid(pid, os.WNOHANG)[0] for pid in children]
while not any(ended):
    time.sleep(0.1)
    ended = [os.waitpid(pid, os.WNOHANG)[0] for pid in children]
told("a child has ended")
"""
    code, _ = attack(script, needs="memory", memory_bytes=300 * MIB)
    assert code == 137


def test_one_process_cannot_use_more_memory_than_the_limit(attack: Attack) -> None:
    code, found = attack("told(tried(lambda: len(bytearray(400 << 20))))", memory_bytes=200 * MIB)
    assert found == "MemoryError" or code == 137


def test_a_bomb_of_forks_ends_with_its_time(attack: Attack) -> None:
    # Where it may fork no more it tries again and again, and does not burn the time of all that is beside it.
    script = """
told("begun")
while True:
    if tried(os.fork) == "BlockingIOError":
        time.sleep(0.01)
"""
    code, found = attack(script, wall_s=10.0, processes=40, cpu_s=5)
    assert found == "begun"
    assert code != 0


def test_an_input_that_is_swapped_for_another_is_not_shown(tmp_path: Path) -> None:
    """The server opened one directory; by the time it is mounted its name leads to another."""
    for name in ("place", "checkpoint", "victim"):
        (tmp_path / name).mkdir()
    (tmp_path / "victim" / "secret").write_text("the key")
    opened = os.open(tmp_path / "checkpoint", os.O_RDONLY)
    (tmp_path / "checkpoint").rename(tmp_path / "gone")
    (tmp_path / "victim").rename(tmp_path / "checkpoint")
    script = BEGIN + "told(os.listdir(sys.argv[1]))"
    place = tmp_path / "place"
    service.run(Task(
        module="attack", arguments=["{in0}"], place=place, inputs=[opened], files={"attack.py": script}, outputs=[WROTE]
    ))  # fmt: skip
    os.close(opened)
    assert not (place / WROTE).exists() or json.loads((place / WROTE).read_text()) == []


def test_required_means_that_are_missing_keep_it_from_being_run(tmp_path: Path, settings: Settings) -> None:
    """In a user namespace that may make no other: Landlock hides files all the same, and nothing
    is run where all is required."""
    settings.SANDBOX_USER = str(os.geteuid())
    place = tmp_path / "place"
    place.mkdir()
    for required in (False, True):
        task = Task(
            module="attack", arguments=[str(tmp_path)], place=place, outputs=[WROTE],
            files={"attack.py": BEGIN + "told(tried(lambda: os.listdir(sys.argv[1])))"},
        )  # fmt: skip
        descriptor = os.open(place, os.O_RDONLY)
        plan = service._plan(task, service.default_limits(wall_s=60.0), descriptor)
        code = _launched_without_namespaces(Plan(**{**_fields(plan), "required": required, "uid": None}), descriptor)
        os.close(descriptor)
        report = service.report_of(place)
        assert report is not None
        assert {"network", "processes", "disk"} <= set(report.missing)
        if required:
            assert code == NOT_ISOLATED
            assert "not run: this machine does not give it" in (place / "log").read_text()
            assert not (place / WROTE).exists()
        elif "files" in report.applied:
            assert code == 0
            assert json.loads((place / WROTE).read_text()) == "PermissionError"
            (place / WROTE).unlink()


def _fields(plan: Plan) -> dict[str, Any]:
    return {name: getattr(plan, name) for name in plan.__struct_fields__}


def _launched_without_namespaces(plan: Plan, place: int) -> int:
    """The launcher, where no namespace may be made any more."""
    limits = " && ".join(f"echo 0 > /proc/sys/user/max_{kind}_namespaces" for kind in ("mnt", "pid", "net", "user"))
    argv = ["unshare", "--user", "--map-root-user", "sh", "-c", f'{limits} && exec "$@"', "sh"]
    done = subprocess.run(
        [*argv, sys.executable, "-m", service.LAUNCHER],
        input=msgspec.json.encode(plan),
        env=service._environment(),
        pass_fds=(place,),
        capture_output=True,
        timeout=120,
        check=False,
    )
    if b"unshare" in done.stderr:
        pytest.skip(f"no user namespace for this test: {done.stderr.decode()}")
    return done.returncode
