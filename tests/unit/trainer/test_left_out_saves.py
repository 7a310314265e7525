"""A rank that leaves a local save out says so: the others do not wait for its shard, nor leave out their next ones."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import torch
import torch.distributed as dist

from controlplane.protocol.launch import RankRef
from controlplane.protocol.rank import CheckpointReport
from controlplane.protocol.spec import Checkpoint
from controlplane.protocol.spec import LocalTier as Wanted
from tests.integration.trainer.cluster import tiny_config
from trainer.checkpoint.local.tier import LocalOrder, LocalTier
from trainer.engine import Engine

HELD_S = 30.0


class State:
    """Of an engine, all that is saved of it."""

    def state(self) -> list[torch.Tensor]:
        return [torch.zeros(8)]


@pytest.fixture
def tiers(tmp_path: Path) -> Iterator[tuple[list[LocalTier], list[CheckpointReport]]]:
    """Two ranks of one replica, each on a node of its own; what they report."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    wanted = Checkpoint(interval_steps=0, local=Wanted(dir=str(tmp_path / "disks"), interval_steps=3, copies=0))
    config = msgspec.structs.replace(tiny_config(tmp_path, checkpoint=wanted), replicas=1)
    said: list[CheckpointReport] = []
    made = [
        LocalTier(
            RankRef("job", 1, 0, 1, rank), config, world=2, node=f"node{rank}", host="127.0.0.1", store=store,
            send=lambda report: said.append(cast(CheckpointReport, report)),
        )
        for rank in (0, 1)
    ]  # fmt: skip
    yield made, said
    for tier in made:
        tier.finish()


def save(tier: LocalTier, step: int) -> None:
    tier.save(cast(Engine, State()), LocalOrder(step=step, epoch=1, contributors=(0,)))


def test_the_others_go_on_with_the_next_one(
    tiers: tuple[list[LocalTier], list[CheckpointReport]], monkeypatch: pytest.MonkeyPatch
) -> None:
    (first, second), said = tiers
    at_work, goes_on = threading.Event(), threading.Event()
    prune = second._disk.prune

    def slowly(**kept: Any) -> None:
        at_work.set()
        goes_on.wait(HELD_S)
        prune(**kept)

    monkeypatch.setattr(second._disk, "prune", slowly)
    for tier in (first, second):
        save(tier, 3)
    first.finish()
    at_work.wait(HELD_S)
    save(second, 6)
    save(first, 6)
    goes_on.set()
    second.finish()
    first.finish()
    for tier in (first, second):
        save(tier, 9)
    second.finish()
    first.finish()
    assert [(report.step, report.state) for report in said] == [(3, "complete"), (6, "failed"), (9, "complete")]
    assert said[1].error == "shard 1: node node1: left out, the save before was still being written"
