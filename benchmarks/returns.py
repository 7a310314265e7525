"""What it costs a web process when a whole fleet's agents come, at first and back, and when it loses them.

    python -m benchmarks returns [--nodes 100,1000,4000,12500] [--turns 3] [--postgres]

Rows of so many nodes with eight devices, on each of them a rank of one of a few large jobs. Every agent proves who it
is with its key, says hello as it was, and lists its ranks. In batches of 200, as the web process takes them, each step
is timed: the proofs, the admissions, the sessions, the devices that each may speak of. Once while nobody has noticed
that the sessions had ended, and once after all were closed, which is timed too. Beside it some sessions one by one,
which is the way of those that are not as they were; some enrolments; and the first sessions of a fleet on which nothing
was ever placed. Of the socket itself nothing is in these figures.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import msgspec

from agents.link.keys import NodeKey, unsigned_proof
from benchmarks.fleet_map import DEVICES, device_id, fill
from benchmarks.own_database import own_database
from benchmarks.report import Report, quantile
from controlplane.protocol import frames
from controlplane.protocol.handshake import NONCE_BYTES, Proof
from controlplane.protocol.launch import RankRef
from controlplane.protocol.samples import DeviceInfo
from controlplane.protocol.states import Phase, RankState, Section

BATCH = 200
ALONE = 50
GOAL_MS = 2.4
"""Of a core: 12,500 agents in 30 s."""
NONCE = bytes(NONCE_BYTES)
WELCOME: dict[str, Callable[[Any], bool]] = {
    "prove": lambda node: node is not None,
    "admit": lambda admission: admission is not None and admission.verdict == "admit",
    "open": lambda applied_seq: applied_seq == 0,
    "list devices": lambda indexes: len(indexes) == DEVICES,
}
"""Each step with what it answers to who is welcome."""
FIRST = "for the first time"
T = TypeVar("T")


def main(argv: list[str]) -> int:
    """Prints a table; 0 if a hello meets its goal in the largest fleet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="100,1000,4000,12500")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--postgres", action="store_true", help="on a private PostgreSQL instead of SQLite")
    options = parser.parse_args(argv)
    where = "PostgreSQL" if options.postgres else "SQLite"
    name = "returns-postgres" if options.postgres else "returns"
    report = Report(goal_id=name, title=f"agents come back, {where}, CPU of one process, batches of {BATCH}")
    with own_database(postgres=options.postgres):
        worst_ms = [measure(int(nodes), options.turns, report) for nodes in options.nodes.split(",")]
    report.finish()
    return 0 if worst_ms[-1] <= GOAL_MS else 1


@dataclass(slots=True)
class Fleet:
    """Agents of nodes that are in the rows, and how often each had a session."""

    hellos: dict[str, frames.AgentHello]
    keys: dict[str, NodeKey]
    sessions: int = 0
    cpu_ms: dict[str, list[float]] = field(default_factory=dict)
    statements: dict[str, list[int]] = field(default_factory=dict)

    def batches(self) -> Iterator[list[str]]:
        """Node ids, as the web process takes them."""
        ids = list(self.hellos)
        for first in range(0, len(ids), BATCH):
            yield ids[first : first + BATCH]

    def timed(self, step: str, number: int, act: Callable[[], T]) -> T:
        """Its result; noted for each of `number`."""
        began_s = time.process_time()
        found = act()
        self.cpu_ms.setdefault(step, []).append((time.process_time() - began_s) * 1000.0 / number)
        return found

    def counted(self, step: str, act: Callable[[], T]) -> T:
        """Its result; how many statements it asked is noted."""
        from django.db import connection
        from django.test.utils import CaptureQueriesContext

        with CaptureQueriesContext(connection) as asked:
            found = act()
        self.statements.setdefault(step, []).append(len(asked))
        return found


