"""Which tokens belong to which sample."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainer.data.order import shuffled
from trainer.data.sources import TokenSource, check_vocabulary, open_source
from trainer.errors import DataInvalid


def micro_batch_samples(step: int, micro_batch: int, *, global_batch: int, size: int) -> range:
    """Global sample numbers of one micro-batch of `size` samples."""
    first = step * global_batch + micro_batch * size
    return range(first, first + size)


@dataclass(frozen=True, slots=True)
class Corpus:
    """A stream of tokens cut into windows of `sequence_length` + 1, shuffled anew each data epoch.

    Windows follow each other with one token in common: the last target of one is the first
    input of the next, so each token but the first is predicted once a data epoch. What is
    left over at the end, less than a window, is never trained.
    """

    source: TokenSource
    sequence_length: int
    seed: int

    @property
    def windows(self) -> int:
        """Samples of one data epoch."""
        return (self.source.tokens - 1) // self.sequence_length

    def window_of(self, number: int) -> tuple[int, int]:
        """(data epoch, window) of global sample `number`."""
        epoch, index = divmod(number, self.windows)
        return epoch, shuffled(index, self.windows, seed=self.seed, epoch=epoch)

    def sample(self, number: int) -> NDArray[np.int64]:
        """[sequence_length + 1] tokens of global sample `number`; targets are shifted by one."""
        _, window = self.window_of(number)
        return self.source.read(window * self.sequence_length, self.sequence_length + 1)


def load_corpus(path: str | None, *, sequence_length: int, seed: int, vocab_size: int | None = None) -> Corpus:
    """`path`: a text file, the prefix of an indexed dataset, or None for the shipped text.

    Raises DataInvalid if it is absent, damaged, shorter than one sample, or holds tokens
    beyond `vocab_size` (None: not checked).
    """
    source = open_source(path)
    corpus = Corpus(source, sequence_length, seed)
    if corpus.windows < 1:
        raise DataInvalid(
            f"training.data: {source.name} holds {source.tokens} tokens, one sample needs {sequence_length + 1};"
            " give more text or shorten model.sequence_length"
        )
    if vocab_size is not None:
        check_vocabulary(source.name, source.vocab_size, known=vocab_size)
    return corpus
