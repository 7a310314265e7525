"""Tokens are a pure function of (text, seed, global sample number)."""

from pathlib import Path

import numpy as np
import pytest

from trainer.data import Corpus, load_corpus, micro_batch_samples
from trainer.errors import ConfigInvalid


def corpus(length: int = 101, sequence_length: int = 10, seed: int = 7) -> Corpus:
    return Corpus(np.arange(length, dtype=np.uint8), sequence_length, seed)


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
    text = load_corpus(None, sequence_length=64, seed=1)
    assert text.windows > 500
    assert int(text.text.max()) < 128


def test_a_text_shorter_than_a_sample_is_refused(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("abc")
    with pytest.raises(ConfigInvalid, match="one sample needs 65"):
        load_corpus(str(tmp_path / "short.txt"), sequence_length=64, seed=1)


def test_an_absent_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match="absent"):
        load_corpus(str(tmp_path / "absent.txt"), sequence_length=64, seed=1)
