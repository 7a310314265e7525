"""A shard on a node's disk is whole or none; nodes send each other whole ones only."""

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch

from trainer.checkpoint.local import shard
from trainer.checkpoint.local.disk import LocalDisk, plan
from trainer.checkpoint.local.peers import Peer, Server, fetch, push
from trainer.errors import CheckpointFault

STATE = [torch.arange(1000, dtype=torch.float32), torch.full((3, 5), 2.0, dtype=torch.bfloat16)]
RNG = b'{"seed":1}'


def head(step: int = 4, rank: int = 1, epoch: int = 2) -> shard.ShardHead:
    return shard.ShardHead(
        job_id="job", attempt=1, epoch=epoch, step=step, rank=rank, world=2, tp=1, pp=2, tensors=shard.heads(STATE)
    )


def saved(disk: LocalDisk, step: int = 4, rank: int = 1, epoch: int = 2) -> Path:
    path = disk.prepare(1, epoch, step, rank)
    shard.write(path, head(step, rank, epoch), STATE, RNG)
    return path


@pytest.fixture
def disk(tmp_path: Path) -> LocalDisk:
    return LocalDisk(tmp_path / "node0", "job")


@pytest.fixture
def other(tmp_path: Path) -> Iterator[tuple[LocalDisk, Peer]]:
    """Another node, and where it answers."""
    disk = LocalDisk(tmp_path / "node1", "job")
    server = Server(disk, node="node1", host="127.0.0.1")
    yield disk, server.peer
    server.close()


@pytest.mark.parametrize("line", [b"\xff\xfe", b"[" * 4000, b"{}", b"\0", b"9" * 4000])
def test_garbage_ends_its_own_connection_and_no_thread(
    other: tuple[LocalDisk, Peer], line: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[object] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    _, peer = other
    for token in ("\u00e9", "0" * 32):
        ask = json.dumps({"token": token, "op": "get", "attempt": 1, "step": 2**70, "epoch": 1, "rank": 0})
        for said in (line, ask.encode()):
            with socket.create_connection((peer.host, peer.port)) as connection:
                connection.sendall(said + b"\n")
                assert connection.recv(1) == b"", "it is closed, not answered"
    assert raised == []


def test_what_was_written_is_read_back(disk: LocalDisk) -> None:
    targets = [torch.zeros_like(tensor) for tensor in STATE]
    found, random_state = shard.read(saved(disk), targets)
    assert (found, random_state.strip()) == (head(), RNG)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(targets, STATE, strict=True))


def test_replicas_with_other_random_states_have_the_same_digest(tmp_path: Path) -> None:
    digests = {shard.write(tmp_path / str(n), head(), STATE, b"%d" % n) for n in range(2)}
    assert len(digests) == 1


@pytest.mark.parametrize("where", [20, 2000, -20, -1])
def test_a_flipped_bit_anywhere_is_found(disk: LocalDisk, where: int) -> None:
    path = saved(disk)
    data = bytearray(path.read_bytes())
    data[where] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(CheckpointFault):
        shard.check(path)
    with pytest.raises(CheckpointFault):
        shard.read(path, [torch.zeros_like(tensor) for tensor in STATE])


def test_a_shard_that_ends_early_or_goes_on_is_none(disk: LocalDisk) -> None:
    path = saved(disk)
    whole = path.read_bytes()
    for data in (whole[:-30], whole[:50], whole + b"x", b""):
        path.write_bytes(data)
        with pytest.raises(CheckpointFault):
            shard.check(path)


def test_another_layouts_tensors_are_refused(disk: LocalDisk) -> None:
    with pytest.raises(CheckpointFault, match="another layout"):
        shard.read(saved(disk), [torch.zeros(7)])


def test_a_copy_goes_to_another_node_and_comes_back(disk: LocalDisk, other: tuple[LocalDisk, Peer]) -> None:
    theirs, peer = other
    path = saved(disk)
    push(peer, path, attempt=1, step=4, epoch=2, rank=1)
    assert theirs.path(4, 2, 1).read_bytes() == path.read_bytes()
    path.unlink()
    fetch(peer, disk, attempt=1, step=4, epoch=2, rank=1)
    assert shard.check(path) == head()


def test_a_harmed_copy_is_kept_by_nobody(disk: LocalDisk, other: tuple[LocalDisk, Peer]) -> None:
    theirs, peer = other
    path = saved(disk)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(CheckpointFault, match="node node1"):
        push(peer, path, attempt=1, step=4, epoch=2, rank=1)
    assert not list(theirs.folder.rglob("shard_*"))


def test_a_shard_under_a_wrong_name_is_refused(disk: LocalDisk, other: tuple[LocalDisk, Peer]) -> None:
    with pytest.raises(CheckpointFault, match="was announced"):
        push(other[1], saved(disk), attempt=1, step=5, epoch=2, rank=1)


def test_a_node_that_has_seen_a_newer_epoch_takes_nothing_of_an_older(
    disk: LocalDisk, other: tuple[LocalDisk, Peer]
) -> None:
    theirs, peer = other
    path = saved(disk)
    theirs.fence.raise_now(1, 3)
    with pytest.raises(CheckpointFault, match="fenced"):
        push(peer, path, attempt=1, step=4, epoch=2, rank=1)
    disk.fence.raise_now(2, 1)
    with pytest.raises(CheckpointFault, match="fenced"):
        disk.prepare(1, 2, 5, 1)


def test_without_the_token_nobody_is_answered(disk: LocalDisk, other: tuple[LocalDisk, Peer]) -> None:
    stranger = msgspec.structs.replace(other[1], token="guess")
    with pytest.raises(OSError):
        push(stranger, saved(disk), attempt=1, step=4, epoch=2, rank=1)
    assert not list(other[0].folder.rglob("shard_*"))


def test_nothing_goes_before_a_newer_step_is_complete() -> None:
    found = [(10, 1), (20, 1), (30, 2), (40, 2)]
    assert plan(found, keep=1, complete=None) == []
    assert plan(found, keep=1, complete=(30, 2)) == [(10, 1), (20, 1)]
    assert plan(found, keep=2, complete=(30, 2)) == [(10, 1)]
    assert plan(found, keep=1, complete=(10, 1)) == []
