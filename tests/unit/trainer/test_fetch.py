"""A transfer from several donors ends with the whole, unharmed state, or says why not."""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta

import msgspec
import pytest
import torch
import torch.distributed as dist

from controlplane.protocol.launch import RankRef
from trainer.errors import CatchUpFailed
from trainer.replica import fetch as fetching
from trainer.replica.donor import IN_FLIGHT_BYTES, INDEX, Donor, Member, Request, bound_sending, connect
from trainer.replica.fetch import Fetch
from trainer.replica.snapshot import CHUNK_BYTES
from trainer.replica.sockets import connections

STEP, CHUNKS = 9, 10
JOINER: Member = (2, 2)
TIMEOUT_S = 30.0
JOBS: list[str] = []
MADE: list["Told"] = []


class Told(Donor):
    """A real donor that notes what it was asked for and does `before` to each request for chunks."""

    def __init__(self, replica: int, store: dist.TCPStore) -> None:
        super().__init__(RankRef(ref().job_id, 1, replica, 1, 0), store, local_host="127.0.0.1")
        self.asked: list[int] = []
        self.runs: list[int] = []
        self.before: Callable[[int], None] = lambda chunk: None
        MADE.append(self)

    def _answer(self, line: bytes) -> memoryview | bytes:
        answer = super()._answer(line)
        if answer and (request := msgspec.json.decode(line, type=Request)).first != INDEX:
            self.before(request.first)
            self.runs.append(request.count)
            self.asked.extend(range(request.first, request.first + request.count))
        return answer


@pytest.fixture(scope="module")
def store() -> Iterator[dist.TCPStore]:
    yield dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=TIMEOUT_S))


@pytest.fixture(autouse=True)
def a_job_of_its_own() -> Iterator[None]:
    """A donor says again and again where it is, until nobody needs it."""
    JOBS.append(f"job_{len(JOBS)}")
    yield
    while MADE:
        MADE.pop().release({JOINER[0]})


def ref() -> RankRef:
    return RankRef(JOBS[-1], 1, *JOINER, 0)


def state(seed: int = 1) -> list[torch.Tensor]:
    words = (CHUNKS * CHUNK_BYTES - 100) // 4
    made = torch.randint(0, 1 << 30, (words,), dtype=torch.int32, generator=torch.Generator().manual_seed(seed))
    return [made[:1000].clone(), torch.tensor(3.0), made[1000:].clone()]


def donors(store: dist.TCPStore, *replicas: int, seed: int = 1) -> list[Told]:
    made = [Told(replica, store) for replica in replicas]
    for donor in made:
        donor.serve({JOINER}, state(seed), step=STEP)
        donor.wait_copied()
    return made


def begin(store: dist.TCPStore, *replicas: int) -> tuple[Fetch, list[torch.Tensor]]:
    mine = [torch.zeros_like(tensor) for tensor in state()]
    return Fetch(ref(), store, mine, step=STEP, donors=tuple((replica, 1) for replica in replicas)), mine


def until(claim: Callable[[], bool], what: str) -> None:
    end_s = time.monotonic() + TIMEOUT_S
    while not claim():
        assert time.monotonic() < end_s, what
        time.sleep(0.002)


def assert_arrived(transfer: Fetch, mine: list[torch.Tensor]) -> None:
    until(lambda: transfer.whole, "the whole state")
    assert all(torch.equal(one, other) for one, other in zip(mine, state(), strict=True))


def test_two_donors_share_the_work_and_no_chunk_is_asked_for_twice(store: dist.TCPStore) -> None:
    one, other = donors(store, 0, 1)
    begun = {one: threading.Event(), other: threading.Event()}

    def wait_for(mine: Told, theirs: Told) -> Callable[[int], None]:
        def before(chunk: int) -> None:
            begun[mine].set()
            begun[theirs].wait(TIMEOUT_S)

        return before

    one.before, other.before = wait_for(one, other), wait_for(other, one)
    transfer, mine = begin(store, 0, 1)
    assert_arrived(transfer, mine)
    assert sorted(one.asked + other.asked) == list(range(CHUNKS))
    assert transfer.received.donors == {0, 1}
    assert transfer.received.nbytes == sum(tensor.nbytes for tensor in mine)


