"""What every sender of a transfer holds."""

import torch

STEP = 7
TENSORS = 16
MEGABYTE = 1_000_000


def state(megabytes: int, *, filled: bool) -> list[torch.Tensor]:
    """`TENSORS` float32 tensors of `megabytes` together, every page touched."""
    words = megabytes * MEGABYTE // 4 // TENSORS
    made = torch.rand if filled else torch.zeros
    tensors = [made(words) for _ in range(TENSORS)]
    for tensor in tensors:
        tensor.add_(0)
    return tensors
