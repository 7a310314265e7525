"""V17: the rendezvous store asked nobody; a rank of one job could list, write and delete the
keys of all others. Attacked with torch's own client and with raw bytes, against the real process.
"""

import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from controlplane.protocol.store_keys import store_prefix, store_token
from trainer.store import wire

pytest.importorskip("torch", reason="torch is not installed")
import contextlib

import torch.distributed as dist

KEY = b"the key of the store in this test, 32 bytes or more"
WAIT_S = 20.0


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "key").write_bytes(KEY)
    argv = [sys.executable, "-m", "trainer.store", "--key-file", str(tmp_path / "key")]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    yield int(process.stdout.readline().rpartition(":")[2])
    process.kill()
    process.wait()


def client(port: int) -> dist.TCPStore:
    return dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=WAIT_S))


def of(port: int, job_id: str, *, token: str = "") -> dist.Store:
    return dist.PrefixStore(store_prefix(job_id, token or store_token(KEY, job_id)), client(port))


def test_a_job_works_with_its_own_keys(port: int) -> None:
    mine, sibling = of(port, "job_a"), of(port, "job_a").clone()
    mine.set("x", "1")
    assert sibling.get("x") == b"1"
    assert mine.add("n", 2) + sibling.add("n", 3) == 7
    assert mine.compare_set("c", "", "first") == sibling.compare_set("c", "", "second") == b"first"
    mine.append("log", "a")
    mine.append("log", "b")
    mine.multi_set(["u", "v"], ["1", "2"])
    assert sibling.multi_get(["log", "u", "v"]) == [b"ab", b"1", b"2"]
    mine.queue_push("q", "1")
    assert sibling.queue_pop("q") == b"1"
    assert mine.delete_key("x")
    assert not sibling.check(["x"])


def test_a_group_of_gloo_meets_in_it(port: int) -> None:
    program = (
        "import sys, torch, torch.distributed as dist\n"
        "port, rank, prefix = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]\n"
        "store = dist.TCPStore('127.0.0.1', port, is_master=False, wait_for_workers=False)\n"
        "dist.init_process_group('gloo', store=dist.PrefixStore(prefix, store), rank=rank, world_size=2)\n"
        "t = torch.ones(3) * (rank + 1); dist.all_reduce(t); print(int(t.sum()))\n"
    )
    prefix = store_prefix("job_a", store_token(KEY, "job_a"))
    argv = [sys.executable, "-c", program, str(port)]
    ranks = [subprocess.Popen([*argv, str(rank), prefix], stdout=subprocess.PIPE, text=True) for rank in range(2)]
    assert [rank.communicate(timeout=60)[0].strip() for rank in ranks] == ["9", "9"]


@pytest.mark.parametrize("theirs", ["", "A" * 43])
def test_a_key_of_another_job_is_neither_read_nor_written(port: int, theirs: str) -> None:
    victim = of(port, "job_a")
    victim.set("x", "mine")
    attacker = client(port) if not theirs else of(port, "job_a", token=theirs)
    attacker.set("job_a/x" if not theirs else "x", "yours")  # torch does not wait for an answer
    with pytest.raises(RuntimeError):
        attacker.get("job_a/x" if not theirs else "x")
    assert victim.get("x") == b"mine"


def test_a_token_of_ones_own_opens_no_other_job(port: int) -> None:
    victim = of(port, "job_a")
    victim.set("x", "mine")
    attacker = of(port, "job_a", token=store_token(KEY, "job_b"))
    with pytest.raises(RuntimeError):
        attacker.delete_key("x")
    assert victim.get("x") == b"mine"


def test_nobody_lists_keys_or_counts_those_of_others(port: int) -> None:
    of(port, "job_a").set("x", "1")
    with pytest.raises(RuntimeError):
        client(port).num_keys()
    with pytest.raises(RuntimeError):
        client(port).list_keys()
    mine = of(port, "job_b")
    mine.set("only", "1")
    assert mine.num_keys() == 1


def test_a_connection_that_has_spoken_for_one_job_speaks_for_no_other(port: int) -> None:
    raw = client(port)
    prefix = {job_id: store_prefix(job_id, store_token(KEY, job_id)) for job_id in ("job_a", "job_b")}
    raw.set(f"{prefix['job_a']}/x", "1")
    with pytest.raises(RuntimeError):
        raw.get(f"{prefix['job_b']}/x")


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xff" * 4096,
        bytes([wire.Query.VALIDATE]) + struct.pack("<I", wire.MAGIC) + bytes([99]),
        bytes([wire.Query.VALIDATE]) + struct.pack("<I", wire.MAGIC) + bytes([wire.Query.SET]) + b"\xff" * 8,
        bytes([wire.Query.VALIDATE]) + struct.pack("<I", wire.MAGIC) + bytes([wire.Query.MULTI_SET]) + b"\xff" * 8,
    ],
)
def test_garbage_ends_its_own_connection_and_delays_nobody(port: int, garbage: bytes) -> None:
    mine = of(port, "job_a")
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as attacker:
        attacker.sendall(garbage)
        with contextlib.suppress(ConnectionResetError):
            assert attacker.recv(1) == b""
    mine.set("x", "1")
    assert mine.get("x") == b"1"
