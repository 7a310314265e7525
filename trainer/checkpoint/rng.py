"""Random state of one rank: python, numpy, torch on the CPU, CUDA and Megatron's trackers.

Saved in one small file a rank. In the layout that wrote it each rank goes on with its own
streams. Another layout has other ranks, whose streams never existed: each rank then starts
streams of its own, seeded by the saved state and its rank, so that two loads of one
checkpoint into one layout draw the same numbers.
"""

import base64
import hashlib
import random
from typing import Any

import msgspec
import numpy as np
import torch
from megatron.core import tensor_parallel

from trainer import device

SEED_BYTES = 4
MAX_BYTES = 16 << 20


class RngState(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`python` and `numpy` as their own getstate gives them; tensors are base64 of their
    bytes. `world` ranks of tp x pp wrote such a file each."""

    rank: int
    world: int
    tp: int
    pp: int
    python: tuple[int, tuple[int, ...], float | None]
    numpy: tuple[str, tuple[int, ...], int, int, float]
    torch_cpu: str
    torch_cuda: str | None = None
    trackers: dict[str, str] = {}


def file_name(rank: int) -> str:
    """The file of one rank inside a checkpoint."""
    return f"rng_{rank}.json"


def capture(*, rank: int, world: int, tp: int, pp: int) -> bytes:
    """This rank's state now, as JSON."""
    algorithm, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    state = RngState(
        rank=rank,
        world=world,
        tp=tp,
        pp=pp,
        python=random.getstate(),
        numpy=(algorithm, tuple(int(key) for key in keys), position, has_gauss, cached),
        torch_cpu=_text(torch.get_rng_state()),
        torch_cuda=_text(torch.cuda.get_rng_state()) if device.has_cuda() else None,
        trackers={name: _text(value) for name, value in _tracked().items()},
    )
    return msgspec.json.encode(state)


def restore(saved: bytes, *, rank: int, world: int, tp: int, pp: int) -> bool:
    """Put a state back; True when it was this rank's own. Raises msgspec.DecodeError."""
    state = msgspec.json.decode(saved, type=RngState)
    if (state.rank, state.world, state.tp, state.pp) != (rank, world, tp, pp):
        _seed(saved, rank)
        return False
    version, keys, gauss = state.python
    random.setstate((version, tuple(keys), gauss))
    algorithm, words, position, has_gauss, cached = state.numpy
    np.random.set_state((algorithm, np.array(words, dtype=np.uint32), position, has_gauss, cached))
    torch.set_rng_state(_tensor(state.torch_cpu))
    if state.torch_cuda is not None and device.has_cuda():
        torch.cuda.set_rng_state(_tensor(state.torch_cuda))
    tracked = _tracked()
    if tracked and set(tracked) == set(state.trackers):
        tensor_parallel.get_cuda_rng_tracker().set_states({n: _tensor(v) for n, v in state.trackers.items()})
    return True


def drawn(on: torch.device) -> torch.Tensor:
    """Where the streams stand that a step on the device `on` may draw from: torch's on the CPU, that
    GPU's and Megatron's, as one uint8 tensor [bytes] in host memory, always of one size. A step of the
    built-in models draws nothing, so a step in progress does not move them."""
    return torch.cat([part.cpu().reshape(-1) for part in _streams(on)])


def draw_from(stands: torch.Tensor, on: torch.device) -> None:
    """Go on where another replica's rank stood (`drawn`)."""
    parts = [part.clone() for part in stands.split([part.numel() for part in _streams(on)])]
    torch.set_rng_state(parts.pop(0))
    if on.type == "cuda":
        torch.cuda.set_rng_state(parts.pop(0), on)
    if parts:
        tensor_parallel.get_cuda_rng_tracker().set_states(dict(zip(sorted(_tracked()), parts, strict=True)))


def _streams(on: torch.device) -> list[torch.Tensor]:
    tracked = _tracked()
    cuda = [torch.cuda.get_rng_state(on)] if on.type == "cuda" else []
    return [torch.get_rng_state(), *cuda, *(tracked[name] for name in sorted(tracked))]


def _seed(saved: bytes, rank: int) -> None:
    digest = hashlib.blake2b(saved, digest_size=SEED_BYTES, key=f"rank {rank}".encode()).digest()
    seed = int.from_bytes(digest, "big")
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def _tracked() -> dict[str, Any]:
    """Megatron's named streams; none on the CPU, where its tracker keeps no state."""
    states = tensor_parallel.get_cuda_rng_tracker().get_states()
    return {name: state for name, state in states.items() if isinstance(state, torch.Tensor)}


def _text(state: torch.Tensor) -> str:
    return base64.b64encode(state.cpu().numpy().tobytes()).decode("ascii")


def _tensor(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
