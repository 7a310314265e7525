"""V2: one line of a rank that no column takes was sent by its agent for ever, and nothing behind
it arrived."""

from agents.link.journal import read_journal
from controlplane.protocol.bounds import MAX_INT
from controlplane.protocol.frames import InputRefused, RankSaid
from controlplane.protocol.rank import OuterError
from tests.attacks.agents.rank_lines import attack, steps
from tests.integration.agents.conftest import AgentProcess
from tests.integration.agents.server import Server

TOO_LARGE = b'{"type":"step","step":9223372036854775813,"epoch":1,"step_time_s":0.1,"tokens":1,"micro_batches":[]}'
NUL = b'{"type":"outer_error","epoch":1,"step":1,"error":"a\\u0000b"}'
TOO_LONG = b'{"type":"outer_error","epoch":1,"step":1,"error":"' + b"x" * 300_000 + b'"}'


async def test_a_line_that_cannot_be_stored_does_not_leave_its_node_and_the_next_one_does(
    server: Server, agent: AgentProcess
) -> None:
    await attack(server, agent, [TOO_LARGE, NUL, TOO_LONG])
    assert max(steps(server)) <= MAX_INT
    assert not any(isinstance(body.report, OuterError) for body in server.bodies(RankSaid))
    refused = await server.until(lambda: server.bodies(InputRefused))
    assert (refused[0].ref.rank, refused[0].count) == (0, 1)
    assert "step" in refused[0].reason
    assert server.gaps == 0
    agent.kill()
    kept = [record.body for record in read_journal(agent.state_dir / "journal") if hasattr(record, "body")]
    reports = [body.report for body in kept if isinstance(body, RankSaid)]
    assert not any(isinstance(report, OuterError) or report.step > MAX_INT for report in reports)


async def test_a_rank_reads_in_its_own_log_why_it_was_refused(server: Server, agent: AgentProcess) -> None:
    await attack(server, agent, [TOO_LARGE])
    logs = sorted((agent.jobs_dir / "logs").glob("*/*k0.log"))
    assert "1 of this rank's messages refused; the last: from_rank line" in logs[0].read_text()
