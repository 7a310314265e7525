"""`holdfast up`, the demo's command line: a page, a job that trains, a fault, and Ctrl-C."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from controlplane.demo.ports import free_port
from tests.house.tree import ROOT
from tests.scenes.helpers import START_TIMEOUT_S

pytestmark = pytest.mark.timeout(480)
STOP_S = 60
Found = TypeVar("Found")


class Demo:
    """`holdfast up` in a folder of its own; `holdfast` beside it is somebody at the same machine."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / "log"
        self.environment = os.environ | {"PYTHONPATH": str(ROOT), "HOME": str(folder)}
        with self.log.open("wb") as log:
            self.child = subprocess.Popen(
                self._argv("up", "--port", str(free_port("127.0.0.1"))),
                cwd=folder,
                env=self.environment,
                stdout=log,
                stderr=log,
            )

    def _argv(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "controlplane.cli", *words]

    def holdfast(self, *words: str) -> str:
        """What one command prints."""
        done = subprocess.run(
            self._argv(*words), cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def eventually(self, what: str, look: Callable[[], Found | None]) -> Found:
        """What `look` gives as soon as it is true."""
        end_s = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < end_s and self.child.poll() is None:
            if found := look():
                return found
            time.sleep(0.3)
        raise AssertionError(f"never: {what}\n{self.log.read_text()[-4000:]}")


@pytest.fixture
def demo() -> Iterator[Demo]:
    # A short path: jobs have their sockets below it.
    with tempfile.TemporaryDirectory(prefix="up-") as folder:
        yield from ended(Demo(Path(folder)))


def ended(made: Demo) -> Iterator[Demo]:
    """It, and no process of it afterwards."""
    yield made
    if made.child.poll() is None:
        made.child.send_signal(signal.SIGINT)
        try:
            made.child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            made.child.kill()


def test_holdfast_up_brings_a_page_and_a_job_that_outlives_a_fault_and_ends_with_ctrl_c(demo: Demo) -> None:
    demo.eventually("it says that it is up", lambda: "Holdfast is up." in demo.log.read_text())
    url = demo.eventually("a job was submitted", lambda: _text(demo.folder / "var/demo/url"))
    with urllib.request.urlopen(url, timeout=10) as page:
        assert b"Holdfast" in page.read()
    job = demo.eventually("the job trains", lambda: _training(demo, step=3))
    assert "kill-rank" in demo.holdfast("chaos")
    demo.holdfast("chaos", "kill-rank")
    incident = demo.eventually("an incident is resolved", lambda: _resolved(demo))
    assert incident["job_id"] == job["id"]
    after = demo.eventually("it goes on", lambda: _training(demo, step=job["committed_step"] + 5))
    assert after["attempt"] == job["attempt"], "no restart"
    demo.child.send_signal(signal.SIGINT)
    assert demo.child.wait(STOP_S) == 0
    with pytest.raises(OSError):
        urllib.request.urlopen(url, timeout=10)


def test_a_folder_whose_path_is_too_long_for_sockets_is_refused_at_the_start_with_what_to_do(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 20)
    folder.mkdir()
    made = Demo(folder)
    assert made.child.wait(START_TIMEOUT_S) == 1
    assert "bytes too long for the sockets of jobs in it. Start it with a shorter one:" in made.log.read_text()


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _training(demo: Demo, *, step: int) -> dict[str, Any] | None:
    jobs = [json.loads(line) for line in demo.holdfast("job", "ls", "-o", "jsonl").splitlines()]
    return next((job for job in jobs if job["state"] == "running" and job["committed_step"] >= step), None)


def _resolved(demo: Demo) -> dict[str, Any] | None:
    incidents = [json.loads(line) for line in demo.holdfast("incident", "ls", "-o", "jsonl").splitlines()]
    return next((incident for incident in incidents if incident["state"] == "resolved"), None)
