"""The whole state of a rank: both models, optimizers, step and random numbers; its copy in
host memory, its part of a checkpoint, and back.

Random states (torch, numpy, Python, and CUDA where there is one) are the same on every
rank, because all draw alike; so one entry of a checkpoint serves any mesh.
"""

import ctypes
import functools
import hashlib
import json
import multiprocessing
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.managers import SyncManager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing.mapping import ShardedObject
from megatron.core.dist_checkpointing.serialization import get_default_save_sharded_strategy
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.dist_checkpointing.strategies.fully_parallel import FullyParallelSaveStrategyWrapper
from torch.distributed import checkpoint as torch_checkpoint

from trainer import device
from trainer.checkpoint.reading import Marked, load_sharded
from trainer.checkpoint.strategy import CONTENT
from trainer.errors import CatchUpFailed, CheckpointFault
from trainer.optimizer import set_schedule
from trainer.workloads.ppo.engine import PpoEngine

DIGEST_BYTES = 16
PR_SET_PDEATHSIG = 1  # linux/prctl.h
RandomState = dict[str, torch.Tensor]


def prepare_writers() -> None:
    """Give Megatron its results queue from a forked manager (its own is spawned at the first
    save and takes seconds), which ends with this process. Before any thread or group exists."""
    manager = SyncManager(ctx=multiprocessing.get_context("fork"))
    manager.start(_die_with_parent)
    filesystem_async._results_queue = manager.Queue()


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class HostCopy:
    """State after `step` steps in this process's own memory. Outlives worlds and models."""

    def __init__(self, engine: PpoEngine, *, step: int) -> None:
        self.step = step
        self._tensors = [tensor.detach().to("cpu", copy=True) for tensor in engine.tensors()]
        self._random = random_state()

    def restore(self, engine: PpoEngine) -> None:
        """Into models of the same coordinates. Raises CatchUpFailed when the shapes differ."""
        targets = list(engine.tensors())
        if [_kind(tensor) for tensor in targets] != [_kind(tensor) for tensor in self._tensors]:
            raise CatchUpFailed("the copy in memory is of another layout or model")
        for target, source in zip(targets, self._tensors, strict=True):
            target.copy_(source)
        stand_at(engine, self.step)
        set_random_state(self._random)


def _kind(tensor: torch.Tensor) -> tuple[torch.dtype, torch.Size]:
    return tensor.dtype, tensor.shape


def stand_at(engine: PpoEngine, step: int) -> None:
    """Put the schedules where `step` steps leave them."""
    for trained in engine.models:
        set_schedule(trained.schedule, step * engine.settings.updates_per_step)


def random_state() -> RandomState:
    """Of all generators, as tensors of bytes."""
    kind, keys, *rest = np.random.get_state()
    named = {
        "torch": torch.get_rng_state(),
        "numpy": _packed([kind, keys.tolist(), *rest]),
        "python": _packed(random.getstate()),
    }
    return named | ({"cuda": torch.cuda.get_rng_state()} if device.has_cuda() else {})


def set_random_state(state: RandomState) -> None:
    """The inverse; a CUDA state is ignored where there is no CUDA."""
    torch.set_rng_state(state["torch"])
    kind, keys, *rest = _unpacked(state["numpy"])
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))
    version, internal, gauss = _unpacked(state["python"])
    random.setstate((version, tuple(internal), gauss))
    if device.has_cuda() and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"])


def fingerprint(engine: PpoEngine) -> str:
    """blake2b of every tensor and of the random state, hex: equal on equal coordinates."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for tensor in [*engine.tensors(), *random_state().values()]:
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def save(engine: PpoEngine, path: Path, *, step: int) -> None:
    """Write my part; all ranks of the world together, each an even share. The directory is
    there already. Raises CheckpointFault."""
    strategy = FullyParallelSaveStrategyWrapper(
        get_default_save_sharded_strategy("torch_dist", 1),
        parallel_state.get_data_parallel_group(with_context_parallel=True),
    )
    try:
        dist_checkpointing.save(
            _sharded(engine, step, loading=False), str(path), strategy, content_metadata=dict(CONTENT)
        )
    except Exception as error:  # Megatron wraps what went wrong in its writers in many types.
        raise CheckpointFault(f"{path}: {type(error).__name__}: {error}") from error


def load(engine: PpoEngine, path: Path) -> int:
    """Fill this rank alone, while the others do something else. Returns the step.
    Raises CheckpointFault."""
    try:
        with _without_peers():
            # Whether each shard is read exactly once is a question to all ranks.
            loaded = load_sharded(_sharded(engine, 0, loading=True), Marked(path), alone=True)
        for trained in engine.models:
            model = {name.removeprefix(f"{trained.name}."): value for name, value in loaded[trained.name].items()}
            trained.model.module.load_state_dict(model)
            trained.optimizer.load_state_dict(loaded[f"{trained.name}_optimizer"])
        step = int(loaded["trainer"]["step"])
        set_random_state(loaded["random"])
    # Megatron raises a dozen unrelated types for a damaged directory; torch's own is no Exception.
    except (Exception, torch_checkpoint.CheckpointException) as error:
        raise CheckpointFault(f"{path}: {type(error).__name__}: {error}") from error
    stand_at(engine, step)
    return step


def _sharded(engine: PpoEngine, step: int, *, loading: bool) -> dict[str, Any]:
    # One entry for the whole world: the copy of the first rank of each kind is the one that is written.
    copies = (
        parallel_state.get_pipeline_model_parallel_rank(),
        parallel_state.get_tensor_model_parallel_rank(),
        parallel_state.get_data_parallel_rank(),
    )
    content: dict[str, Any] = {
        "trainer": {"step": step, "consumed_samples": step * engine.settings.global_batch},
        "random": ShardedObject("random", random_state(), (1,), (0,), replica_id=copies),
    }
    for trained in engine.models:
        model = trained.model.module.sharded_state_dict(prefix=f"{trained.name}.", metadata=dict(CONTENT))
        content[trained.name] = model
        content[f"{trained.name}_optimizer"] = trained.optimizer.sharded_state_dict(
            model, is_loading=loading, metadata=dict(CONTENT)
        )
    return content


@contextmanager
def _without_peers() -> Iterator[None]:
    """Megatron's load strategy asks torch for a load in which every rank of the world takes
    part; torch can do without (`no_dist`), but the strategy has no argument for it."""
    original = torch_checkpoint.load_state_dict
    torch_checkpoint.load_state_dict = functools.partial(original, no_dist=True)
    try:
        yield
    finally:
        torch_checkpoint.load_state_dict = original


def _packed(value: Any) -> torch.Tensor:
    return torch.tensor(list(json.dumps(value).encode()), dtype=torch.uint8)


def _unpacked(data: torch.Tensor) -> Any:
    return json.loads(bytes(data.tolist()))