def test_runs_of_chunks_grow_short_towards_the_end(store: dist.TCPStore) -> None:
    (one,) = donors(store, 0)
    transfer, mine = begin(store, 0)
    assert_arrived(transfer, mine)
    assert max(one.runs) == CHUNKS // (fetching.TURNS * fetching.CONNECTIONS) > 1
    assert min(one.runs) == 1


def buffer(connection: socket.socket, which: int) -> int:
    """SO_SNDBUF or SO_RCVBUF, in bytes as the kernel counts them."""
    return connection.getsockopt(socket.SOL_SOCKET, which)


def buffers_at(port: int) -> Iterator[int]:
    """Of a donor's connections and its joiners', which are all in this process: what each
    donor sends from and what each joiner receives into."""
    for descriptor in connections():
        with socket.socket(fileno=os.dup(descriptor)) as end:
            if end.getsockname()[1] == port:
                yield buffer(end, socket.SO_SNDBUF)
            elif end.getpeername()[1] == port:
                yield buffer(end, socket.SO_RCVBUF)


def test_between_processes_of_one_host_no_more_is_under_way_than_a_cache_holds(store: dist.TCPStore) -> None:
    (one,) = donors(store, 0)
    port = one._listener.getsockname()[1]
    seen: list[int] = []
    asked: set[int] = set()
    both_asked = threading.Barrier(fetching.CONNECTIONS, action=lambda: seen.extend(buffers_at(port)))

    def before(chunk: int) -> None:
        if threading.get_ident() not in asked:
            asked.add(threading.get_ident())
            both_asked.wait(TIMEOUT_S)

    one.before = before
    assert_arrived(*begin(store, 0))
    assert seen == [IN_FLIGHT_BYTES] * 2 * fetching.CONNECTIONS


def test_between_hosts_the_kernel_sizes_its_buffers_itself() -> None:
    """127.0.0.2, reached from 127.0.0.1, is as good as another host."""
    with (
        socket.create_server(("127.0.0.2", 0)) as listener,
        connect(*listener.getsockname(), TIMEOUT_S) as joiner,
        listener.accept()[0] as donor,
    ):
        bound_sending(donor)
        assert buffer(joiner, socket.SO_RCVBUF) != IN_FLIGHT_BYTES
        assert buffer(donor, socket.SO_SNDBUF) != IN_FLIGHT_BYTES


def test_when_a_donor_dies_the_rest_comes_from_the_other_and_nothing_twice(store: dist.TCPStore) -> None:
    one, other = donors(store, 0, 1)
    died = threading.Event()

    def die(chunk: int) -> None:
        if one.asked:
            one._token = "gone"
            died.set()
            raise ConnectionError("died")

    one.before, other.before = die, lambda chunk: died.wait(TIMEOUT_S)
    transfer, mine = begin(store, 0, 1)
    assert_arrived(transfer, mine)
    # What a dying donor has sent may be lost on the way and asked for again; nothing arrives twice.
    assert set(one.asked + other.asked) == set(range(CHUNKS))
    assert transfer.received.nbytes == sum(tensor.nbytes for tensor in mine)
    assert one.asked
    assert other.asked


def test_a_view_change_in_mid_transfer_goes_on_with_what_is_here(
    store: dist.TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "IO_TIMEOUT_S", 3600)  # Nothing but the view ends the wait for the first donor.
    one, other = donors(store, 0, 1)
    stuck = threading.Event()
    one.before = lambda chunk: stuck.wait() if chunk else None
    transfer, mine = begin(store, 0)
    until(lambda: transfer.received.nbytes > 0, "a first chunk")
    transfer.turn_to(((1, 1),))
    assert_arrived(transfer, mine)
    stuck.set()
    assert 0 not in other.asked


def test_a_harmed_chunk_is_refused_and_taken_from_the_other_donor(store: dist.TCPStore) -> None:
    one, other = donors(store, 0, 1)
    until(lambda: one._offers[0].snapshot.index is not None, "the index")
    one._offers[0].snapshot.memory[CHUNK_BYTES + 5] ^= 4
    transfer, mine = begin(store, 0)
    until(lambda: transfer.received.corrupt > 0, "the corrupt chunk is refused")
    transfer.turn_to(((0, 1), (1, 1)))
    assert_arrived(transfer, mine)
    assert transfer.received.corrupt == one.asked.count(1)
    assert 1 in other.asked


