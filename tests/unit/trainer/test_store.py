"""The rendezvous store's rules: what a key must carry, what one job may keep, who is woken."""

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.protocol.store_keys import TOKEN_CHARS, WeakStoreKey, read_store_key, store_token, without_tokens
from trainer.store import memory, wire
from trainer.store.memory import Shelf, ShelfFull
from trainer.store.server import FORGET_AFTER_S, NotYours, StoreServer
from trainer.store.wire import Incomplete, Malformed, Query, Reader

KEY = b"k" * 32


def key_of(job_id: str, name: str, *, token: str = "") -> bytes:
    return f"/{job_id}/{token or store_token(KEY, job_id)}/{name}".encode()


def sized(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data


def test_a_key_with_the_jobs_token_belongs_to_the_job() -> None:
    assert StoreServer(KEY).split(key_of("job_a", "x/y")) == ("job_a", b"x/y")


@pytest.mark.parametrize(
    "key",
    [
        b"/job_a/x",
        b"x",
        b"",
        b"/init/",
        key_of("job_a", "x", token="A" * TOKEN_CHARS),
        key_of("job_a", "x", token=store_token(KEY, "job_b")),
        b"/" + b"j" * 129 + b"/" + b"A" * TOKEN_CHARS + b"/x",
        "/j\u00fcb/".encode() + b"A" * TOKEN_CHARS + b"/x",
    ],
)
def test_a_key_without_the_jobs_token_belongs_to_nobody(key: bytes) -> None:
    with pytest.raises(NotYours):
        StoreServer(KEY).split(key)


def test_a_token_names_one_job_under_one_key() -> None:
    assert len(store_token(KEY, "job_a")) == TOKEN_CHARS
    assert len({store_token(KEY, "job_a"), store_token(KEY, "job_b"), store_token(b"l" * 32, "job_a")}) == 3


def test_logs_show_no_token() -> None:
    shown = without_tokens(f"wait timeout, keys: /job_a/{store_token(KEY, 'job_a')}/inner/job_a/1")
    assert shown == "wait timeout, keys: /job_a/***/inner/job_a/1"


def test_a_short_or_absent_key_file_is_refused_with_how_to_make_one(tmp_path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "short").write_text("0123")
    for name in ("short", "absent"):
        with pytest.raises(WeakStoreKey, match="openssl rand"):
            read_store_key(tmp_path / name)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_request_or_refused_or_unfinished(data: bytes) -> None:
    with contextlib.suppress(Incomplete, Malformed):
        Reader(bytearray(data), 0).request()


@given(st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=20)), max_size=5), st.integers(0, 200))
def test_a_request_cut_anywhere_is_read_once_it_is_whole(pairs: list[tuple[bytes, bytes]], cut: int) -> None:
    body = b"".join(sized(key) + sized(value) for key, value in pairs)
    whole = bytearray(bytes([Query.MULTI_SET]) + struct.pack("<Q", len(pairs)) + body)
    if cut < len(whole):
        with pytest.raises(Incomplete) as raised:
            Reader(whole[:cut], 0).request()
        assert cut < raised.value.needed_bytes <= len(whole)
    request = Reader(whole, 0).request()
    assert list(zip(request.keys, request.values, strict=True)) == pairs


def test_a_key_or_value_beyond_its_limit_is_refused_before_it_has_come() -> None:
    for code, size in ((Query.GET, wire.MAX_KEY_BYTES + 1), (Query.CHECK, wire.MAX_KEYS_A_REQUEST + 1)):
        with pytest.raises(Malformed):
            Reader(bytearray(bytes([code]) + struct.pack("<Q", size)), 0).request()
    head = bytes([Query.SET]) + sized(b"k") + struct.pack("<Q", wire.MAX_VALUE_BYTES + 1)
    with pytest.raises(Malformed):
        Reader(bytearray(head), 0).request()


def test_who_waits_for_two_keys_is_woken_by_the_second() -> None:
    shelf, client = Shelf(), object()
    assert not shelf.wait(client, [b"a", b"b"])
    assert shelf.put(b"a", b"1") == []
    assert shelf.put(b"b", b"1") == [client]
    assert shelf.wait(client, [b"a", b"b"])
    assert shelf.waiters == {}


def test_who_has_left_is_not_woken() -> None:
    shelf, client, other = Shelf(), object(), object()
    shelf.wait(client, [b"a"])
    shelf.wait(other, [b"a"])
    shelf.leave(client)
    assert shelf.put(b"a", b"1") == [other]


def test_one_push_wakes_one_who_waits() -> None:
    shelf, first, second = Shelf(), object(), object()
    shelf.wait(first, [b"q"])
    shelf.wait(second, [b"q"])
    assert shelf.push(b"q", b"1") == [first]
    assert shelf.pop(b"q") == (1, b"1")
    assert shelf.push(b"q", b"2") == [second]


def test_what_a_job_keeps_is_counted_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MAX_BYTES", 100)
    shelf = Shelf()
    shelf.put(b"a", b"x" * 60)
    shelf.put(b"a", b"x" * 20)
    shelf.append(b"a", b"y" * 10)
    shelf.push(b"q", b"z")
    held = sum(len(k) + len(v) for k, v in shelf.values.items()) + sum(
        len(k) + len(v) for k, values in shelf.queues.items() for v in values
    )
    assert shelf.held_bytes == held
    with pytest.raises(ShelfFull):
        shelf.put(b"b", b"x" * 90)
    shelf.pop(b"q")
    assert shelf.delete(b"a")
    assert shelf.held_bytes == 0


def test_a_job_without_clients_is_forgotten_after_a_day() -> None:
    server = StoreServer(KEY)
    for job_id in ("job_a", "job_b"):
        server.shelf(job_id).used_s = 0.0
    server.bind("job_b")
    server.tidy(FORGET_AFTER_S + 1.0)
    assert set(server.shelves) == {"job_b"}
