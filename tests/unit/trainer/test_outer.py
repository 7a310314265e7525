"""A group is connected ahead of its view's install, and only the newest is entered."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from trainer.core.effects import Seat
from trainer.errors import ExchangeAbandoned
from trainer.replica.outer import OuterComm
from trainer.replica.sockets import connections

TIMEOUT_S = 30.0


@pytest.fixture(scope="module")
def store() -> Iterator[dist.TCPStore]:
    yield dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=TIMEOUT_S))


@pytest.fixture
def pair(store: dist.TCPStore) -> list[OuterComm]:
    return [OuterComm(store, timeout_s=TIMEOUT_S, interrupted=lambda: False) for _ in range(2)]


def seat(request: pytest.FixtureRequest, epoch: int, index: int, members: int = 2) -> Seat:
    return Seat(epoch, f"outer/{request.node.name}/{epoch}", index, members)


def both(act: Callable[[int], None]) -> None:
    """In two threads; the first error is raised."""
    failed: list[Exception] = []

    def run(index: int) -> None:
        try:
            act(index)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    if failed:
        raise failed[0]


def until(claim: Callable[[], bool]) -> None:
    end_s = time.monotonic() + TIMEOUT_S
    while not claim():
        assert time.monotonic() < end_s, "in time"
        time.sleep(0.002)


def sums(pair: list[OuterComm]) -> list[float]:
    found = [0.0, 0.0]

    def add(index: int) -> None:
        found[index] = float(pair[index].sum(torch.tensor([index + 1.0])))

    both(add)
    return found


def test_a_group_is_connected_before_it_is_asked_for(pair: list[OuterComm], request: pytest.FixtureRequest) -> None:
    for index, comm in enumerate(pair):
        comm.prepare(seat(request, 1, index))
    until(lambda: all(comm._prepared is not None and comm._prepared.group is not None for comm in pair))
    ready = [comm._prepared and comm._prepared.group for comm in pair]
    for index, comm in enumerate(pair):  # One after the other: nobody waits for the peer any more.
        comm.build(seat(request, 1, index))
    assert [comm._group for comm in pair] == ready
    assert sums(pair) == [3.0, 3.0]


def test_the_group_in_use_works_on_while_the_next_one_is_prepared(
    pair: list[OuterComm], request: pytest.FixtureRequest
) -> None:
    both(lambda index: pair[index].build(seat(request, 1, index)))
    pair[0].prepare(seat(request, 2, 0))  # The peer has not seen that view yet.
    assert sums(pair) == [3.0, 3.0]


def test_a_view_that_was_overtaken_is_not_entered_and_the_newer_one_is(
    pair: list[OuterComm], request: pytest.FixtureRequest
) -> None:
    for epoch in (1, 2, 1):
        for index, comm in enumerate(pair):
            comm.prepare(seat(request, epoch, index))
    for index, comm in enumerate(pair):
        with pytest.raises(ExchangeAbandoned, match="newer view"):
            comm.build(seat(request, 1, index))
    both(lambda index: pair[index].build(seat(request, 2, index)))
    assert sums(pair) == [3.0, 3.0]


def test_a_member_alone_connects_to_nobody(pair: list[OuterComm], request: pytest.FixtureRequest) -> None:
    pair[0].build(seat(request, 1, 0, members=1))
    assert float(pair[0].sum(torch.tensor([5.0]))) == 5.0


def test_a_connection_to_the_store_is_told_from_the_groups_own() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as store,
        socket.create_server(("127.0.0.1", 0)) as peer,
        socket.create_connection(store.getsockname()) as one,
        socket.create_connection(peer.getsockname()) as other,
    ):
        assert {one.fileno(), other.fileno()} <= connections().keys()
        found = connections(but_to_port=store.getsockname()[1])
        assert other.fileno() in found
        assert one.fileno() not in found
