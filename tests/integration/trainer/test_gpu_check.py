"""`make gpu-check` where no card is: the half that runs on a CPU holds, and claims nothing about one."""

import math
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import pytest

from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu.ending import below
from benchmarks.gpu.page import Part, page
from benchmarks.gpu.part import Findings
from benchmarks.gpu.readings import agree
from trainer.config import outer_backend
from trainer.errors import ConfigInvalid

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.timeout(300)


def check(*options: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", *options], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_every_part_runs_without_a_card_and_none_says_that_it_saw_one(tmp_path: Path) -> None:
    done = check("--cpu", "--report", str(tmp_path / "report.md"))
    report = (tmp_path / "report.md").read_text()
    assert done.returncode == 0, done.stdout + report
    assert "No card was seen" in report
    assert "DOES NOT HOLD" not in report
    for task in gpu.TASKS:
        state = "not here" if task.name == "readings" else "held"
        assert f"## {task.title}: {state}" in report
    assert "steps whose parameters differ between replicas | 0 | holds" in report
    assert "every micro-batch once in each step" in report


def test_a_part_that_is_not_over_in_time_fails_alone_and_says_so() -> None:
    slow = gpu.run(gpu.TASKS[4], cpu=True, env={"PATH": "/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": ""}, limit_s=0.2)
    assert (slow.state, slow.rows) == ("failed", [])
    assert "not over within 0 s" in slow.why


SESSIONS = """
import os, sys, time
for _ in range(2):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.setsid()
        with open(sys.argv[1], "a") as file:
            file.write(f"{os.getpid()}\\n")
        time.sleep(float(sys.argv[2]))
        os._exit(0)
time.sleep(float(sys.argv[3]))
"""
"""Leaves four processes in sessions of their own, two of them without a parent that waits."""


@pytest.mark.parametrize(("lasts_s", "late"), [("60", True), ("0.5", False)])
def test_what_a_part_started_in_other_sessions_ends_with_it(tmp_path: Path, lasts_s: str, late: bool) -> None:
    pids = tmp_path / "pids"
    command = [sys.executable, "-c", SESSIONS, str(pids), "60", lasts_s]
    said = gpu.limited(command, env=dict(os.environ), limit_s=2.0)
    assert ("not over within 2 s" in said) is late
    started = [int(line) for line in pids.read_text().split()]
    assert len(started) == 4
    assert [pid for pid in started if Path(f"/proc/{pid}").exists()] == []


def test_a_check_that_is_terminated_ends_what_its_part_started(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    command = [sys.executable, "-c", SESSIONS, str(pids), "60", "60"]
    program = "import signal; from benchmarks.gpu import __main__ as g; signal.signal(15, g._terminated);"
    program += f"g.limited({command!r}, env={{}}, limit_s=60.0)"
    runner = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT)
    wait(lambda: pids.exists() and len(pids.read_text().split()) == 4)
    runner.send_signal(signal.SIGTERM)
    assert runner.wait(timeout=20.0) == 128 + signal.SIGTERM
    assert [pid for pid in pids.read_text().split() if Path(f"/proc/{pid}").exists()] == []


def test_ranks_of_a_ring_that_is_not_over_in_time_end_with_it() -> None:
    """The limit is found by trial, so that it falls into a time when ranks live in sessions of their own: later
    than `early_s`, sooner than `late_s`."""
    before = below(1)
    early_s, limit_s, late_s = 0.0, 5.0, math.inf
    for _ in range(10):
        seen: dict[tuple[int, int], int] = {}
        over = threading.Event()
        watch = threading.Thread(target=watched, args=(seen, over))
        watch.start()
        part = gpu.run(gpu.TASKS[5], cpu=True, env=dict(os.environ) | {"CUDA_VISIBLE_DEVICES": ""}, limit_s=limit_s)
        over.set()
        watch.join()
        begun = {name: session for name, session in seen.items() if name not in before}
        assert set(begun) & below(1) == set()
        if part.state == "held":
            late_s = limit_s
        else:
            assert part.state == "failed" and f"not over within {limit_s:.0f} s" in part.why
            if len(set(begun.values())) >= 3:
                return
            early_s = limit_s
        limit_s = (early_s + late_s) / 2 if late_s < math.inf else limit_s * 1.5
    pytest.fail(f"no rank in a session of its own was seen between {early_s:.1f} and {late_s:.1f} s")


def watched(seen: dict[tuple[int, int], int], over: threading.Event) -> None:
    """Processes below this one, with their sessions."""
    while not over.wait(0.1):
        for name in below(os.getpid()):
            try:
                seen[name] = os.getsid(name[0])
            except ProcessLookupError:
                continue


def wait(claim, *, limit_s: float = 20.0) -> None:
    ends_s = time.monotonic() + limit_s
    while not claim():
        assert time.monotonic() < ends_s
        time.sleep(0.05)


def a_wheel(folder: Path, name: str) -> None:
    """A package of one module, as a wheel."""
    info = f"{name}-1.0.dist-info"
    files = {
        f"{name}.py": "ANSWER = 42\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
        wheel.writestr(f"{info}/RECORD", "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"]))


