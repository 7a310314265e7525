"""A fast digest of a block of memory: one pass at memory speed, then blake2b of what is left.

blake2b reads 0.9 GB/s and crc32 2.3 GB/s on a core that copies 14 GB/s, so that checking
would cost more than moving. Here each row of 1,024 words (8 KiB) is first folded into one
word: the sum of its 64-bit words, each times an odd random weight, modulo 2^64. Odd weights
can be inverted, so a row that differs in one word folds differently for certain; one that
differs in several, but for one chance in 2^31. Where only the top bits of several words
differ their products could cancel, so the rows are folded again from byte 4 on, where those
bits are in the middle of a word. blake2b then takes the folded rows, the bytes that fill no
row, and the length. It finds harm by accident; it is no proof against a forger.
"""

import hashlib

import torch

DIGEST_BYTES = 16
ROW_WORDS = 1024
WORD_BYTES = 8
ROW_BYTES = ROW_WORDS * WORD_BYTES
SHIFT_BYTES = 4
_SEED = 0x686F6C64


def _weights() -> torch.Tensor:
    generator = torch.Generator().manual_seed(_SEED)
    words = torch.randint(-(2**63), 2**63 - 1, (ROW_WORDS,), dtype=torch.int64, generator=generator)
    return words | 1


_WEIGHTS = _weights()


def digest(block: torch.Tensor) -> bytes:
    """`DIGEST_BYTES` of a contiguous uint8 tensor [bytes] in host memory."""
    found = hashlib.blake2b(block.numel().to_bytes(WORD_BYTES, "little"), digest_size=DIGEST_BYTES)
    for start in (0, SHIFT_BYTES):
        rows = max(0, block.numel() - start) // ROW_BYTES
        end = start + rows * ROW_BYTES
        if rows:
            found.update(_fold(block[start:end], rows))
        found.update(block[:start].numpy().data)
        found.update(block[end:].numpy().data)
    return found.digest()


def _fold(block: torch.Tensor, rows: int) -> memoryview:
    words = torch.frombuffer(block.numpy().data, dtype=torch.int64)
    return memoryview(torch.mv(words.view(rows, ROW_WORDS), _WEIGHTS).numpy()).cast("B")
