"""What a machine's provider says of its end: read from a file and from metadata, told when it changes."""

import asyncio
import json
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from agents.config import load
from agents.core.effects import Note
from agents.core.events import NoticeRead
from agents.core.state import State
from agents.core.step import step
from agents.errors import ConfigError
from agents.notices.base import Notice, NoticeError
from agents.notices.file import FileNotices
from agents.notices.http import Ec2Notices, GceNotices
from agents.notices.watch import Watch, source_of
from controlplane.protocol.frames import NodeNotice

NOW_S = 1_790_000_000.0
FRESH = State(started_s=0.0, boot_id="b", journal_id="j")


def written(path: Path, said: object, at_s: float = NOW_S) -> Path:
    path.write_text(said if isinstance(said, str) else json.dumps(said))
    os.utime(path, (at_s, at_s))
    return path


def test_a_file_says_how_long_is_left_from_when_it_was_written_or_the_moment(tmp_path: Path) -> None:
    path = tmp_path / "notice"
    source = FileNotices(path)
    assert source.read(NOW_S) is None
    written(path, {"leaves_in_s": 30, "reason": "reclaimed"})
    assert source.read(NOW_S + 20.0) == Notice(at_unix_s=NOW_S + 30.0, reason="reclaimed")
    written(path, {"leaves_at": "2026-09-21T14:13:50Z"})
    found = source.read(NOW_S)
    assert found is not None and found.at_unix_s == datetime(2026, 9, 21, 14, 13, 50, tzinfo=UTC).timestamp()
    for nothing in ("", "{}", "  \n"):
        assert source.read(NOW_S) is not None
        assert FileNotices(written(tmp_path / "none", nothing)).read(NOW_S) is None


@pytest.mark.parametrize(
    "said",
    [
        '{"leaves_in_s": 1' + "0" * 400 + "}",
        "leaves soon", "[1]", "[" * 4000, '{"leaves_in_s": -1}', '{"leaves_in_s": "30"}', '{"leaves_in_s": true}',
        '{"leaves_in_s": NaN}', '{"leaves_in_s": 1e999}', '{"leaves_in_s": 1, "leaves_at": "2026-01-01T00:00:00Z"}',
        '{"leaves_at": "tomorrow"}', '{"leaves_at": "2026-01-01T00:00:00"}', '{"leaves_at": 5}', '{"leave": 1}',
        '{"reason": "r"}', '{"leaves_in_s": 1, "reason": ""}', '{"leaves_in_s": 1, "reason": "a\\nb"}',
        json.dumps({"leaves_in_s": 1, "reason": "x" * 201}), " " * 5000,
    ],
)  # fmt: skip
def test_garbage_in_the_file_is_an_error_and_no_notice(tmp_path: Path, said: str) -> None:
    with pytest.raises(NoticeError):
        FileNotices(written(tmp_path / "notice", said)).read(NOW_S)


def test_a_link_a_folder_a_pipe_and_bytes_are_no_notice(tmp_path: Path) -> None:
    real = written(tmp_path / "real", {"leaves_in_s": 1})
    (tmp_path / "link").symlink_to(real)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "bytes").write_bytes(b'{"reason": "\xff"}')
    for name in ("link", "folder", "pipe", "bytes"):
        with pytest.raises(NoticeError):
            FileNotices(tmp_path / name).read(NOW_S)


class _Metadata(BaseHTTPRequestHandler):
    """Answers as a provider's metadata does: what `said` holds by path, else 404."""

    said: dict[str, tuple[int, str]] = {}
    asked: list[tuple[str, str, str]] = []

    def do_GET(self) -> None:
        flavor = self.headers.get("Metadata-Flavor", "") or self.headers.get("X-aws-ec2-metadata-token", "")
        type(self).asked.append((self.command, self.path, flavor))
        code, text = self.said.get(self.path, (404, "not found"))
        self.send_response(code)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    do_PUT = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


@pytest.fixture
def metadata() -> Iterator[tuple[str, dict[str, tuple[int, str]]]]:
    _Metadata.said, _Metadata.asked = {}, []
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Metadata)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}", _Metadata.said
    server.shutdown()
    server.server_close()


def test_ec2_says_nothing_until_there_is_an_action_which_is_read_with_a_session_token(metadata: Any) -> None:
    url, said = metadata
    said["/latest/api/token"] = (200, "tok")
    source = Ec2Notices(url)
    assert source.read(NOW_S) is None
    said["/latest/meta-data/spot/instance-action"] = (200, '{"action": "terminate", "time": "2017-09-18T08:22:00Z"}')
    assert source.read(NOW_S) == Notice(at_unix_s=1_505_722_920.0, reason="EC2 spot/instance-action: terminate")
    action = ("GET", "/latest/meta-data/spot/instance-action", "tok")
    assert _Metadata.asked == [("PUT", "/latest/api/token", ""), action, action], "one token for both"


