"""The tier in memory takes what fits beside training, and says what is in the way otherwise."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from controlplane.protocol.launch import TrainerConfig
from controlplane.protocol.spec import Checkpoint, LocalTier, Model, Parallelism, Training
from trainer.checkpoint.local import shard
from trainer.checkpoint.local.disk import LocalDisk
from trainer.checkpoint.local.memory import Memory, root_of, share_of
from trainer.checkpoint.local.peers import Server, fetch, push
from trainer.errors import CheckpointFault

STATE = [torch.arange(1000, dtype=torch.float32)]
MIB = 1 << 20


@pytest.fixture
def ram() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        yield Path(name) / "holdfast"


def config(tier: LocalTier) -> TrainerConfig:
    return TrainerConfig(
        model=Model(),
        parallelism=Parallelism(),
        training=Training(),
        checkpoint=Checkpoint(local=tier),
        checkpoint_dir="none",
        replicas=1,
        store="",
    )


def test_without_a_folder_it_lies_below_dev_shm_and_disks_have_no_share_in_memory() -> None:
    memory = LocalTier(medium="memory")
    share = share_of(config(memory), "job_a", "node0")
    assert share == root_of(memory) / "node0" / "job_a"
    assert share.is_relative_to("/dev/shm")
    assert share_of(config(LocalTier(dir="/nvme")), "job_a", "node0") is None


def test_the_folder_is_made_for_its_user_alone(ram: Path) -> None:
    Memory(ram).admit(MIB)
    assert ram.stat().st_mode & 0o777 == 0o700


def test_a_folder_on_a_disk_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(CheckpointFault, match=r"is on no tmpfs: leave checkpoint.local.dir out"):
        Memory(tmp_path).admit(1)


def test_more_than_the_tmpfs_has_is_refused_before_a_byte_is_written(ram: Path) -> None:
    with pytest.raises(OSError, match=f"free on {ram}"):
        Memory(ram).admit(1 << 50)


def test_memory_that_training_needs_is_not_taken(ram: Path, tmp_path: Path) -> None:
    """The machine's own reading first, then a cgroup's; page cache that may go counts as room."""
    shutil.copytree("/proc/self", tmp_path / "self", ignore=lambda _, names: set(names) - {"mountinfo", "cgroup"})
    (tmp_path / "meminfo").write_text(f"MemTotal: 9 kB\nMemAvailable: {3 * 1024} kB\n")
    memory = Memory(ram, reserve_bytes=MIB, proc=tmp_path, cgroups=tmp_path / "cgroup")
    (tmp_path / "self" / "cgroup").write_text("0::/job\n")
    memory.admit(2 * MIB)
    with pytest.raises(OSError, match=f"but {2 * MIB} bytes of memory available beyond the reserve"):
        memory.admit(2 * MIB + 1)
    group = fill(tmp_path / "cgroup" / "job", "memory.max", "memory.current", "inactive_file")
    memory.admit(MIB)
    with pytest.raises(OSError, match=f"but {MIB} bytes left in cgroup {group}"):
        memory.admit(MIB + 1)


def fill(group: Path, limit: str, held: str, reclaimable: str) -> Path:
    """A group that may have 8 MiB and holds 7, of which it can give 1 back."""
    group.mkdir(parents=True)
    (group / limit).write_text(f"{8 * MIB}\n")
    (group / held).write_text(f"{7 * MIB}\n")
    (group / "memory.stat").write_text(f"anon 1\n{reclaimable} {MIB}\n")
    return group


@pytest.mark.parametrize("place", ["pods/job", "pods", "."])
def test_a_limit_of_cgroups_v1_counts_where_memory_is_not_in_v2(ram: Path, tmp_path: Path, place: str) -> None:
    """Its own, that of a group above it, or the root's, which a container sees as its own."""
    shutil.copytree("/proc/self", tmp_path / "self", ignore=lambda _, names: set(names) - {"mountinfo", "cgroup"})
    (tmp_path / "meminfo").write_text(f"MemAvailable: {1 << 20} kB\n")
    (tmp_path / "self" / "cgroup").write_text("4:memory:/pods/job\n1:cpu,cpuacct:/pods/job\n0::/job\n")
    group = fill(
        tmp_path / "cgroup" / "memory" / place, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
    )
    memory = Memory(ram, reserve_bytes=MIB, proc=tmp_path, cgroups=tmp_path / "cgroup")
    memory.admit(MIB)
    with pytest.raises(OSError, match=f"but {MIB} bytes left in cgroup {group}"):
        memory.admit(MIB + 1)
    (group / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    memory.admit(MIB + 1)


def test_a_node_without_room_neither_takes_nor_fetches_a_copy(ram: Path, tmp_path: Path) -> None:
    mine = LocalDisk(tmp_path / "node0", "job")
    path = mine.prepare(1, 1, 4, 0)
    head = shard.ShardHead(
        job_id="job", attempt=1, epoch=1, step=4, rank=0, world=1, tp=1, pp=1, tensors=shard.heads(STATE)
    )
    shard.write(path, head, STATE, b"{}")
    full = LocalDisk(ram / "node1", "job", memory=Memory(ram, reserve_bytes=1 << 50))
    servers = [Server(disk, node=name, host="127.0.0.1") for name, disk in (("node0", mine), ("node1", full))]
    with pytest.raises(CheckpointFault, match=r"node1: .*beyond the reserve"):
        push(servers[1].peer, path, attempt=1, step=4, epoch=1, rank=0)
    with pytest.raises(OSError, match="beyond the reserve"):
        fetch(servers[0].peer, full, attempt=1, step=4, epoch=1, rank=0)
    assert not full.path(4, 1, 0).exists()
    for server in servers:
        server.close()
