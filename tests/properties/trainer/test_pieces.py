"""However a bucket is shared out, each element of a parameter is kept once, by its rank."""

from hypothesis import given
from hypothesis import strategies as st

from trainer.pieces import Piece, cut, owner_of

places = st.tuples(st.integers(0, 400), st.integers(1, 400), st.integers(1, 130))


@given(places)
def test_each_element_is_kept_once_by_the_rank_whose_part_it_lies_in(place: tuple[int, int, int]) -> None:
    first, length, shard = place
    kept = [(element, piece.rank) for piece in cut(first, first + length, shard=shard) for element in _of(piece)]
    assert kept == [(element, (first + element) // shard) for element in range(length)]


@given(places)
def test_nobody_keeps_more_than_the_owner(place: tuple[int, int, int]) -> None:
    first, length, shard = place
    pieces = cut(first, first + length, shard=shard)
    sizes = {piece.rank: len(_of(piece)) for piece in pieces}
    assert len(sizes) == len(pieces)
    assert sizes[owner_of(pieces)] == max(sizes.values())


def _of(piece: Piece) -> range:
    return range(piece.first, piece.stop)
