"""The local tier survives what it is for: a node that is lost, a disk that lies, a full disk."""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from controlplane.protocol.launch import Resume
from controlplane.protocol.rank import CheckpointReport, StepReport
from controlplane.protocol.spec import Checkpoint, LocalTier, Training
from tests.integration.trainer.cluster import Cluster, tiny_config
from trainer.checkpoint.manifest import list_complete
from trainer.reference import TOLERANCE

pytestmark = pytest.mark.trainer
Make = Callable[..., Cluster]


def local(folder: Path, **changes: object) -> Checkpoint:
    tier = {"dir": str(folder), "interval_steps": 3, "copies": 1, "keep": 2} | changes
    return Checkpoint(interval_steps=0, local=LocalTier(**tier))  # type: ignore[arg-type]


def complete(run: Cluster) -> list[CheckpointReport]:
    return [said for said in run.of(CheckpointReport) if said.kind == "local" and said.state == "complete"]


def newest(run: Cluster, kind: str) -> int:
    """Step of the newest complete one of a kind, 0 where there is none."""
    found = [said.step for said in run.of(CheckpointReport) if (said.kind, said.state) == (kind, "complete")]
    return max(found, default=0)


def shards(folder: Path, node: str) -> set[str]:
    """`step/shard` of every shard on one node."""
    found = os.walk(folder / node)  # Unlike a glob it minds no folder that goes meanwhile.
    return {f"{Path(path).name}/{name}" for path, _, names in found for name in names if name.startswith("shard_")}


def start(run: Cluster, *, incarnation: int = 1) -> None:
    """One replica's two ranks on two nodes: no shard has a second holder by itself."""
    run.node_of = lambda replica, rank: f"node{rank}"
    run.start(0, incarnation=incarnation)


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder on a tmpfs."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        yield Path(name)


@pytest.fixture
def saved(cluster: Make, tmp_path: Path) -> tuple[Cluster, CheckpointReport, Path]:
    """A run of one replica on two nodes that ended with at least two local checkpoints."""
    folder = tmp_path / "disks"
    run = cluster(msgspec.structs.replace(tiny_config(tmp_path, checkpoint=local(folder)), replicas=1))
    start(run)
    run.wait(lambda: len(complete(run)) >= 2, "two local checkpoints")
    run.close()
    return run, complete(run)[-1], folder


def resumed(cluster: Make, run: Cluster, report: CheckpointReport, *, incarnation: int = 2) -> Cluster:
    """The same job, started again from a local checkpoint."""
    again = cluster(msgspec.structs.replace(run.config, resume=Resume(report.path, report.step)))
    again.job_id = run.job_id
    again.config = msgspec.structs.replace(again.config, store_token=run.config.store_token)
    start(again, incarnation=incarnation)
    return again


def test_copies_in_memory_outlive_all_ranks_and_one_node_and_are_newer_than_the_disk(
    cluster: Make, memory: Path, tmp_path: Path, reference: list[float]
) -> None:
    """Every rank is killed and one node's memory lost: the job goes on from the other's."""
    saves = msgspec.structs.replace(local(memory, medium="memory"), interval_steps=6)
    run = cluster(msgspec.structs.replace(tiny_config(tmp_path, checkpoint=saves), replicas=1))
    start(run)
    run.wait(lambda: newest(run, "local") > newest(run, "interval") > 0, "the tier in memory ahead of the other")
    run.close()
    report, root = complete(run)[-1], Path(run.config.checkpoint_dir)
    assert report.step > max(content.step for _, content in list_complete(root))
    assert report.holders == (("node0", "node1"), ("node0", "node1"))
    shutil.rmtree(memory / "node1")
    again = resumed(cluster, run, report)
    again.wait_all_done()
    losses = again.losses()
    assert min(losses) == report.step
    assert max(abs(losses[step] - reference[step]) for step in losses) <= TOLERANCE
    while shards(memory, "node0") | shards(memory, "node1"):  # Nobody tells when the memory is given back.
        time.sleep(0.01)


def test_a_flipped_bit_on_one_disk_is_mended_from_the_other_and_on_both_is_refused(
    cluster: Make, saved: tuple[Cluster, CheckpointReport, Path]
) -> None:
    run, report, folder = saved
    copies = list(folder.glob(f"*/*/{report.path.removeprefix('local:')}/shard_0"))
    assert len(copies) == 2
    mine = next(path for path in copies if path.is_relative_to(folder / "node0"))
    _flip(mine)
    again = resumed(cluster, run, report)
    again.wait_committed(report.step + 1, 0)
    again.close()
    for path in copies:
        _flip(path)
    third = resumed(cluster, run, report, incarnation=3)
    third.wait_gone((0, 3, 0), (0, 3, 1), timeout_s=110)
    assert 74 in {gone.exit_code for gone in third.gone.values()}
    assert not third.of(StepReport)


def test_replicas_are_each_others_copies_and_old_steps_go(cluster: Make, tmp_path: Path) -> None:
    folder = tmp_path / "disks"
    run = cluster(checkpoint=local(folder, keep=1), training=Training(steps=18, global_batch=6))
    run.start(0, 1)
    run.wait_all_done()
    assert {report.holders for report in complete(run)} == {(("node0", "node1"), ("node0", "node1"))}
    for node in ("node0", "node1"):
        steps = {name.partition("/")[0] for name in shards(folder, node)}
        assert 1 <= len(steps) <= 3  # the kept one, and what was being written behind it
        assert all({f"{step}/shard_0", f"{step}/shard_1"} <= shards(folder, node) for step in steps)


def test_a_disk_that_cannot_be_written_is_told_and_training_goes_on(cluster: Make, tmp_path: Path) -> None:
    (tmp_path / "disks").write_text("a file is in the way")
    run = cluster(checkpoint=local(tmp_path / "disks", interval_steps=10))
    run.start(0)
    run.wait_all_done()
    failed = [said for said in run.of(CheckpointReport) if said.kind == "local"]
    assert failed
    assert all(said.state == "failed" and "node0" in said.error for said in failed)
    assert len(run.of(StepReport, 0, 0)) == run.config.training.steps


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
