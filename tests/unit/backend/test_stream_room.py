"""The telemetry stream is bounded by bytes and by age, whatever the number of its entries."""

from hypothesis import given
from hypothesis import strategies as st

from controlplane.runtime.batches import Room

entries = st.lists(st.tuples(st.integers(0, 5_000), st.integers(1, 4_000)), min_size=1, max_size=60)


@given(entries, st.integers(1, 10_000), st.floats(0.1, 20.0))
def test_what_stays_is_within_bytes_and_age_and_as_much_as_fits(
    steps: list[tuple[int, int]], most_bytes: int, most_s: float
) -> None:
    room, at_ms = Room(most_bytes=most_bytes, most_s=most_s), 1_700_000_000_000
    stream: list[tuple[int, int]] = []
    for step_ms, size_bytes in steps:
        at_ms += step_ms
        stream = [each for each in stream if each[0] >= int(room.oldest())]
        stream.append((at_ms, size_bytes))
        room.note(f"{at_ms}-{len(stream)}", size_bytes)
    kept = [each for each in stream if each[0] >= int(room.oldest())]
    assert kept[-1] == (at_ms, size_bytes), "the newest always stays"
    assert len({each[0] for each in kept}) == 1 or at_ms - kept[0][0] <= most_s * 1000.0
    # Entries of one millisecond stay together.
    whole = [each for each in kept if each[0] > kept[0][0]]
    assert not whole or sum(size for _, size in whole) <= most_bytes
    assert room.kept_bytes == sum(size for _, size in room.kept)


def test_what_others_appended_before_a_process_began_stays_until_it_is_old() -> None:
    room = Room()
    assert room.oldest() == "0"
    room.note("1700000000000-0", 100)
    assert room.oldest() == "1699999940000", "a minute before"


def test_a_burst_of_large_entries_leaves_the_newest_bytes_and_small_ones_all_of_a_minute() -> None:
    room = Room()
    for number in range(200):
        room.note(f"{1_000_000 + number * 25}-0", 4 << 20)
    assert room.kept_bytes == 128 << 20
    assert int(room.oldest()) == 1_000_000 + 168 * 25, "the last 32 of 4 MiB"
    room = Room()
    for number in range(5_000):
        room.note(f"{1_000_000 + number * 25}-0", 30_000)
    assert 4999 * 25 - (int(room.oldest()) - 1_000_000) == 60_000
