"""A fast digest of a block of memory: one pass at memory speed, then blake2b of what is left.

blake2b reads 0.9 GB/s and crc32 2.3 GB/s on a core that copies 14 GB/s, so that checking
would cost more than moving. Here each row of 128 words (1 KiB) is first folded into one
word: the sum of its 64-bit words, each times an odd random weight, modulo 2^64; blake2b
takes the folded rows, the bytes that fill no row, and the length. Odd weights can be
inverted, so a row in which one word is harmed folds differently for certain, and one in
which several are, but for one chance in 2^63. The one pattern it is weak on: an even number
of words of one row that differ in their top bits and in nothing else. It finds harm by
accident; it is no proof against a forger.
"""

import hashlib

import torch

DIGEST_BYTES = 16
ROW_WORDS = 128
WORD_BYTES = 8
ROW_BYTES = ROW_WORDS * WORD_BYTES
_SEED = 0x686F6C64


def _weights() -> torch.Tensor:
    generator = torch.Generator().manual_seed(_SEED)
    words = torch.randint(-(2**63), 2**63 - 1, (ROW_WORDS,), dtype=torch.int64, generator=generator)
    return words | 1


_WEIGHTS = _weights()


def digest(block: torch.Tensor) -> bytes:
    """`DIGEST_BYTES` of a contiguous uint8 tensor [bytes] in host memory, aligned to a word."""
    rows = block.numel() // ROW_BYTES
    found = hashlib.blake2b(block.numel().to_bytes(WORD_BYTES, "little"), digest_size=DIGEST_BYTES)
    if rows:
        words = block[: rows * ROW_BYTES].view(torch.int64).view(rows, ROW_WORDS)
        found.update(torch.mv(words, _WEIGHTS).numpy().data)
    found.update(block[rows * ROW_BYTES :].numpy().data)
    return found.digest()
