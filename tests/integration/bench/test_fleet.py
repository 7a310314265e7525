"""A small fleet against the real production shape: `holdfast bench fleet` starts it, measures, and leaves nothing.

The same command at large sizes is a benchmark; here it is shown that what it prints is true at a size that every
machine carries. Without PostgreSQL's programs it is skipped.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controlplane.demo.private_postgres import MissingPostgres, find_binaries
from tests.house.tree import ROOT

pytestmark = pytest.mark.timeout(480)
HOLDFAST = (sys.executable, "-m", "controlplane.cli", "bench", "fleet")
WINDOW_S = 15.0


@pytest.fixture(autouse=True)
def _postgres() -> None:
    try:
        find_binaries()
    except MissingPostgres as error:
        pytest.skip(str(error))


def environment(folder: Path) -> dict[str, str]:
    """With temporary files of its own, in which all of it is found."""
    return {**os.environ, "TMPDIR": str(folder)}


def left(folder: Path) -> list[str]:
    """Processes whose environment names the folder, and files in it."""
    found = [path.name for path in folder.iterdir() if not path.name.endswith(".json")]
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"TMPDIR={folder}".encode() in path.read_bytes().split(b"\0"):
                found.append(f"process {path.parent.name}")
        except OSError:
            continue
    return found


def bench(folder: Path, *options: str) -> tuple[int, dict[str, Any], str]:
    """(exit code, its JSON, all it printed)."""
    figures = folder / "figures.json"
    argv = [*HOLDFAST, "--minutes", str(WINDOW_S / 60.0), "--json", str(figures), *options]
    done = subprocess.run(
        argv, cwd=ROOT, env=environment(folder), capture_output=True, text=True, check=False, timeout=420
    )
    said = done.stdout + done.stderr
    assert figures.exists(), said
    return done.returncode, json.loads(figures.read_text()), said


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where a server that runs as somebody else can pass; each run of pytest closes its own directories again."""
    made = Path(tempfile.mkdtemp(prefix="bench-test-"))
    made.chmod(0o711)
    yield made
    shutil.rmtree(made, ignore_errors=True)


def test_a_small_fleet_is_carried_whole_and_returns_after_a_kill(folder: Path) -> None:
    many = ("--webs", "2", "--sentinels", "2")
    code, said, printed = bench(folder, "--agents", "20", "--devices", "2", "--xids", "6", *many, "--kill-web")
    assert said["failures"] == [] and (code == 0) is (said["refused"] == ""), printed
    assert said["connected"]["agents"] == 20
    sent, lost = said["frames"]["sent"], said["frames"]["lost"]
    assert lost == 0 and sent == said["frames"]["results"]["ok"] >= 20, printed
    assert said["events"]["unacknowledged"] == 0
    assert said["latency"]["XID to its acknowledgement"]["n"] == 6
    assert said["latency"]["XID to its decision"]["n"] == 3, "those of devices"
    assert said["latency"]["XID to its decision"]["missing"] == 0
    assert said["latency"]["XID to the command at the agent"]["n"] == 3
    assert all(each["p99_s"] is None for each in said["latency"].values() if each["n"] < 100)
    assert said["returned"]["n"] == 20 and said["returned"]["unacknowledged"] == 0
    names = {"web-1", "web-2", "sentinel", "sentinel-2", "worker", "beat", "redis", "postgres", "generator-1"}
    assert set(said["processes"]) == names
    for cost_ms, web in ((said["connected"]["cost_ms"], 0.0), (said["returned"]["cost_ms"], 1.0)):
        assert set(cost_ms) == names and all(value >= 0.0 for value in cost_ms.values())
        assert cost_ms["web-1"] > web, "a web process that was killed is started again, which takes seconds of a core"
    assert all(each["memory_mib"] > 1.0 and each["cores"] >= 0.0 for each in said["processes"].values())
    assert left(folder) == []


@pytest.mark.skipif("HOLDFAST_TEST_RELEASE" not in os.environ, reason="long: `make test-release` runs it")
def test_faults_cost_nobody_else_anything(folder: Path) -> None:
    """Hostile and silent agents, late frames, a storm: whoever behaves is up at the end, with nothing left to say."""
    options = ("--hostile", "2", "--silence", "2", "--silence-s", "3", "--late", "0.05", "--storm", "1", "--xids", "4")
    _, said, printed = bench(folder, "--agents", "16", "--devices", "2", *options)
    assert said["failures"] == [], printed
    assert said["beats"]["silent"] > 0 and said["frames"]["lost"] is None
    assert {"unlisted", "foreign", "gap", "burst", "stranger"} <= said["hostile"].keys(), printed
    assert any(key.startswith("refused: ") for key in said["hostile"]), "the server refuses them"
    assert said["latency"]["XID to its acknowledgement"]["n"] == 4
    assert said["refusals"].keys() <= {"overloaded", "replaced"}, "nobody else is refused for what they did"
    assert left(folder) == []


def test_ctrl_c_ends_all_that_was_started(folder: Path) -> None:
    argv = [*HOLDFAST, "--agents", "4", "--minutes", "5"]
    child = subprocess.Popen(
        argv, cwd=ROOT, env=environment(folder), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert child.stderr is not None
    for line in child.stderr:
        if "Measuring" in line:
            break
    assert child.poll() is None and len(left(folder)) > 5
    os.kill(child.pid, signal.SIGINT)
    assert child.wait(60.0) == 130
    until_s = time.monotonic() + 10.0
    while left(folder) and time.monotonic() < until_s:
        time.sleep(0.2)
    assert left(folder) == []
