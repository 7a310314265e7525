"""Questions to a rank's debug server: bounded, private, and honest about what was not got."""

import contextlib
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agents.ranks import debug_client, diagnose
from agents.ranks.files import make_private
from agents.ranks.identity import identity_of
from agents.ranks.places import Places
from controlplane.protocol.diagnostics import BY_NAME
from controlplane.protocol.flight import decode_dump

GROUPS = [{"name": "0", "desc": "default_pg", "ranks": [0, 1]}]
ENTRY = {
    "collective_seq_id": 3, "p2p_seq_id": 0, "is_p2p": False, "process_group": ["0", "default_pg"],
    "profiling_name": "gloo:all_reduce", "state": "scheduled", "retired": False, "input_sizes": [[100]],
    "output_sizes": [[100]], "input_dtypes": ["Float"], "output_dtypes": ["Float"], "time_created_ns": 1,
}  # fmt: skip
COUNTERS = {"store.get": {"active_count": 1, "max_time_us": 5, "total_calls": 2, "total_time_us": 7}}


class FakeDoor:
    """Answers each handler as told; a handler it does not know is never answered."""

    def __init__(self, path: Path, answers: dict[str, bytes]) -> None:
        self.answers, self.asked = answers, list[str]()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen()
        self._kept: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            name = connection.recv(4096).split(b" ")[1].decode().removeprefix("/handler/")
            self.asked.append(name)
            answer = self.answers.get(name.partition("?")[0])
            if answer is None:
                self._kept.append(connection)
                continue
            with connection, contextlib.suppress(BrokenPipeError):
                connection.sendall(answer)


def ok(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + body


@pytest.fixture
def sleeper() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process.pid
    process.kill()
    process.wait()


Make = Callable[..., tuple[diagnose.Subject, FakeDoor]]


@pytest.fixture
def subject(tmp_path: Path, sleeper: int, monkeypatch: pytest.MonkeyPatch) -> Make:
    """subject(handler=body, ...) -> whom to look at, and its door."""
    for name, each in BY_NAME.items():
        monkeypatch.setitem(BY_NAME, name, dataclasses.replace(each, timeout_s=0.2))
    folder = tmp_path / "doors"
    make_private(folder, owner=None)

    def make(**answers: bytes) -> tuple[diagnose.Subject, FakeDoor]:
        opened = FakeDoor(folder / f"{sleeper}.sock", {name: ok(body) for name, body in answers.items()})
        (folder / f"{sleeper}.json").write_text(json.dumps(GROUPS))
        identity = identity_of(sleeper)
        assert identity is not None
        return diagnose.Subject(rank=1, identity=identity, log_path=tmp_path / "log", debug_servers=folder), opened

    return make


def test_the_doors_stand_in_a_private_directory_swept_of_the_dead(tmp_path: Path) -> None:
    places = Places(tmp_path / "jobs")
    places.open()
    folder = places.prepare("job_1", None).debug_servers
    (folder / "999999999.sock").touch()
    (folder / f"{os.getpid()}.json").touch()
    debug_client.tidy(folder)
    assert [path.name for path in folder.iterdir()] == [f"{os.getpid()}.json"]
    assert folder.stat().st_mode & 0o777 == 0o700


def test_the_log_is_the_end_of_what_was_written_and_needs_no_door(subject: Make) -> None:
    whom = subject()[0]
    assert diagnose.look("log", whom) == ("nothing was written yet", "file")
    whom.log_path.write_text("first\n" + "x" * 40_000 + "\nthe last words\n")
    text, method = diagnose.look("log", whom)
    assert method == "file" and text.rstrip().endswith("the last words") and "first" not in text


def test_ping_says_how_long_it_took(subject: Make) -> None:
    text, method = diagnose.look("ping", subject(ping=b"pong")[0])
    assert text.startswith("pong after ")
    assert method == "debug server"


def test_a_flight_recorder_comes_repaired(subject: Make) -> None:
    retired = ENTRY | {"collective_seq_id": 2, "retired": True}
    outer = ENTRY | {"process_group": ["", ""]}
    dump = json.dumps({"entries": [retired, ENTRY, outer], "pg_config": {"": {"ranks": "[]"}}, "version": "2.10"})
    text, method = diagnose.look("flight_recorder", subject(fr_trace_json=dump.encode())[0])
    repaired = decode_dump(text)
    assert (repaired.rank, method) == (1, "debug server")
    assert [(e.number, e.state, e.operation) for e in repaired.entries] == [
        (2, "ended", "all_reduce"),
        (3, "scheduled", "all_reduce"),
    ]
    assert repaired.groups[0].ranks == (0, 1)


def test_wait_counters_are_told_in_seconds(subject: Make) -> None:
    text, _ = diagnose.look("wait_counters", subject(wait_counter_values=json.dumps(COUNTERS).encode())[0])
    assert text == "store.get: 2 calls, 0.000007 s in all, 0.000005 s at most, 1 waiting now"


def test_a_locked_interpreter_is_told_from_a_dead_door(subject: Make) -> None:
    text, method = diagnose.look("profile", subject(ping=b"pong")[0])
    assert method == "none"
    assert "no answer within" in text
    assert "its interpreter is locked or busy" in text


@pytest.mark.parametrize(
    ("answer", "words"),
    [(b"not json", "Flight Recorder of rank 1"), (b"[" * 9_000_000, "longer than"), (b"{}", "missing required field")],
)
def test_garbage_from_a_rank_is_an_answer_not_an_accident(subject: Make, answer: bytes, words: str) -> None:
    text, method = diagnose.look("flight_recorder", subject(fr_trace_json=answer)[0])
    assert method == "none"
    assert words in text


def test_a_stopped_process_is_not_asked(subject: Make, sleeper: int) -> None:
    whom, opened = subject(ping=b"pong")
    os.kill(sleeper, signal.SIGSTOP)
    os.waitpid(sleeper, os.WUNTRACED)
    text, method = diagnose.look("ping", whom)
    assert (text, method) == ("ping could not be got: the process is stopped (SIGSTOP)", "none")
    assert opened.asked == []


def test_a_rank_without_a_door_is_said_to_have_none(tmp_path: Path, sleeper: int) -> None:
    identity = identity_of(sleeper)
    assert identity is not None
    whom = diagnose.Subject(rank=0, identity=identity, log_path=tmp_path / "log", debug_servers=tmp_path)
    assert "has no debug server" in diagnose.look("ping", whom)[0]


def test_a_refusal_is_passed_on(subject: Make) -> None:
    whom, opened = subject()
    opened.answers["ping"] = b"HTTP/1.1 404 Not Found\r\n\r\nHandler not found"
    assert "it refused: Handler not found" in diagnose.look("ping", whom)[0]
