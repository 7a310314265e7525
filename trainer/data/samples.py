"""Which bytes belong to which sample."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainer.errors import ConfigInvalid

SHIPPED_TEXT = Path(__file__).with_name("founding.txt")


def micro_batch_samples(step: int, micro_batch: int, *, global_batch: int, size: int) -> range:
    """Global sample numbers of one micro-batch of `size` samples."""
    first = step * global_batch + micro_batch * size
    return range(first, first + size)


@dataclass(slots=True)
class Corpus:
    """A text cut into windows of `sequence_length` + 1 bytes, shuffled anew each data epoch.

    `text`: [n] uint8. The permutation of one data epoch is kept, the newest only.
    """

    text: NDArray[np.uint8]
    sequence_length: int
    seed: int
    _epoch: int = field(default=-1, init=False)
    _order: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64), init=False)

    @property
    def windows(self) -> int:
        """Samples of one data epoch."""
        return (len(self.text) - 1) // self.sequence_length

    def sample(self, number: int) -> NDArray[np.int64]:
        """[sequence_length + 1] tokens of global sample `number`; targets are shifted by one."""
        epoch, index = divmod(number, self.windows)
        if epoch != self._epoch:
            self._order = np.random.default_rng([self.seed, epoch]).permutation(self.windows)
            self._epoch = epoch
        start = int(self._order[index]) * self.sequence_length
        return self.text[start : start + self.sequence_length + 1].astype(np.int64)


def load_corpus(path: str | None, *, sequence_length: int, seed: int) -> Corpus:
    """`path` None: the shipped text. Raises ConfigInvalid if absent or shorter than one sample."""
    source = Path(path) if path else SHIPPED_TEXT
    try:
        text = np.frombuffer(source.read_bytes(), dtype=np.uint8)
    except OSError as error:
        raise ConfigInvalid(f"training.data: {error}") from error
    corpus = Corpus(text, sequence_length, seed)
    if corpus.windows < 1:
        raise ConfigInvalid(f"training.data: {source} holds {len(text)} bytes, one sample needs {sequence_length + 1}")
    return corpus
