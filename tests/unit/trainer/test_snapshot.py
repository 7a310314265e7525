"""A snapshot is a copy, and every harm to it shows in a digest."""

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.errors import CatchUpFailed
from trainer.replica import snapshot
from trainer.replica.snapshot import CHUNK_BYTES, Index, Snapshot, Target, as_bytes, chunk_count


def state() -> list[torch.Tensor]:
    torch.manual_seed(1)
    return [torch.randn(3, 4), torch.tensor(7.0), torch.randn(5).to(torch.bfloat16), torch.zeros(0), torch.randn(3000)]


def sealed(tensors: list[torch.Tensor], step: int = 9) -> Snapshot:
    taken = Snapshot(step)
    taken.take(tensors)
    taken.seal()
    return taken


def test_chunks_put_together_are_the_state() -> None:
    taken, mine = sealed(state()), [torch.zeros_like(tensor) for tensor in state()]
    target = Target(mine)
    for offset in range(0, target.nbytes, 1000):
        target.put(offset, taken.memory[offset : offset + 1000])
    assert all(torch.equal(one, other) for one, other in zip(mine, state(), strict=True))


ENDS = (48, 52, 62, 12062)
"""Where the tensors of `state` end in its run of bytes."""


@given(st.sampled_from([0, *ENDS]), st.integers(-2, 2), st.integers(0, 13_000))
def test_what_is_written_into_windows_stands_in_the_tensors(end: int, beside: int, count: int) -> None:
    mine, source = [torch.zeros_like(tensor) for tensor in state()], sealed(state()).memory
    first = min(max(end + beside, 0), ENDS[-1])
    last = min(first + count, ENDS[-1])
    wanted = torch.zeros_like(source)
    wanted[first:last] = source[first:last]
    at = first
    for window in Target(mine).windows(first, last - first):
        window[:] = source[at : at + len(window)].numpy().data
        at += len(window)
    assert at == last
    assert torch.equal(torch.cat([as_bytes(tensor) for tensor in mine]), wanted)


def test_a_range_across_tensors_has_a_window_in_each() -> None:
    assert [len(window) for window in Target(state()).windows(40, 20)] == [8, 4, 8]


def test_a_snapshot_is_a_copy() -> None:
    tensors = state()
    taken = sealed(tensors)
    tensors[0].zero_()
    assert taken.memory[:48].clone().view(torch.float32).abs().sum() > 0


@given(st.integers(-2, 6), st.integers(-2, 6))
def test_chunks_are_given_out_when_all_of_them_are_there(first: int, count: int) -> None:
    given_out = HELD.chunks(first, count)
    there = first >= 0 and count >= 1 and first + count <= 3
    assert given_out.numel() == (sum(SIZES[first : first + count]) if there else 0)
    assert not there or torch.equal(given_out, HELD.memory[first * CHUNK_BYTES :][: given_out.numel()])


def test_equal_states_have_equal_indexes_and_others_do_not() -> None:
    other = state()
    other[4][7] += 1
    assert sealed(state()).index == sealed(state()).index != sealed(other).index


def test_an_empty_state_has_no_chunk() -> None:
    index = msgspec.json.decode(sealed([]).index or b"", type=Index)
    assert index.chunks == chunk_count(0, index.chunk_bytes) == 0


def changed(**fields: object) -> bytes:
    return msgspec.json.encode(
        msgspec.structs.replace(msgspec.json.decode(sealed(state()).index, type=Index), **fields)
    )


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"{", "index of a snapshot"),
        (changed(tensors=()), "not mine"),
        (changed(step=8), "step 8"),
        (changed(chunk_bytes=0), "chunks of 0"),
        (changed(chunk_bytes=1 << 40), "chunks of"),
        (changed(digests=b""), "0 chunks"),
    ],
)
def test_an_index_that_does_not_describe_my_state_is_refused(data: bytes, match: str) -> None:
    with pytest.raises(CatchUpFailed, match=match):
        Target(state()).read_index(data, 9)


SIZES = (CHUNK_BYTES, CHUNK_BYTES, 13)
HELD = sealed([torch.arange(sum(SIZES), dtype=torch.int32).to(torch.uint8)])


@settings(max_examples=20, deadline=None)
@given(st.sets(st.tuples(st.integers(0, sum(SIZES) - 1), st.integers(0, 7)), min_size=1, max_size=4))
def test_flipped_bits_change_the_digests_of_their_chunks(flips: set[tuple[int, int]]) -> None:
    harmed = HELD.memory.clone()
    for position, bit in flips:
        harmed[position] ^= 1 << bit
    right, found = (msgspec.json.decode(taken.index or b"", type=Index) for taken in (HELD, sealed([harmed])))
    differing = {number for number in range(3) if right.digest(number) != found.digest(number)}
    assert differing == {position // CHUNK_BYTES for position, _ in flips}


def test_what_the_copy_has_not_digested_the_seal_does() -> None:
    late = Snapshot(9)
    late.heads, late.memory = HELD.heads, HELD.memory  # As a copy from a GPU leaves it.
    late.seal()
    assert late.index == HELD.index


def test_copying_digests_each_chunk_before_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    for name in ("_copy", "_digest"):
        real = getattr(Snapshot, name)
        monkeypatch.setattr(
            snapshot.Snapshot, name, lambda *args, name=name, real=real: (order.append(name), real(*args))
        )
    sealed([torch.zeros(sum(SIZES), dtype=torch.uint8)])
    assert order == ["_copy", "_digest"] * 3
