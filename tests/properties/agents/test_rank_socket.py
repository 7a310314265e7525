"""A real agent with two real processes for ranks: whatever the one sends, the agent goes on, the
other is heard, and what the agent keeps can be written, read again, sent and stored."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agents.config import load
from agents.core import events as ev
from agents.core.limits import MAX_UNACKED_STEP_REPORTS, MIN_SHARES
from agents.core.state import ProcessState, Rank
from agents.link.journal import read_journal
from agents.main import _open_state
from agents.ranks.gate import BURST_BYTES, BURST_LINES
from agents.ranks.identity import identity_of
from agents.ranks.places import Places
from agents.runtime import Agent
from controlplane.protocol.bounds import MAX_INT, unstorable
from controlplane.protocol.codec import decode_from_agent, encode_frame, encode_line
from controlplane.protocol.frames import InputRefused, RankSaid, Welcome
from controlplane.protocol.rank import RankProgress, StepReport, TrainingDone
from controlplane.protocol.states import Phase, Section
from tests.properties.agents.garbage import LINES, REF, any_json, mutated_lines, nested
from tests.properties.agents.puppet import Puppet
from tests.properties.agents.world import launch

OTHER = msgspec.structs.replace(REF, rank=1)
SETTINGS = settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example]
)
pieces = st.one_of(
    st.binary(max_size=300),
    any_json.map(lambda line: line + b"\n"),
    mutated_lines(LINES).map(lambda line: line + b"\n"),
    nested.map(lambda line: line + b"\n"),
    st.just(b""),
    st.just(b"\n" * 10_000),
    st.just(b"{}\n" * 300),
)


class Node:
    """The agent, in a loop of its own that stands still between examples."""

    def __init__(self, directory: Path) -> None:
        self.loop = asyncio.new_event_loop()
        self.faults: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _, context: self.faults.append(context))
        self.step = 0
        places = Places(directory / "jobs")
        places.open()
        socket = places.prepare(REF.job_id, None).agent_socket
        self.evil, self.good = Puppet(socket, REF), Puppet(socket, OTHER)
        self.journal = directory / "journal"
        self.run(self._start(directory))

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    async def _start(self, directory: Path) -> None:
        options = ["--probe", "simulated", "--devices", "2", "--state-dir", str(directory)]
        config = load([*options, "--jobs-dir", str(directory / "jobs")], {})
        state, journal, _ = _open_state(directory)
        ranks = {puppet.ref: _rank(puppet, index) for index, puppet in enumerate((self.evil, self.good))}
        self.agent = Agent(config, replace(state, ranks=ranks), journal)
        await self.agent.sampler.start()
        await self.agent.start(same_boot=True)
        welcome = Welcome(
            protocol=1, node_id="node_1", session_id="s", acked_seq=0, frame_interval_s=1.0, sample_interval_s=1.0
        )
        self.agent.dispatch(ev.LinkUp(now_s=self.loop.time(), welcome=welcome))
        await self.good.say(b"")

    async def attack(self, said: list[bytes]) -> None:
        """One process says all that, the other a report; when it has arrived, so has a frame."""
        self.step += 1
        sends = [self.loop.create_task(self._say(said))]
        await self.good.say(encode_line(StepReport(self.step, 1, 0.1, 1, ())))
        await self.until(lambda: any(self._is_mine(kept.body) for kept in self.agent.state.events))
        async with asyncio.timeout(30):
            await asyncio.gather(*sends)
        self.send_frames()

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not holds():
                await asyncio.sleep(0.001)

    async def _say(self, said: list[bytes]) -> None:
        for piece in said:
            await self.evil.say(piece)

    def _is_mine(self, body: Any) -> bool:
        return (
            isinstance(body, RankSaid)
            and body.ref == OTHER
            and isinstance(body.report, StepReport)
            and body.report.step == self.step
        )

    def send_frames(self) -> list[Any]:
        """What a server would get: every frame can be read and stored; all is acknowledged."""
        bodies = []
        more = True
        while more:
            composed = self.agent.compose()
            assert composed is not None, "the link is up"
            frame, more = composed
            assert decode_from_agent(encode_frame(frame)) == frame
            assert unstorable(msgspec.to_builtins(frame, str_keys=True)) is None
            bodies += [event.body for event in frame.events]
        newest = self.agent.state.next_seq - 1
        self.agent.dispatch(ev.ServerAcked(now_s=self.loop.time(), seq=newest, resend=False))
        return bodies

    def end(self) -> None:
        for puppet in (self.evil, self.good):
            puppet.end()
        self.run(self.agent.stop())
        self.loop.close()


def _rank(puppet: Puppet, index: int) -> Rank:
    identity = identity_of(puppet.process.pid)
    assert identity is not None, "it was just started"
    return Rank(
        ref=puppet.ref,
        device_index=index,
        launch=launch(),
        launched_at_s=0.0,
        process=ProcessState.ALIVE,
        identity=identity,
    )


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    made = Node(tmp_path_factory.mktemp("a"))
    yield made
    made.end()


@SETTINGS
@given(said=st.lists(pieces, min_size=1, max_size=4))
def test_whatever_a_rank_says_the_agent_goes_on_and_hears_the_other(node: Node, said: list[bytes]) -> None:
    for share in node.agent.ranks._gate._shares.values():
        # As if a minute had passed since the last: else most of it would wait unread.
        share.lines, share.bytes = BURST_LINES, BURST_BYTES
    node.run(node.attack(said))
    node.run(node.until(lambda: not any(connection._lines for connection in node.agent.ranks._peers)))
    assert node.faults == [], "nothing was raised"
    assert node.agent._journal.error == ""
    assert node.agent._journal.unwritable == 0


def test_the_journal_of_all_that_can_be_read(node: Node) -> None:
    unread: list[int] = []
    read_journal(node.journal, lambda count, _: unread.append(count))
    assert unread == []


@pytest.fixture
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    made = Node(tmp_path_factory.mktemp("a"))
    yield made
    made.end()


def test_what_was_refused_is_told_and_what_follows_is_taken(fresh: Node) -> None:
    """On one connection: a step that no column holds, a NUL, then a good report."""
    nul = b'{"type":"outer_error","epoch":1,"step":1,"error":"a\\u0000b"}\n'
    evil = b'{"type":"done","step":9223372036854775813}\n' + nul
    fresh.run(fresh.evil.say(evil + encode_line(TrainingDone(MAX_INT))))
    fresh.run(fresh.until(lambda: fresh.agent.state.ranks[REF].done))
    gone = ev.RankProcessGone(now_s=fresh.loop.time(), ref=REF, pid=None, exit_code=0, signal=None, known=True)
    fresh.agent.dispatch(gone)
    told = [body for body in fresh.send_frames() if isinstance(body, InputRefused)]
    assert [(body.ref, body.count) for body in told] == [(REF, 1), (REF, 1)]
    assert "step" in told[0].reason
    assert "error" in told[1].reason
    assert not told[1].closed


def test_a_flood_waits_and_nobody_else_does(fresh: Node) -> None:
    """Ten times its share: all of it is read in the end, none of it before others' lines."""
    line = encode_line(RankProgress(Section.STEP, Phase.COMPUTE, 0.1, 0.1, 3))
    fresh.run(fresh.evil.say(b""))
    sent = fresh.loop.create_task(fresh.evil.say(line * int(10 * BURST_LINES)))
    fresh.run(fresh.until(lambda: min(peer.entry.share.lines for peer in fresh.agent.ranks._peers.values()) < 1.0))
    for _ in range(20):
        fresh.run(fresh.attack([]))
    assert fresh.agent.ranks.refused_lines == 0, "a flood of good lines is slowed down, not thrown away"
    sent.cancel()
    fresh.run(asyncio.gather(sent, return_exceptions=True))


def test_one_rank_gets_no_more_connections_than_its_share(fresh: Node) -> None:
    for _ in range(100):
        fresh.run(fresh.evil.say(b""))
    assert fresh.agent.ranks.refused_connections > 0
    fresh.run(fresh.attack([]))


def test_a_ranks_reports_fill_its_own_share_of_what_waits_and_no_more(fresh: Node) -> None:
    """While the control plane is away."""
    share = MAX_UNACKED_STEP_REPORTS // MIN_SHARES
    fresh.run(fresh.attack([]))
    conn_id = next(conn for conn, ref in fresh.agent.state.connections.items() if ref == OTHER)
    for step in range(share + 10):
        message = StepReport(step, 1, 0.1, 1, ())
        fresh.agent.dispatch(ev.RankMessage(now_s=fresh.loop.time(), conn_id=conn_id, message=message))
    state = fresh.agent.state
    assert state.shed_reports == 10
    assert state.waiting[OTHER].count == share + 1, "and one that says so"
    fresh.run(fresh.evil.say(encode_line(StepReport(1, 1, 0.1, 1, ()))))
    fresh.run(fresh.until(lambda: REF in fresh.agent.state.waiting))