def measure(nodes: int, turns: int, report: Report) -> float:
    """What the median return costs that nobody noticed, in milliseconds of a core a node."""
    fleet = a_fleet(nodes)
    for turn in range(turns + 1):
        watch = fleet.timed if turn < turns else lambda step, number, act: fleet.counted(step, act)
        come_back(fleet, watch, "unnoticed")
        close(fleet, watch)
        come_back(fleet, watch, "after a close")
    some = list(fleet.hellos)[:ALONE]
    one_by_one(fleet, some)
    enrol(fleet)
    for turn in range(turns + 1):
        watch = fleet.timed if turn < turns else lambda step, number, act: fleet.counted(step, act)
        come_back(as_if_new(fleet), watch, FIRST)
        close(fleet, watch)
    size = f"{nodes:6d} nodes"
    for step, values in fleet.cpu_ms.items():
        report.add(f"{size}: {step}", "ms", values)
    for step, numbers in fleet.statements.items():
        report.facts[f"{size}: statements a batch, {step}"] = f"{min(numbers)} to {max(numbers)}"
    whole_ms = {
        why: sum(quantile(sorted(fleet.cpu_ms[f"{step}, {why}"]), 0.5) for step in WELCOME)
        for why in ("unnoticed", "after a close", FIRST)
    }
    for why, each_ms in whole_ms.items():
        report.facts[f"{size}: a hello, {why}, all steps"] = f"{each_ms:.3f} ms (goal <= {GOAL_MS})"
    return whole_ms["unnoticed"]


def come_back(fleet: Fleet, watch: Callable[..., Any], why: str) -> None:
    """Everybody has a session, by the web process's own steps."""
    from controlplane.fleet import identity, selectors
    from controlplane.live.proof import nodes_that_signed
    from controlplane.recovery import returning

    fleet.sessions += 1
    for ids in fleet.batches():
        proofs = [(proof_of(fleet, node_id), NONCE) for node_id in ids]
        shown = [(node_id, shown_by(fleet, node_id)) for node_id in ids]
        hellos = [
            returning.Return(node_id=node_id, session_id=session_of(fleet), said=fleet.hellos[node_id])
            for node_id in ids
        ]
        steps: Sequence[Callable[[], list[Any]]] = (
            partial(nodes_that_signed, proofs),
            partial(identity.admit_plain, shown),
            partial(all_opened, hellos),
            partial(selectors.device_indexes, ids),
        )
        for step, act in zip(WELCOME, steps, strict=True):
            found = watch(f"{step}, {why}", len(ids), act)
            assert len(found) == len(ids), step
            assert all(map(WELCOME[step], found)), (step, found[:2])


def all_opened(hellos: Sequence[Any]) -> list[int | None]:
    """Of each its newest event that was applied, None for one that was not opened."""
    from controlplane.recovery import returning

    opened = returning.open_quiet(hellos)
    return [opened.get(hello.node_id) for hello in hellos]


def close(fleet: Fleet, watch: Callable[..., Any]) -> None:
    """Every session ends, and was the newest of its node."""
    from controlplane.fleet.sessions import close_sessions

    for ids in fleet.batches():
        ended = dict.fromkeys(ids, session_of(fleet))
        assert len(watch("close", len(ids), partial(close_sessions, ended))) == len(ids)


def one_by_one(fleet: Fleet, node_ids: Sequence[str]) -> None:
    """As before there were batches, and as who is not as he was is let in still."""
    from controlplane.fleet import identity
    from controlplane.fleet.sessions import close_session
    from controlplane.recovery import ingest

    fleet.sessions += 1
    session = session_of(fleet)
    for node_id in node_ids:
        said, shown = fleet.hellos[node_id], shown_by(fleet, node_id)
        fleet.timed("one by one: admit", 1, partial(identity.admit, node_id, shown))
        fleet.timed("one by one: open", 1, partial(ingest.open_session, node_id, session, said))
        fleet.timed("one by one: close", 1, partial(close_session, node_id, session))


def enrol(fleet: Fleet) -> None:
    """New nodes with a token of many uses, each asking by itself; they are not of the fleet."""
    from controlplane.access import join_tokens
    from controlplane.fleet.enrolment import Enrolment, enroll_node
    from controlplane.protocol.handshake import enrolment_statement

    token = join_tokens.create(join_tokens.Binding(), uses=ALONE).secret
    for number in range(ALONE):
        key, said = NodeKey.fresh(), a_hello(f"new-{number}", f"new-{number}", [])
        statement = enrolment_statement(
            token_sha256=join_tokens.digest(token), node_name=said.node_name, public_key=key.public_key, boot_id="boot"
        )
        asked = Enrolment(
            name=said.node_name, join_token=token, public_key=key.public_key, boot_id="boot",
            proof=key.sign(statement), devices=said.devices,
        )  # fmt: skip
        fleet.timed("one by one: enrol", 1, partial(enroll_node, asked))


