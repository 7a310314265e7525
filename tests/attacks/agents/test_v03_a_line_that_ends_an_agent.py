"""V3: a step of 2^70 ended the agent, and every start of it after that."""

from agents.core.records import EventKept, EventsAcked
from agents.link.journal import Journal, read_journal
from controlplane.protocol.frames import InputRefused, RankSaid
from controlplane.protocol.launch import RankRef
from controlplane.protocol.rank import OuterError
from tests.attacks.agents.rank_lines import attack
from tests.integration.agents.conftest import AgentProcess
from tests.integration.agents.server import Server

STEP = b'{"type":"step","step":%d,"epoch":1,"step_time_s":0.1,"tokens":1,"micro_batches":[]}'
LINES = [
    STEP % 2**70,
    STEP % -(2**70),
    b'{"type":"step","step":' + b"9" * 5_000 + b"}",
    b'{"type":"progress","section":"step","phase":"compute","phase_age_s":1e300,"section_age_s":0,"step":1}',
    b'{"type":"hello","ref":' * 20_000,
    b"[" * 100_000,
    b'{"type":"outer_error","epoch":1,"step":1,"error":"\\ud800"}',
    b"\xff\xfe" * 1_000,
    b"x" * (2 << 20),
]


async def test_no_line_of_a_rank_ends_its_agent_or_keeps_others_from_being_heard(
    server: Server, agent: AgentProcess
) -> None:
    await attack(server, agent, LINES)
    assert agent.process.poll() is None, agent.log()
    assert "Traceback" not in agent.log()
    frames = len(server.frames)
    await server.until(lambda: len(server.frames) > frames)


async def test_an_agent_starts_on_a_journal_that_holds_what_no_server_takes(
    server: Server, agent: AgentProcess
) -> None:
    """As an agent without bounds left it: the event is told of, what follows it arrives."""
    agent.kill()
    kept = read_journal(agent.state_dir / "journal")
    seq = 1 + max((record.seq for record in kept if isinstance(record, EventKept | EventsAcked)), default=0)
    ref = RankRef("job_1", 1, 0, 1, 0)
    journal = Journal(agent.state_dir / "journal")
    for number, error in enumerate(("a\0b", "a good one")):
        journal.append(EventKept(seq + number, 1.0, RankSaid(ref, OuterError(1, 1, error))))
    journal.close()
    agent.start()
    refused = await server.until(lambda: server.bodies(InputRefused))
    assert refused[0].ref is None
    said = await server.until(lambda: server.bodies(RankSaid))
    assert said[0].report.error == "a good one"
    assert server.gaps == 0
    assert (agent.state_dir / "journal.unread").stat().st_size > 0
