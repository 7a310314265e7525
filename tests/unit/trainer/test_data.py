"""Tokens are a pure function of (data, seed, global sample number)."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.data import Corpus, load_corpus, micro_batch_samples
from trainer.data.order import shuffled
from trainer.data.sources import Text
from trainer.errors import ConfigInvalid


def corpus(length: int = 101, sequence_length: int = 10, seed: int = 7) -> Corpus:
    return Corpus(Text("test", np.arange(length, dtype=np.uint8)), sequence_length, seed)


def test_micro_batches_of_a_step_are_its_global_batch_in_order() -> None:
    numbers = [n for m in range(6) for n in micro_batch_samples(3, m, global_batch=12, size=2)]
    assert numbers == list(range(36, 48))


def test_each_window_appears_once_in_a_data_epoch() -> None:
    text = corpus()
    first = sorted(int(text.sample(number)[0]) for number in range(text.windows))
    assert first == [10 * window for window in range(10)]


def test_epochs_are_shuffled_differently() -> None:
    text = corpus()
    epochs = [[int(text.sample(e * text.windows + i)[0]) for i in range(text.windows)] for e in range(2)]
    assert epochs[0] != epochs[1]


def test_samples_do_not_depend_on_the_order_of_asking() -> None:
    one, other = corpus(), corpus()
    forward = [one.sample(number).tolist() for number in range(25)]
    backward = [other.sample(number).tolist() for number in reversed(range(25))]
    assert forward == backward[::-1]


def test_a_sample_holds_one_token_more_than_the_sequence() -> None:
    sample = corpus().sample(0)
    assert sample.shape == (11,)
    assert (np.diff(sample) == 1).all()


def test_the_shipped_text_is_ascii_and_large_enough() -> None:
    text = load_corpus(None, sequence_length=64, seed=1, vocab_size=256)
    assert text.windows > 500
    assert int(text.source.read(0, text.source.tokens).max()) < 128


def test_a_text_shorter_than_a_sample_is_refused(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("abc")
    with pytest.raises(ConfigInvalid, match=r"one sample needs 65; give more text"):
        load_corpus(str(tmp_path / "short.txt"), sequence_length=64, seed=1)


def test_an_absent_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match=r"absent\.txt: No such file.*prefix of an indexed dataset"):
        load_corpus(str(tmp_path / "absent.txt"), sequence_length=64, seed=1)


@given(st.integers(1, 700), st.integers(0, 2**63), st.integers(0, 10**6))
def test_the_order_of_an_epoch_is_a_permutation(count: int, seed: int, epoch: int) -> None:
    assert sorted(shuffled(i, count, seed=seed, epoch=epoch) for i in range(count)) == list(range(count))


@given(st.integers(10**9, 10**15), st.data())
def test_a_corpus_too_large_to_permute_in_memory_gives_each_index_its_own_place(
    count: int, data: st.DataObject
) -> None:
    indices = data.draw(st.lists(st.integers(0, count - 1), min_size=2, max_size=20, unique=True))
    places = {shuffled(index, count, seed=1, epoch=0) for index in indices}
    assert len(places) == len(indices)
    assert all(0 <= place < count for place in places)


def test_every_place_is_as_likely_as_any_other() -> None:
    """Chi-squared of the first place over 2,000 epochs of 10 windows; 9 degrees of freedom."""
    counts = np.bincount([shuffled(0, 10, seed=3, epoch=epoch) for epoch in range(2000)], minlength=10)
    assert float(((counts - 200) ** 2 / 200).sum()) < 33.7, "p = 1e-4"


def test_neighbours_do_not_stay_neighbours() -> None:
    places = np.array([shuffled(index, 1000, seed=5, epoch=0) for index in range(1000)])
    assert int((np.abs(np.diff(places)) == 1).sum()) < 15