def as_if_new(fleet: Fleet) -> Fleet:
    """Its agents before their first sessions, with nothing on their nodes."""
    from controlplane.fleet import flapping
    from controlplane.fleet.models import Node, NodeLife
    from controlplane.jobs.models import Rank
    from controlplane.runtime.clock import now

    flapping._records.clear()
    Rank.objects.filter(released_at=None).update(released_at=now())
    NodeLife.objects.all().delete()
    Node.objects.update(boot_id="", journal_id="", session_counter=0, connected=False, gap_since=None)
    for node_id, said in fleet.hellos.items():
        fleet.hellos[node_id] = msgspec.structs.replace(said, ranks=(), jobs=())
    return fleet


def session_of(fleet: Fleet) -> str:
    """The present one of each."""
    return f"bench.{fleet.sessions}"


def proof_of(fleet: Fleet, node_id: str) -> Proof:
    """As its agent answers a challenge."""
    said = fleet.hellos[node_id]
    proof = unsigned_proof(
        node_id=node_id, boot_id=said.boot_id, journal_id=said.journal_id, machine_id=f"machine of {node_id}"[:64],
        counter=fleet.sessions, protocol_min=frames.PROTOCOL_MIN, protocol_max=frames.PROTOCOL_MAX,
        server_host="127.0.0.1",
    )  # fmt: skip
    return fleet.keys[node_id].proof(NONCE, proof)


def shown_by(fleet: Fleet, node_id: str) -> Any:
    """What its proof and its hello say."""
    from controlplane.fleet.identity import Shown

    said = fleet.hellos[node_id]
    return Shown(
        boot_id=said.boot_id, journal_id=said.journal_id, machine_id=f"machine of {node_id}"[:64],
        counter=fleet.sessions, devices=tuple(device.uuid for device in said.devices),
    )  # fmt: skip


def a_fleet(nodes: int) -> Fleet:
    """Rows of a fleet that trains, each node of which had a session, and its agents."""
    from django.db.models import F

    from controlplane.fleet.models import Device, Node, NodeLife
    from controlplane.jobs.models import Rank
    from controlplane.runtime import bulk
    from controlplane.runtime.clock import now

    fill(nodes)
    names = dict(Node.objects.values_list("id", "name"))
    keys = {node_id: NodeKey.fresh() for node_id in names}
    known = {"boot_id": "boot", "journal_id": "journal", "agent_version": "bench", "revision": frames.PROTOCOL_MAX}
    bulk.update(Node, known, ("public_key",), [(node_id, key.public_key) for node_id, key in keys.items()])
    lives = [(node_id, "boot", "journal") for node_id in names]
    bulk.insert(NodeLife, {"last_seen_at": now(), "first_seen_at": now()}, ("node_id", "boot_id", "journal_id"), lives)
    Device.objects.update(uuid=F("id"), model="bench", memory_bytes=1 << 34, driver="simulated")
    listed: dict[str, list[frames.RankStatus]] = {node_id: [] for node_id in names}
    rows = Rank.objects.values_list(
        "node_id", "device__index", "replica__attempt__job_id", "replica__attempt__number", "replica__index",
        "replica__incarnation", "rank",
    )  # fmt: skip
    for node_id, index, *ref in rows:
        listed[node_id].append(a_rank(RankRef(*ref), index))
    return Fleet({node_id: a_hello(node_id, name, listed[node_id]) for node_id, name in names.items()}, keys)


def a_rank(ref: RankRef, device_index: int) -> frames.RankStatus:
    """That trains."""
    return frames.RankStatus(
        ref=ref, state=RankState.TRAINING, pid=7, device_index=device_index, section=Section.STEP,
        phase=Phase.COMPUTE, step=5, phase_age_s=0.1, silent_s=0.1,
    )  # fmt: skip


def a_hello(node_id: str, name: str, ranks: Sequence[frames.RankStatus]) -> frames.AgentHello:
    """As the node was."""
    devices = (
        DeviceInfo(index=index, uuid=device_id(node_id, index), model="bench", memory_bytes=1 << 34, driver="simulated")
        for index in range(DEVICES)
    )
    jobs = {rank.ref.job_id: frames.JobSeen(job_id=rank.ref.job_id, attempt=1, epoch=0) for rank in ranks}
    return frames.AgentHello(
        protocol_min=frames.PROTOCOL_MIN, protocol_max=frames.PROTOCOL_MAX, node_name=name, agent_version="bench",
        boot_id="boot", journal_id="journal", devices=tuple(devices), ranks=tuple(ranks), jobs=tuple(jobs.values()),
    )  # fmt: skip
