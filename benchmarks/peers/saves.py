"""Checkpoints for the torchrun peer: one file a rank, written by the first data-parallel
copy, durable before the step goes on. Cheaper than a distributed checkpoint, which favours
the peer. Called by `torchrun_rank.py`.
"""

import os
from pathlib import Path

import torch

from benchmarks.peers.engine import fill_engine
from trainer.engine import Engine

KEEP = 2


def save(engine: Engine, directory: Path, *, stage: int, step: int) -> None:
    """Write this stage's state of `step`, then drop older ones."""
    path = directory / f"stage{stage}-{step:08d}.pt"
    draft = path.with_suffix(".tmp")
    with draft.open("wb") as file:
        torch.save([tensor.detach().clone() for tensor in engine.state()], file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    for old in sorted(directory.glob(f"stage{stage}-*.pt"))[:-KEEP]:
        old.unlink()


def newest(directory: Path, *, stages: int) -> int:
    """The newest step that every stage has saved; 0 when there is none."""
    have = [{int(path.stem.split("-")[1]) for path in directory.glob(f"stage{stage}-*.pt")} for stage in range(stages)]
    return max(set.intersection(*have), default=0)


def load(engine: Engine, directory: Path, *, stage: int, step: int) -> None:
    """Put the state of `step` in place."""
    fill_engine(engine, torch.load(directory / f"stage{stage}-{step:08d}.pt", weights_only=True), step)