def test_what_is_lacking_comes_from_a_folder_of_wheels_and_is_there_for_the_parts(tmp_path: Path, monkeypatch) -> None:
    name, wheels = "holdfast_wheel_of_a_test", tmp_path / "wheels"
    wheels.mkdir()
    a_wheel(wheels, name)
    monkeypatch.setattr(gpu, "SITE", tmp_path / "site")
    monkeypatch.setattr(gpu, "NEEDED", (*gpu.NEEDED, name))
    handed: list[dict[str, str]] = []

    def run(task: gpu.Task, *, cpu: bool, env: dict[str, str], limit_s: float) -> Part:
        handed.append(env)
        return Part(title=task.title, took_s=0.0, state="held", rows=[], why="")

    monkeypatch.setattr(gpu, "run", run)
    options = ["--cpu", "--only", "timing", "--report", str(tmp_path / "report.md")]
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert (gpu.main(options), handed) == (2, [])
        assert gpu.main([*options, "--wheels", str(wheels)]) == 0
    finally:
        signal.signal(signal.SIGTERM, before)
    done = subprocess.run(
        [sys.executable, "-c", f"import {name}; print({name}.ANSWER)"], env=handed[0], capture_output=True, text=True
    )
    assert done.stdout == "42\n"


def test_time_spent_on_the_installation_is_of_the_limit(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(gpu, "SITE", tmp_path / "site")
    monkeypatch.setattr(gpu, "BUDGET_S", 0.3)
    monkeypatch.setattr(gpu, "install", lambda _wheels, *, limit_s: time.sleep(0.4) or "")
    before = signal.getsignal(signal.SIGTERM)
    try:
        done = gpu.main(["--cpu", "--wheels", str(tmp_path), "--only", "timing", "--report", str(tmp_path / "r.md")])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert done == 1
    assert "no time was left for it" in (tmp_path / "r.md").read_text()


def test_an_installation_that_takes_too_long_is_said_to(tmp_path: Path, monkeypatch) -> None:
    a_wheel(tmp_path, "holdfast_wheel_of_a_test")
    monkeypatch.setattr(gpu, "SITE", tmp_path / "site")
    assert gpu.install(tmp_path, limit_s=0.01) == "not over within 0.01 s"


def test_a_folder_without_wheels_is_refused_before_anything_runs(tmp_path: Path) -> None:
    done = check("--cpu", "--wheels", str(tmp_path), "--report", str(tmp_path / "report.md"))
    assert done.returncode == 2
    assert "holds no wheels" in done.stderr
    assert not (tmp_path / "report.md").exists()


@pytest.mark.parametrize(
    ("theirs", "ours", "same"),
    [
        ("GPU-1", "GPU-1", True), ("GPU-1", "GPU-2", False), ("40", 42.0, True), ("40", 44.0, False),
        ("[N/A]", None, True), ("[N/A]", 0, False), ("0", None, False), ("No", 0, True), ("Yes", 9, False),
        ("what", 1.0, False),
    ],
)  # fmt: skip
def test_a_reading_agrees_within_its_bounds_and_a_missing_one_with_a_missing_one(
    theirs: str, ours: object, same: bool
) -> None:
    assert agree(theirs, ours, apart=3.0) is same


def test_what_does_not_hold_is_said_in_the_report_with_its_value() -> None:
    found = Findings()
    found.claim("bits", 3, holds=False, note="of 4")
    part = Part(title="Copy", took_s=1.0, state="failed", rows=found.rows, why="; ".join(found.broken))
    text = page([part], cpu=False)
    assert "## Copy: failed" in text and "bits: 3 of 4" in text and "| bits | 3 | DOES NOT HOLD: of 4 |" in text


def test_replicas_exchange_by_what_is_configured_and_nothing_else() -> None:
    assert outer_backend({}) is None
    assert outer_backend({"HOLDFAST_OUTER_BACKEND": "gloo"}) == "gloo"
    with pytest.raises(ConfigInvalid, match="HOLDFAST_OUTER_BACKEND is 'mpi'"):
        outer_backend({"HOLDFAST_OUTER_BACKEND": "mpi"})
