"""Inside a replica every micro-batch is computed once, and fillers only even the calls out."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from megatron.core.parallel_state import RankGenerator

from controlplane.protocol.spec import Parallelism, rank_coordinates, ranks_per_replica
from trainer.batches import check_counts, filler_count, inner_share
from trainer.context import held_pieces
from trainer.errors import MembershipViolated
from trainer.masking import mask_sample, predicted_count

shares = st.sets(st.integers(0, 63), max_size=24).map(sorted)
layouts = st.builds(
    Parallelism, pp=st.integers(1, 4), vp=st.integers(1, 3), replica_dp=st.integers(1, 5), ep=st.integers(1, 2)
)
TEXT = np.arange(100, dtype=np.int64) % 200


@given(shares, layouts)
def test_the_ranks_of_a_replica_compute_each_micro_batch_once(share: list[int], layout: Parallelism) -> None:
    parts = [inner_share(share, index, layout.replica_dp) for index in range(layout.replica_dp)]
    assert Counter(number for part in parts for number in part) == Counter(share)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@given(shares, layouts)
def test_fillers_give_each_schedule_what_it_needs(share: list[int], layout: Parallelism) -> None:
    sizes = [len(inner_share(share, index, layout.replica_dp)) for index in range(layout.replica_dp)]
    calls = [size + filler_count(share, size, layout) for size in sizes]
    if layout.vp > 1:
        assert all(count % layout.pp == 0 for count in calls)
    if layout.ep > 1:
        assert len(set(calls)) == 1
    if layout.vp == layout.ep == 1:
        assert calls == sizes
    assert all(count - size < layout.pp + 1 for count, size in zip(calls, sizes, strict=True))


@given(shares, st.integers(1, 4), st.integers(0, 3), st.integers(0, 63), st.sampled_from([-1.0, 1.0]))
def test_each_part_of_the_sequences_must_be_computed_once(
    share: list[int], parts: int, other: int, number: int, more: float
) -> None:
    counts = torch.zeros(parts, 64)
    counts[:, share] = 1.0
    check_counts(counts, share)
    counts[0, number] += more
    counts[other % parts, number] -= more if other % parts else 0.0  # The sum over all parts may be right.
    with pytest.raises(MembershipViolated, match="computed"):
        check_counts(counts, share)


@given(st.integers(1, 64))
def test_context_ranks_hold_each_piece_of_a_sequence_once_and_see_equally_many_keys(size: int) -> None:
    held = [held_pieces(rank, size) for rank in range(size)]
    assert sorted(piece for pair in held for piece in pair) == list(range(2 * size))
    assert len({sum(piece + 1 for piece in pair) for pair in held}) == 1


@pytest.mark.parametrize(
    "layout",
    [
        Parallelism(tp=2, cp=3, replica_dp=4, pp=2),
        Parallelism(tp=2, replica_dp=4, ep=2, pp=3),
        Parallelism(tp=2, cp=2, replica_dp=2, ep=4, pp=3),
    ],
)
def test_coordinates_are_megatrons(layout: Parallelism) -> None:
    order, world = "tp-cp-ep-dp-pp", ranks_per_replica(layout)
    dense = RankGenerator(tp=layout.tp, ep=1, dp=layout.replica_dp, pp=layout.pp, cp=layout.cp, order=order)
    spread = world // (layout.tp * layout.ep * layout.pp)
    mixture = RankGenerator(tp=layout.tp, ep=layout.ep, dp=spread, pp=layout.pp, cp=1, order=order)
    for token, generator in {"tp": dense, "cp": dense, "pp": dense, "dp": dense, "ep": mixture}.items():
        field = "replica_dp" if token == "dp" else token
        for group in generator.get_ranks(token):
            assert [getattr(rank_coordinates(layout, rank), field) for rank in group] == list(range(len(group)))


def test_masks_are_a_function_of_the_sample_number() -> None:
    one, again, other = (mask_sample(TEXT, number=n, seed=7, vocab_size=256) for n in (3, 3, 4))
    for name in ("tokens", "labels", "predicted", "present"):
        assert np.array_equal(getattr(one, name), getattr(again, name))
    assert not np.array_equal(one.predicted, other.predicted)


def test_every_sample_predicts_equally_many_tokens_and_none_of_the_padding() -> None:
    samples = [mask_sample(TEXT, number=number, seed=7, vocab_size=256) for number in range(200)]
    assert {int(sample.predicted.sum()) for sample in samples} == {predicted_count(len(TEXT))}
    assert all(sample.present[sample.predicted > 0].all() for sample in samples)
    assert all((sample.tokens[sample.present == 0] == 254).all() for sample in samples)
    assert 5 <= sum(not sample.present.all() for sample in samples) <= 40
    hidden = np.concatenate([sample.tokens[sample.predicted > 0] for sample in samples])
    assert 0.75 < (hidden == 255).mean() < 0.85


def test_tokens_that_are_not_predicted_stay() -> None:
    sample = mask_sample(TEXT, number=1, seed=7, vocab_size=256)
    kept = (sample.predicted == 0) & (sample.present == 1)
    assert np.array_equal(sample.tokens[kept], TEXT[kept])
    assert np.array_equal(sample.labels, TEXT)
