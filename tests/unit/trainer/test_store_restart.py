"""The rendezvous store ends in the midst of a recovery and is started again, empty.

A donor whose client had lost its connection never told where it answers: the joiner waited for two
minutes, failed, and so did each one after it, for as long as the job lived.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from controlplane.demo.ports import free_port
from controlplane.protocol.launch import RankRef
from controlplane.protocol.store_keys import store_prefix, store_token
from tests.house.tree import ROOT
from trainer.checkpoint.commit import Board
from trainer.checkpoint.local.book import Book, Held
from trainer.checkpoint.local.peers import Peer
from trainer.checkpoint.part import Part
from trainer.replica.donor import Donor, store_key
from trainer.replica.fetch import Fetch
from trainer.store.client import OwnClient

KEY = b"the key of the store in this test, 32 bytes or more"
TIMEOUT_S = 20.0
REF = RankRef("job_a", 1, 0, 1, 0)
JOINER = RankRef("job_a", 1, 2, 4, 0)


class Store:
    """The real server on one port, ended and started again at will."""

    def __init__(self, key_file: Path) -> None:
        self.key_file, self.port = key_file, free_port("127.0.0.1")
        self.key_file.write_bytes(KEY)
        self.start()

    def start(self) -> None:
        argv = [sys.executable, "-m", "trainer.store", "--port", str(self.port), "--key-file", str(self.key_file)]
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert self.process.stdout is not None
        self.process.stdout.readline()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()

    def again(self) -> None:
        self.end()
        self.start()

    def client(self) -> dist.Store:
        timeout = timedelta(seconds=TIMEOUT_S)
        client = dist.TCPStore("127.0.0.1", self.port, is_master=False, wait_for_workers=False, timeout=timeout)
        joined = dist.PrefixStore(store_prefix("job_a", store_token(KEY, "job_a")), client)
        joined.set("up", "1")
        return joined


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "key")
    yield store
    store.end()


def until(claim: Callable[[], bool]) -> None:
    end_s = time.monotonic() + TIMEOUT_S
    while not claim():
        assert time.monotonic() < end_s, "in time"
        time.sleep(0.01)


def test_a_word_is_said_again_on_a_new_connection_and_what_was_said_before_is_gone(server: Store) -> None:
    own = OwnClient(server.client())
    own.set("x", "1")
    server.again()
    assert not own.check(["x"])
    own.set("x", "2")
    assert own.get("x") == b"2"
    assert own.delete_key("x")


def test_without_a_server_a_word_fails(server: Store) -> None:
    own = OwnClient(dist.PrefixStore("p", _patient(server)))
    server.end()
    with pytest.raises(RuntimeError):
        own.set("x", "1")


def _patient(server: Store) -> dist.Store:
    joined = server.client()
    joined.set_timeout(timedelta(seconds=0.5))
    return joined


@pytest.mark.parametrize("when", ["before the offer", "after the offer"])
def test_a_joiner_finds_its_donor_although_the_store_was_started_again(
    server: Store, request: pytest.FixtureRequest, when: str
) -> None:
    donor = Donor(REF, server.client(), local_host="127.0.0.1")
    state = torch.arange(8, dtype=torch.float32)
    if when == "before the offer":
        server.again()
    donor.serve({(2, 4)}, [state], step=7)
    request.addfinalizer(lambda: donor.release({2}))
    if when == "after the offer":
        key = store_key(REF, (0, 1), 7)
        until(lambda: server.client().check([key]))
        server.again()
    mine = torch.zeros(8)
    transfer = Fetch(JOINER, OwnClient(server.client()), [mine], step=7, donors=((0, 1),))
    until(lambda: transfer.whole)
    assert torch.equal(mine, state)


def test_a_joiner_that_waits_while_the_store_is_started_again_gets_the_state(server: Store) -> None:
    donor = Donor(REF, server.client(), local_host="127.0.0.1")
    mine = torch.zeros(8)
    transfer = Fetch(JOINER, OwnClient(server.client()), [mine], step=7, donors=((0, 1),))
    server.again()
    donor.serve({(2, 4)}, [torch.ones(8)], step=7)
    until(lambda: transfer.whole)
    donor.release({2})
    assert torch.equal(mine, torch.ones(8))


def test_a_save_after_the_store_was_started_again_is_committed(server: Store) -> None:
    others = Board(server.client(), RankRef("job_a", 1, 0, 1, 1), 2, timeout_s=TIMEOUT_S)
    first = Board(server.client(), REF, 2, timeout_s=TIMEOUT_S)
    server.again()
    others.post(1, Part(error="from rank 1"))
    assert [part.error for part in first.collect(1)] == ["from rank 1"]


def test_where_a_rank_keeps_its_local_copies_is_known_again_with_its_next_save(server: Store) -> None:
    book = Book(server.client(), REF)
    peer = Peer(node="node-1", host="127.0.0.1", port=1, token="0" * 32)
    book.publish(peer)
    server.again()
    book.post(20, 1, REF, Held(nodes=("node-1",)))
    assert list(Book(server.client(), JOINER).peers(1, 1)) == [peer]
