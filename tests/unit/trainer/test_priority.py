"""Who steps back does so beyond its own session, and ends with the service that started it."""

import errno
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from trainer import priority

WAIT_S = 20.0
CHILD = (
    "from trainer.priority import step_aside; import os, time;"
    "step_aside(); print(os.getsid(0), flush=True); time.sleep(60)"
)
FORK = (
    "from trainer.priority import end_with_parent; import os, time;"
    "parent = os.getpid();"
    "os.fork() or (end_with_parent(parent), print(os.getpid(), os.getsid(0), flush=True), time.sleep(60));"
    "time.sleep(1)"
)
PARENT = (
    "import subprocess, sys;"
    "child = subprocess.Popen([sys.executable, '-c', sys.argv[1]], stdout=subprocess.PIPE, text=True);"
    "print(child.pid, child.stdout.readline().strip(), flush=True)"
)


def in_child(body: str) -> str:
    done = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True, timeout=WAIT_S, check=True)
    return done.stdout.strip()


def test_a_niceness_is_told_to_the_session(tmp_path: Path) -> None:
    group = str(tmp_path / "group")
    say = f"from pathlib import Path; from trainer.priority import lower_session; lower_session(Path({group!r}))"
    wanted = min(os.nice(0) + 7, priority.MAX_NICENESS)  # A run of the tests may itself step back.
    in_child(f"import os; os.nice(7); {say}")
    assert (tmp_path / "group").read_text() == str(wanted)


def test_who_starts_steps_back_further_until_it_has_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "nice", lambda increment: 5)
    group = tmp_path / "group"
    priority.lower_session(group, starting=True)
    assert group.read_text() == "15"
    priority.lower_session(group)
    assert group.read_text() == "5"


def test_a_niceness_the_kernel_had_no_time_for_never_replaces_a_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    class BusyOnce:
        def write_text(self, text: str) -> None:
            told.append(text)
            if len(told) == 1:
                raise OSError(errno.EAGAIN, "busy")

    monkeypatch.setattr(os, "nice", lambda increment: 0)
    group = BusyOnce()
    priority.lower_session(group, starting=True)  # type: ignore[arg-type]
    priority.lower_session(group)  # type: ignore[arg-type]
    for thread in threading.enumerate():
        if thread.name == "niceness":
            thread.join(WAIT_S)
    assert told == ["10", "0"]


def test_a_kernel_that_is_asked_too_often_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = threading.Semaphore(0)
    answers = [OSError(errno.EAGAIN, "busy"), OSError(errno.EAGAIN, "busy"), None]

    class Busy:
        def write_text(self, text: str) -> None:
            asked.release()
            if (answer := answers.pop(0)) is not None:
                raise answer

    monkeypatch.setattr(os, "nice", lambda increment: 5)
    priority.lower_session(Busy())  # type: ignore[arg-type]
    assert all(asked.acquire(timeout=WAIT_S) for _ in range(3))
    assert not answers


def test_where_there_are_no_such_groups_nothing_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "nice", lambda increment: 5)
    priority.lower_session(tmp_path / "absent" / "group")


def test_who_steps_aside_leads_a_session_and_ends_with_its_parent() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PARENT, CHILD], capture_output=True, text=True, timeout=WAIT_S, check=True
    )
    pid, session = (int(word) for word in done.stdout.split())
    assert session == pid
    _wait_gone(pid)


def test_a_fork_of_who_steps_aside_ends_with_it() -> None:
    with subprocess.Popen([sys.executable, "-c", FORK], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline().split()[0])
        process.kill()
    _wait_gone(pid)


def _wait_gone(pid: int) -> None:
    end_s = time.monotonic() + WAIT_S
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < end_s, "it outlives who started it"
        time.sleep(0.05)
