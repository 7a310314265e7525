"""The debug server of real ranks, asked as their agent asks it, also while they hang."""

import contextlib
import re
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agents.ranks import debug_client
from agents.ranks.diagnose import Subject, look
from agents.ranks.identity import identity_of
from controlplane.policy.flight import MatchState, analyse
from controlplane.protocol.flight import decode_dump
from controlplane.protocol.rank import InjectFault, RankProgress
from controlplane.protocol.spec import Parallelism, Training
from tests.integration.trainer.cluster import Cluster

pytestmark = pytest.mark.trainer
Make = Callable[..., Cluster]
TCP_LISTEN = "0A"
"""Of the kernel's `include/net/tcp_states.h`, as /proc/net/tcp writes it."""
PING = b"POST /handler/ping HTTP/1.1\r\nHost: rank\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
ANSWER_S = 0.3
Address = str | tuple[str, int]


def one_replica(cluster: Make) -> Cluster:
    """Of two tensor-parallel ranks, training."""
    run = cluster(parallelism=Parallelism(tp=2), training=Training(steps=2000, global_batch=4, step_delay_s=0.02))
    run.auto = False
    run.start(0)
    run.wait_committed(2, 0)
    return run


def at(run: Cluster, rank: int) -> Subject:
    identity = identity_of(run.pids[(0, 1, rank)])
    assert identity is not None
    return Subject(
        rank=rank,
        identity=identity,
        log_path=run.folder / f"rank-0.1.{rank}.log",
        debug_servers=run.folder / debug_client.FOLDER,
        duration_s=0.3,
    )


def tell_one(run: Cluster, rank: int, fault: InjectFault) -> None:
    """Only this rank of replica 0."""
    connections = run._connections
    with run.changed:
        others = {key: connections.pop(key) for key in list(connections) if key != (0, 1, rank)}
        run.tell(0, fault)
        connections.update(others)


def test_every_look_is_answered_and_only_on_a_private_socket(cluster: Make) -> None:
    run = one_replica(cluster)
    subject = at(run, 0)
    assert look("ping", subject)[0].startswith("pong after ")
    counters, _ = look("wait_counters", subject)
    assert "pytorch.wait_counter.c10d.init_process_group: 1 calls" in counters
    profile, method = look("profile", subject)
    assert method == "sampling"
    assert "samples of every Python thread" in profile
    assert "loop.py" in profile
    dump = decode_dump(look("flight_recorder", subject)[0])
    assert dump.groups[0].ranks == (0, 1)
    assert {entry.group for entry in dump.entries} <= {group.name for group in dump.groups}
    assert dump.entries[0].state == "ended", "that it was retired does not say how"
    folder = run.folder / debug_client.FOLDER
    assert folder.stat().st_mode & 0o777 == 0o700
    path = folder / f"{subject.identity.pid}.sock"
    assert path.stat().st_mode & 0o077 == 0
    assert b"pong" in answer(socket.AF_UNIX, str(path))
    elsewhere = listening(subject.identity.pid)
    assert elsewhere, "its process groups and its donor listen"
    with ThreadPoolExecutor(len(elsewhere)) as pool:
        answers = pool.map(lambda place: answer(*place), elsewhere)
    assert [place for place, said in zip(elsewhere, answers, strict=True) if b"HTTP" in said] == []


def listening(pid: int) -> list[tuple[socket.AddressFamily, Address]]:
    """Where this process listens for TCP connections."""
    held = set()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            held.update(re.findall(r"socket:\[(\d+)\]", str(file.readlink())))
    found: list[tuple[socket.AddressFamily, Address]] = []
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for row in map(str.split, Path(f"/proc/{pid}/net/{name}").read_text().splitlines()):
            if row[3] == TCP_LISTEN and row[9] in held:
                host, port = row[1].split(":")
                # An address is written as words of the machine's own byte order.
                words = b"".join(bytes.fromhex(host[at : at + 8])[::-1] for at in range(0, len(host), 8))
                found.append((family, (socket.inet_ntop(family, words), int(port, 16))))
    return found


def answer(family: socket.AddressFamily, address: Address) -> bytes:
    """What comes back for a door's ping, if anything does within `ANSWER_S`."""
    with socket.socket(family, socket.SOCK_STREAM) as connection:
        connection.settimeout(ANSWER_S)
        connection.connect(address)
        with contextlib.suppress(OSError):
            connection.sendall(PING)
            return connection.recv(65536)
    return b""


def test_a_hung_rank_is_named_by_the_recorders_of_its_replica(cluster: Make) -> None:
    run = one_replica(cluster)
    tell_one(run, 1, InjectFault("hang"))
    run.wait(lambda: _age_s(run, 0) > 0.8 and _age_s(run, 1) > 0.8, "both stand still")
    dumps = tuple(decode_dump(look("flight_recorder", at(run, rank))[0]) for rank in (0, 1))
    finding = analyse(dumps, (0, 1))
    assert (finding.state, finding.culprits, finding.waiting) == (MatchState.COLLECTIVE_STATE_MISMATCH, (1,), (0,))
    assert "rank 1 never joined all_reduce" in finding.sentence
    stacks, method = look("stacks", at(run, 1))
    assert method in ("py-spy", "faulthandler")
    assert "faults.py" in stacks


def test_a_locked_interpreter_still_yields_stacks_and_recorder(cluster: Make) -> None:
    run = one_replica(cluster)
    tell_one(run, 1, InjectFault("gil_lock"))
    subject = at(run, 1)
    said: list[tuple[str, str]] = []
    run.wait(lambda: said.append(look("profile", subject)) or said[-1][1] == "none", "the interpreter is locked")
    assert "its interpreter is locked or busy" in said[-1][0]
    assert look("ping", subject)[0].startswith("pong")
    assert decode_dump(look("flight_recorder", subject)[0]).entries
    stacks, method = look("stacks", subject)
    assert method in ("py-spy", "faulthandler")
    assert "_hold_the_interpreter" in stacks


def _age_s(run: Cluster, rank: int) -> float:
    return run.of(RankProgress, 0, rank)[-1].phase_age_s