def test_a_donor_of_nothing_but_harm_is_left_aside_and_the_joiner_says_so(store: dist.TCPStore) -> None:
    (one,) = donors(store, 0)
    until(lambda: one._offers[0].snapshot.index is not None, "the index")
    one._offers[0].snapshot.memory.zero_()
    transfer, _ = begin(store, 0)
    with pytest.raises(CatchUpFailed, match=r"no donor of 0\.1"):
        until(lambda: bool(transfer.check()), "left aside")
    assert not transfer.whole
    assert transfer.received.corrupt >= fetching.MAX_CORRUPT


def test_a_donor_in_another_state_is_left_aside(store: dist.TCPStore) -> None:
    (one,) = donors(store, 0)
    other = donors(store, 1, seed=2)[0]
    agreed = threading.Event()
    one.before = lambda chunk: agreed.wait(TIMEOUT_S)
    transfer, mine = begin(store, 0)
    until(lambda: transfer._index is not None, "the first index")
    transfer.turn_to(((0, 1), (1, 1)))
    until(lambda: (1, 1) in transfer._aside, "the other is left aside")
    agreed.set()
    assert_arrived(transfer, mine)
    assert not other.asked


def test_another_model_is_refused(store: dist.TCPStore) -> None:
    donors(store, 0)
    transfer = Fetch(ref(), store, [torch.zeros(3)], step=STEP, donors=((0, 1),))
    with pytest.raises(CatchUpFailed, match="no donor"):
        until(lambda: bool(transfer.check()), "refused")


def test_a_cancelled_transfer_writes_nothing_more(store: dist.TCPStore) -> None:
    (one,) = donors(store, 0)
    stuck = threading.Event()
    one.before = lambda chunk: stuck.wait(TIMEOUT_S) if chunk > 1 else None
    transfer, mine = begin(store, 0)
    until(lambda: transfer.received.nbytes > 0, "a first chunk")
    transfer.cancel()
    before = [tensor.clone() for tensor in mine]
    stuck.set()
    assert not any(thread.is_alive() for thread in transfer._threads)
    assert all(torch.equal(one, other) for one, other in zip(mine, before, strict=True))


def test_the_token_and_the_step_open_the_door(store: dist.TCPStore) -> None:
    (one,) = donors(store, 0)
    until(lambda: one._offers[0].snapshot.index is not None, "the index")
    line = b'{"token":"%s","step":%d,"first":%d}\n'
    token = one._token.encode()
    assert one._answer(line % (token, STEP, INDEX))
    assert not one._answer(line % (b"0" * 32, STEP, INDEX))
    assert not one._answer(line % (token, STEP + 1, INDEX))
    assert not one._answer(line % (token, STEP, CHUNKS))
    assert not one._answer(line.replace(b"}", b',"count":2}') % (token, STEP, CHUNKS - 1))
    assert not one._answer(b"GET / HTTP/1.1\r\n")
    assert not one._answer(line % (token, 2**70, INDEX))
    assert not one._answer(line % (token, STEP, -(2**70)))


@pytest.mark.parametrize("line", [b"\xff\xfe", b"[" * 4000, b'{"token":"\xc3\xa9","step":1,"first":0}', b"\0"])
def test_garbage_at_the_door_is_answered_with_nothing(store: dist.TCPStore, line: bytes) -> None:
    (one,) = donors(store, 0)
    assert not one._answer(line + b"\n")


def test_a_donor_keeps_its_snapshot_for_who_still_fetches_it(store: dist.TCPStore) -> None:
    (one,) = donors(store, 0)
    held = one._offers[0].snapshot
    one.serve({JOINER}, state(2), step=STEP + 4)
    assert [offer.snapshot for offer in one._offers] == [held]
    one.serve({JOINER, (3, 1)}, state(2), step=STEP + 4)
    assert [offer.snapshot.step for offer in one._offers] == [STEP, STEP + 4]
    one.release({2})
    assert [offer.snapshot.step for offer in one._offers] == [STEP + 4]
    one.serve(set(), state(), step=STEP + 5)
    assert not one._offers


def test_joiners_of_one_step_share_one_copy(store: dist.TCPStore) -> None:
    (one,) = donors(store, 0)
    one.serve({JOINER, (3, 1)}, state(), step=STEP)
    assert len(one._offers) == 1
