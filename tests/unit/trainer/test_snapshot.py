"""A snapshot is a copy, and every harm to it shows in a digest."""

import msgspec
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from trainer.errors import CatchUpFailed
from trainer.replica.digest import ROW_BYTES, digest
from trainer.replica.snapshot import Index, Snapshot, Target, chunk_count


def state() -> list[torch.Tensor]:
    torch.manual_seed(1)
    return [torch.randn(3, 4), torch.tensor(7.0), torch.randn(5).to(torch.bfloat16), torch.zeros(0), torch.randn(3000)]


def sealed(tensors: list[torch.Tensor], step: int = 9) -> Snapshot:
    taken = Snapshot(tensors, step=step)
    taken.take(tensors)
    taken.seal()
    return taken


def test_chunks_put_together_are_the_state() -> None:
    taken, mine = sealed(state()), [torch.zeros_like(tensor) for tensor in state()]
    target = Target(mine)
    for offset in range(0, target.nbytes, 1000):
        target.put(offset, taken.memory[offset : offset + 1000])
    assert all(torch.equal(one, other) for one, other in zip(mine, state(), strict=True))


def test_a_snapshot_is_a_copy() -> None:
    tensors = state()
    taken = sealed(tensors)
    tensors[0].zero_()
    assert taken.chunk(0)[:48].clone().view(torch.float32).abs().sum() > 0


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


def escapes(flips: list[tuple[int, int]]) -> bool:
    """The one pattern that the digest is weak on: top bits alone, an even number in each row."""
    rows = [position // ROW_BYTES for position, _ in flips]
    tops = all(position % 8 == 7 and bit == 7 and position < WHOLE_BYTES for position, bit in flips)
    return tops and all(rows.count(row) % 2 == 0 for row in rows)


WHOLE_BYTES = 3 * ROW_BYTES
BLOCK = torch.arange(WHOLE_BYTES + 13, dtype=torch.int64).to(torch.uint8)


@given(st.lists(st.tuples(st.integers(0, BLOCK.numel() - 1), st.integers(0, 7)), min_size=1, max_size=4, unique=True))
def test_flipped_bits_change_the_digest(flips: list[tuple[int, int]]) -> None:
    assume(not escapes(flips))
    harmed = BLOCK.clone()
    for position, bit in flips:
        harmed[position] ^= 1 << bit
    assert digest(harmed) != digest(BLOCK)


@given(st.integers(0, 2 * ROW_BYTES + 9))
def test_a_block_cut_short_has_another_digest(kept: int) -> None:
    assert digest(torch.zeros(kept, dtype=torch.uint8)) != digest(torch.zeros(kept + 1, dtype=torch.uint8))


def test_swapped_pages_change_the_digest() -> None:
    pages = torch.randint(0, 256, (4, 4096), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    assert digest(pages[[0, 2, 1, 3]].reshape(-1)) != digest(pages.reshape(-1))
