"""The telemetry stream is bounded by bytes and by age, whatever the number of its entries."""

import time

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from controlplane.runtime.batches import Room
from tests.integration.backend.servers import RedisServer

entries = st.lists(st.tuples(st.integers(0, 5_000), st.integers(1, 4_000)), min_size=1, max_size=60)


def first_of(room: Room) -> tuple[int, int]:
    at_ms, _, number = room.oldest().partition("-")
    return int(at_ms), int(number)


@given(entries, st.integers(1, 10_000), st.floats(0.1, 20.0), st.booleans())
def test_what_stays_is_within_bytes_and_age_and_as_much_as_fits(
    steps: list[tuple[int, int]], most_bytes: int, most_s: float, stands: bool
) -> None:
    """Also while Redis's clock stands, or is behind what its ids say: then only their numbers rise."""
    room, at_ms = Room(most_bytes=most_bytes, most_s=most_s), 1_700_000_000_000
    stream: list[tuple[tuple[int, int], int, int]] = []
    for number, (step_ms, size_bytes) in enumerate(steps):
        at_ms += step_ms
        entry = (1_700_000_000_000 if stands else at_ms, number)
        stream = [each for each in stream if each[0] >= first_of(room)]
        stream.append((entry, size_bytes, at_ms))
        room.note(f"{entry[0]}-{entry[1]}", size_bytes, at_ms / 1000.0)
    kept = [each for each in stream if each[0] >= first_of(room)]
    assert kept[-1] == stream[-1], "the newest always stays"
    assert len(kept) == 1 or at_ms - kept[0][2] <= most_s * 1000.0 + 1e-3
    assert len(kept) == 1 or sum(each[1] for each in kept) <= most_bytes
    assert room.kept_bytes == sum(each[1] for each in kept)


def test_what_others_appended_before_a_process_began_stays_until_it_is_old() -> None:
    room = Room()
    assert room.oldest() == "0-0"
    room.note("1700000000000-0", 100, 5.0)
    assert room.oldest() == "1699999940000-0", "a minute before"


def test_a_burst_of_large_entries_leaves_the_newest_bytes_and_small_ones_all_of_a_minute() -> None:
    room = Room()
    for number in range(200):
        room.note(f"{1_000_000 + number * 25}-0", 4 << 20, number * 0.025)
    assert room.kept_bytes == 128 << 20
    assert room.oldest() == f"{1_000_000 + 168 * 25}-0", "the last 32 of 4 MiB"
    room = Room()
    for number in range(5_000):
        room.note(f"{1_000_000 + number * 25}-0", 30_000, number * 0.025)
    assert 4999 * 25 - (first_of(room)[0] - 1_000_000) == 60_000


@pytest.mark.parametrize(("lower", "oldest"), [("900000-0", "840000-0"), ("1000000-3", "940000-0")])
def test_a_stream_that_was_made_anew_by_a_clock_behind_keeps_what_is_appended_from_then_on(
    lower: str, oldest: str
) -> None:
    room = Room(most_bytes=1000)
    for number in range(9):
        room.note(f"1000000-{number}", 400, 0.0)
    assert room.oldest() == "1000000-7"
    room.note(lower, 400, 1.0)
    assert room.oldest() == oldest
    assert len(room.kept) == 1 and room.kept_bytes == 400


def test_redis_itself_gives_such_ids_and_trims_by_them(redis_server: RedisServer) -> None:
    """An id ahead of its clock, as one is that was given before the clock was set back."""
    client, room = redis.Redis.from_url(redis_server.url), Room(most_bytes=60_000)
    ahead_ms = int(time.time() * 1000) + 10**8
    client.xadd("s", {"d": b""}, id=f"{ahead_ms}-0")
    for _ in range(50):
        size_bytes = 20_000
        at = client.xadd("s", {"d": b"x" * size_bytes}, minid=room.oldest(), approximate=True)
        assert at.decode().startswith(f"{ahead_ms}-")
        room.note(at.decode(), size_bytes, 0.0)
    assert client.xlen("s") <= 5
    client.close()
