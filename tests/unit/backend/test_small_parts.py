"""Small parts of the server, one claim each."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from controlplane.access.models import Scope
from controlplane.access.rights import Rights
from controlplane.checkpoints.verify import MARKER, verify_directory
from controlplane.config.env import broker_url, unknown_keys
from controlplane.live.hub import MAX_WAITING, Client, Hub, Shared
from controlplane.protocol.digests import digest_of
from controlplane.protocol.ids import is_id
from controlplane.runtime import events, ids


def test_ids_of_one_process_sort_in_the_order_in_which_they_were_made() -> None:
    made = [ids.new_id("cmd") for _ in range(5000)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)
    assert all(is_id(text, "cmd") for text in made)


def test_a_misspelt_setting_is_noticed_and_other_programs_settings_are_theirs() -> None:
    keys = ["HOLDFAST_REDIS_URL", "HOLDFAST_REDS_URL", "HOLDFAST_AGENT_SEED", "PATH", "HOLDFAST_TOKEN"]
    assert unknown_keys(keys) == ["HOLDFAST_REDS_URL"]


def test_a_unix_socket_is_named_as_the_broker_library_wants_it() -> None:
    assert broker_url("unix:///run/redis.sock?db=1") == "redis+socket:///run/redis.sock?virtual_host=1"
    assert broker_url("redis://h:1/0") == "redis://h:1/0"


def test_a_patch_carries_nothing_that_moves_without_an_event() -> None:
    patch = {"id": 1, "live": {"x": 1}, "devices": [{"live": 2, "risk": 0.1}], "last_seen_age_s": 3.0}
    assert events.without_volatile(patch) == {"id": 1, "devices": [{"risk": 0.1}]}


def checkpoint(path: Path, **changes: Any) -> Path:
    """A committed checkpoint with one file."""
    path.mkdir()
    content = b"weights" * 1000
    (path / "shard.bin").write_bytes(content)
    digest = hashlib.blake2b(content, digest_size=16).hexdigest()
    files = [{"name": "shard.bin", "bytes": len(content), "blake2b": digest}]
    manifest = {"job_id": "job_a", "attempt": 1, "step": 50, "epoch": 3, "files": files}
    (path / MARKER).write_text(json.dumps(manifest | changes))
    return path


def verdict(path: Path) -> tuple[bool | None, str]:
    """What verification says."""
    found = verify_directory(str(path), name=str(path), job_id="job_a", step=50, epoch=3)
    return found.ok, found.detail


def test_an_unharmed_checkpoint_is_verified(tmp_path: Path) -> None:
    assert verdict(checkpoint(tmp_path / "c"))[0] is True
    files = [{"name": "shard.bin", "bytes": 7000, "digest": digest_of([b"weights" * 1000])}]
    assert verdict(checkpoint(tmp_path / "d", files=files)) == (True, "1 files read back equal")


def test_a_digest_that_cannot_be_computed_here_says_nothing(tmp_path: Path) -> None:
    files = [{"name": "shard.bin", "bytes": 7000, "digest": "sha3:00"}]
    ok, detail = verdict(checkpoint(tmp_path / "c", files=files))
    assert ok is None
    assert "sha3" in detail


def test_one_flipped_byte_is_found(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "c")
    raw = bytearray((path / "shard.bin").read_bytes())
    raw[3000] ^= 1
    (path / "shard.bin").write_bytes(raw)
    assert verdict(path) == (False, "shard.bin has another digest than was committed")


def test_a_directory_without_marker_was_broken_off_and_one_out_of_sight_says_nothing(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "c")
    (path / MARKER).unlink()
    assert verdict(path)[0] is False
    assert verdict(tmp_path / "elsewhere")[0] is None


@pytest.mark.parametrize("changes", [{"epoch": 2}, {"step": 51}, {"job_id": "job_b"}, {"files": []}, {"files": "x"}])
def test_a_marker_of_something_else_is_not_believed(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert verdict(checkpoint(tmp_path / "c", **changes))[0] is False


def test_a_marker_cannot_lead_outside_of_its_directory(tmp_path: Path) -> None:
    files = [{"name": "../secret", "bytes": 1, "blake2b": "00" * 16}]
    (tmp_path / "secret").write_text("x")
    ok, detail = verdict(checkpoint(tmp_path / "c", files=files))
    assert ok is False
    assert "outside" in detail


SEES_ALL = Rights(fleet=Scope.ADMIN, everything=True)


def event(seq: int) -> Shared:
    """A durable event."""
    return Shared({"type": "event", "event": {"seq": seq}})


def browser(rights: Rights = SEES_ALL, **more: Any) -> Client:
    """Of a reader with these rights."""
    return Client(lambda: rights, **more)


async def test_every_subscribed_browser_gets_every_event_once_and_in_order() -> None:
    hub, client = Hub(), browser(sent_seq=3)
    hub.clients.add(client)
    for seq in (2, 3, 4, 4, 5):
        hub.durable(event(seq))
    told = [json.loads(client.queue.get_nowait())["event"]["seq"] for _ in range(client.queue.qsize())]
    assert told == [4, 5]


async def test_browsers_fetch_everything_again_when_the_event_log_was_set_back_under_a_running_server() -> None:
    hub, client, new = Hub(), browser(sent_seq=90), browser()
    hub.clients |= {client, new}
    hub.seq = 90
    assert not hub.rewind(90)
    assert client.queue.empty()
    assert hub.rewind(40)
    assert (hub.seq, client.sent_seq, new.sent_seq) == (40, 40, None)
    assert json.loads(client.queue.get_nowait()) == {"type": "resync", "seq": 40}
    hub.durable(event(41))
    assert client.sent_seq == 41


async def test_a_browser_that_does_not_read_loses_pictures_first_and_is_then_told_to_refetch() -> None:
    hub, client = Hub(), browser(sent_seq=0, topics={"job:a": "default"})
    hub.clients.add(client)
    for _ in range(MAX_WAITING):
        hub.volatile("job:a", {"type": "ranks"})
    assert client.queue.qsize() < MAX_WAITING
    for seq in range(1, MAX_WAITING + 2):
        hub.durable(event(seq))
    first = json.loads(client.queue.get_nowait())
    assert first["type"] == "resync"
    assert client.sent_seq == MAX_WAITING + 1


async def test_pictures_go_to_those_who_watch_their_topic() -> None:
    hub, watcher, other = Hub(), browser(topics={"job:a": "default"}), browser(topics={"job:b": "default"})
    hub.clients |= {watcher, other}
    hub.volatile("job:a", {"type": "ranks"})
    assert (watcher.queue.qsize(), other.queue.qsize()) == (1, 0)