def test_compute_engine_counts_from_when_it_was_first_said_and_may_take_it_back(metadata: Any) -> None:
    url, said = metadata
    base = "/computeMetadata/v1/instance"
    said[f"{base}/preempted"], said[f"{base}/maintenance-event"] = (200, "FALSE"), (200, "NONE")
    source = GceNotices(url)
    assert source.read(NOW_S) is None
    said[f"{base}/maintenance-event"] = (200, "TERMINATE_ON_HOST_MAINTENANCE")
    for later_s in (0.0, 50.0):
        found = source.read(NOW_S + later_s)
        assert found is not None and found.at_unix_s == NOW_S + 3600.0
    said[f"{base}/preempted"] = (200, "TRUE")
    found = source.read(NOW_S + 100.0)
    assert found is not None and (found.at_unix_s, "preempted" in found.reason) == (NOW_S + 130.0, True)
    said[f"{base}/preempted"], said[f"{base}/maintenance-event"] = (200, "FALSE"), (200, "MIGRATE_ON_HOST_MAINTENANCE")
    assert source.read(NOW_S + 110.0) is None
    assert {flavor for _, _, flavor in _Metadata.asked} == {"Google"}


@pytest.mark.parametrize(
    "answer", [(500, "x"), (302, "x"), (200, "x" * 5000), (200, "soon"), (200, '{"action": "dance"}'), (200, "{}")]
)
def test_an_answer_that_is_none_is_an_error_and_no_notice(metadata: Any, answer: tuple[int, str]) -> None:
    url, said = metadata
    said["/latest/api/token"] = (200, "tok")
    said["/latest/meta-data/spot/instance-action"] = answer
    with pytest.raises(NoticeError):
        Ec2Notices(url).read(NOW_S)
    said["/computeMetadata/v1/instance/preempted"] = answer
    with pytest.raises(NoticeError):
        GceNotices(url).read(NOW_S)


def test_nobody_there_is_an_error() -> None:
    for source in (Ec2Notices("http://127.0.0.1:9"), GceNotices("http://127.0.0.1:9")):
        with pytest.raises(NoticeError, match="does not answer"):
            source.read(NOW_S)


def heard(state: State, now_s: float, left_s: float | None) -> tuple[State, list[NodeNotice]]:
    state, _ = step(state, NoticeRead(now_s=now_s, leaves_in_s=left_s, reason="r"))
    return state, [kept.body for kept in state.events if isinstance(kept.body, NodeNotice)]


def test_it_is_told_once_after_each_start_and_then_when_it_changes() -> None:
    state, said = heard(FRESH, 10.0, None)
    assert [each.leaves_in_s for each in said] == [None], "what was told before this start may not hold any more"
    state, said = heard(state, 20.0, None)
    assert len(said) == 1
    state, said = heard(state, 30.0, 30.0)
    state, said = heard(state, 40.0, 20.5)
    assert [each.leaves_in_s for each in said] == [None, 30.0], "the same moment, read again"
    state, said = heard(state, 50.0, 60.0)
    state, said = heard(state, 60.0, None)
    assert [each.leaves_in_s for each in said] == [None, 30.0, 60.0, None]


def test_a_source_that_changes_its_mind_all_the_time_is_told_of_now_and_then() -> None:
    state = FRESH
    for tick in range(100):
        state, said = heard(state, 10.0 + tick * 0.1, 1000.0 * (tick % 2) + 5.0)
    assert len(said) <= 3


@pytest.mark.parametrize("left_s", [-1.0, 8 * 86_400.0, float("inf"), float("nan")])
def test_a_moment_that_is_none_is_noted_and_not_told(left_s: float) -> None:
    state, effects = step(FRESH, NoticeRead(now_s=1.0, leaves_in_s=left_s, reason="r"))
    assert not state.events and any(isinstance(each, Note) for each in effects)


def test_a_source_that_fails_says_so_once_and_nothing_follows(tmp_path: Path) -> None:
    path, events, noted = written(tmp_path / "notice", "garbage"), list[Any](), list[str]()
    watch = Watch(FileNotices(path), events.append, lambda event, **fields: noted.append(event))
    for _ in range(3):
        asyncio.run(watch.look())
    assert (events, noted) == ([], ["notice not read"])
    written(path, {"leaves_in_s": 40}, at_s=time.time())
    asyncio.run(watch.look())
    assert 38.0 < events[0].leaves_in_s <= 40.0


def test_the_settings_choose_the_driver_and_refuse_what_does_not_fit() -> None:
    assert source_of(load([], {})) is None
    assert isinstance(source_of(load(["--notices", "file", "--notice-file", "/run/notice"], {})), FileNotices)
    assert isinstance(source_of(load(["--notices", "ec2"], {})), Ec2Notices)
    assert isinstance(source_of(load(["--notices", "gce", "--notice-url", "http://127.0.0.1:80/"], {})), GceNotices)
    for wrong in (
        ["--notices", "file"],
        ["--notice-file", "/run/notice"],
        ["--notices", "file", "--notice-file", "notice"],
        ["--notice-url", "http://m"],
        ["--notices", "ec2", "--notice-url", "https://m/x"],
    ):
        with pytest.raises(ConfigError):
            load(wrong, {})
