"""Masked tokens for BERT: which tokens of a sample are hidden is a function of its number.

Of a sample's tokens 15 % are predicted; 80 % of those become the mask token, 10 % another
token and 10 % stay (Devlin et al. 2019). One sample in ten is short, as in Megatron's BERT
data sets, and the rest of its row is padding. Every sample predicts equally many tokens,
so the loss of a micro-batch is always a sum over the same number of them.

The last two ids of the vocabulary are the mask and the padding token; as bytes (255 and
254) they never occur in UTF-8.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MASKED_RATIO = 0.15
MASK_RATIO, RANDOM_RATIO = 0.8, 0.1
SHORT_RATIO = 0.1
_STREAM = 0xB


@dataclass(frozen=True, slots=True)
class MaskedSample:
    """[s] each. `predicted` is 1 where the loss counts, `present` 1 where a token is."""

    tokens: NDArray[np.int64]
    labels: NDArray[np.int64]
    predicted: NDArray[np.float32]
    present: NDArray[np.int64]


def predicted_count(sequence_length: int) -> int:
    """Tokens of one sample whose loss counts."""
    return max(1, round(MASKED_RATIO * sequence_length))


def mask_sample(text: NDArray[np.int64], *, number: int, seed: int, vocab_size: int) -> MaskedSample:
    """Hide tokens of global sample `number`; `text`: [s] tokens. Pure."""
    generator = np.random.default_rng([seed, number, _STREAM])
    length, count = len(text), predicted_count(len(text))
    mask, padding = vocab_size - 1, vocab_size - 2
    kept = length
    if generator.random() < SHORT_RATIO:
        kept = int(generator.integers(max(count, length // 2), length + 1))
    places = generator.choice(kept, count, replace=False)
    fate = generator.random(count)
    others = generator.integers(0, padding, count)

    tokens = text.copy()
    hidden = np.where(fate < MASK_RATIO, mask, np.where(fate < MASK_RATIO + RANDOM_RATIO, others, text[places]))
    tokens[places] = hidden
    tokens[kept:] = padding
    predicted = np.zeros(length, dtype=np.float32)
    predicted[places] = 1.0
    present = np.zeros(length, dtype=np.int64)
    present[:kept] = 1
    return MaskedSample(tokens, text.copy(), predicted, present)
