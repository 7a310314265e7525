"""The server's agent door against generated garbage: nothing leaks, nobody else waits, acks go on."""

import asyncio
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.sync.client import connect

from controlplane.dispatch.models import Command
from controlplane.fleet.models import Node
from controlplane.protocol import frames
from controlplane.protocol.codec import decode_to_agent, encode_frame
from controlplane.protocol.handshake import Challenge
from controlplane.protocol.samples import XidEvent
from controlplane.recovery import ingest
from controlplane.recovery.models import Signal
from controlplane.recovery.reconcile import reconcile_job
from tests.attacks.backend.generated import of_type
from tests.integration.backend.builders import Fleet, live_ranks, make_fleet, ref_of, run_job
from tests.integration.backend.conftest import eventually
from tests.integration.backend.fake_agent import FakeAgent, enroll, join_token
from tests.integration.backend.servers import Stack

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(400)]

EXAMPLES = 60
SLOW = settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))


def deliver(fleet: Fleet, name: str, events: list[frames.AgentEvent]) -> None:
    """Send as an agent does, again from the last acknowledged one; raises if acks do not advance."""
    node, last = fleet.nodes[name], max(event.seq for event in events)
    acked = -1
    for _ in range(len(events) + 1):
        rest = tuple(event for event in events if event.seq > acked)
        outcome = ingest.apply_events(node.id, f"web.{name}", rest)
        assert outcome.acked_seq > acked, "acknowledgements stand still"
        acked = outcome.acked_seq
        if acked >= last:
            return
        assert outcome.resend
        events.sort(key=lambda event: event.seq)
    raise AssertionError(f"{acked} is acknowledged, {last} was sent")


def test_generated_events_never_leak_an_exception_and_are_all_acknowledged() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    known = {
        "RankRef": st.sampled_from([ref_of(row) for row in live_ranks(job)]),
        "command_id": st.sampled_from(list(Command.objects.values_list("id", flat=True))),
        "job_id": st.just(job.id),
    }
    bodies = st.lists(of_type(frames.EventBody, known), min_size=1, max_size=10)
    disorder = st.tuples(st.permutations(range(10)), st.sampled_from(["", "gap", "repeat"]))
    heard = 0

    @SLOW
    @given(bodies=bodies, ages=st.lists(st.floats(), min_size=10, max_size=10), disorder=disorder)
    def attack(bodies: list[Any], ages: list[float], disorder: tuple[list[int], str]) -> None:
        nonlocal heard
        order, fault = disorder
        first = fleet.seqs["n1"] + 1
        batch = [frames.AgentEvent(first + n, ages[n], body) for n, body in enumerate(bodies)]
        fleet.seqs["n1"] += len(batch)
        sent = [batch[n] for n in order if n < len(batch)]
        if fault == "repeat":
            sent += sent[:2]
        elif fault == "gap" and len(sent) > 1:
            ingest.apply_events(fleet.nodes["n1"].id, "web.n1", tuple(sent[1:]))
        deliver(fleet, "n1", sent)
        # Another node is heard meanwhile, and the job can still be decided about.
        fleet.tell("n2", frames.XidSeen(XidEvent(index=0, xid=79)))
        heard += 1
        assert Signal.objects.filter(kind="xid", node=fleet.nodes["n2"]).count() == heard
        reconcile_job(job.id)

    attack()
    assert Node.objects.get(name="n1").last_event_seq == fleet.seqs["n1"]
    assert Node.objects.get(name="n2").last_event_seq == fleet.seqs["n2"]


def garbage(agent: FakeAgent) -> st.SearchStrategy[list[bytes]]:
    """Frames of one session: random bytes, valid messages with a piece changed, wild ones."""
    valid = encode_frame(frames.AgentFrame(seq=1, uptime_s=1.0, events=()))
    wild = of_type(frames.AgentFrame, {}).map(_encoded)
    changed = st.tuples(st.integers(0, len(valid) - 1), st.binary(min_size=1, max_size=3)).map(
        lambda change: valid[: change[0]] + change[1] + valid[change[0] + 1 :]
    )
    nested = st.integers(1, 100_000).map(lambda depth: b"\x91" * depth)
    return st.lists(
        st.binary(max_size=200) | changed | wild | nested | st.just(encode_frame(agent._hello())), max_size=14
    )


def _encoded(frame: frames.AgentFrame) -> bytes:
    return encode_frame(frame)


async def test_generated_frames_kill_no_process_and_delay_no_other_node(stack: Stack) -> None:
    names = ["bad-1", "bad-2", "bad-3", "good"]
    token = await sync_to_async(join_token)(uses=len(names))
    agents = [FakeAgent(stack.url, n, await asyncio.to_thread(enroll, stack.url, n, token)) for n in names]
    good = agents.pop()
    good.start()
    await asyncio.wait_for(good.welcomed.wait(), 20.0)
    turn = iter(range(10_000))

    @settings(max_examples=45, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(sent=garbage(agents[0]), with_hello=st.booleans())
    def attack(sent: list[bytes], with_hello: bool) -> None:
        agent = agents[next(turn) % len(agents)]
        agent.credential.counter += 1
        try:
            with connect(agent.url, compression=None, open_timeout=20.0) as socket:
                challenge = decode_to_agent(socket.recv(20.0))  # type: ignore[arg-type]
                if isinstance(challenge, Challenge):
                    socket.send(encode_frame(agent._prove(challenge)))
                for data in [encode_frame(agent._hello())] * with_hello + sent:
                    socket.send(data)
        except (ConnectionClosed, WebSocketException, OSError, TimeoutError):
            return

    working = asyncio.create_task(asyncio.to_thread(attack))
    told = 0
    while not working.done():
        told += 1
        good.tell(frames.XidSeen(XidEvent(index=0, xid=100 + told)))
        wanted = told
        await eventually(
            "the good node is heard", lambda n=wanted: Signal.objects.filter(kind="xid").count() >= n, stack=stack
        )
    await working
    assert good.welcomed.is_set()
    assert not good.refused
    for process in (stack.web, stack.sentinel):
        assert process.child is not None
        assert process.child.poll() is None, process.tail()
    await good.stop()
