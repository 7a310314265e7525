"""An agent beside servers of other releases: it says what they know, and hears what it knows."""

import msgspec
import pytest

from agents.link.older import NOBODYS_COMMAND
from controlplane.protocol.frames import PROTOCOL_MIN, CommandAnswer, InputRefused, RankSaid
from controlplane.protocol.keeping import CheckpointsPruned
from controlplane.protocol.rank import StepReport
from controlplane.protocol.revisions import ADDED
from tests.integration.agents.conftest import AgentProcess, start_order
from tests.integration.agents.server import Server

NEW_SAMPLE_FIELDS = {name for revision, by in ADDED.items() for name in by.get("DeviceSample", ())}


async def again(server: Server) -> None:
    """What was heard is forgotten; the next session begins."""
    await server.cut()
    await server.until(lambda: server._socket is None or server._socket.transport.is_closing())
    server.raw_hellos.clear()
    server.raw_frames.clear()
    server.frames.clear()
    server.hellos.clear()


@pytest.mark.parametrize("protocol", [PROTOCOL_MIN, PROTOCOL_MIN + 1])
async def test_an_agent_says_to_an_older_server_only_what_that_one_knows(
    server: Server, agent: AgentProcess, protocol: int
) -> None:
    server.protocol = protocol
    await again(server)
    await server.until(lambda: server.hellos and len(server.frames) > 3 and any(f.devices for f in server.frames))
    frames = [msgspec.msgpack.decode(data) for data in server.raw_frames]
    told = {name for frame in frames for sample in frame["devices"] for name in sample}
    assert (NEW_SAMPLE_FIELDS & told) == (set() if protocol == PROTOCOL_MIN else NEW_SAMPLE_FIELDS)
    if protocol == PROTOCOL_MIN:
        assert all(frame.get("rss_bytes", 0) is not None for frame in frames)


@pytest.mark.parametrize("protocol", [PROTOCOL_MIN, PROTOCOL_MIN + 1])
async def test_a_kind_of_event_that_an_older_server_does_not_know_holds_no_other_up_and_is_told_once(
    server: Server, agent: AgentProcess, protocol: int
) -> None:
    server.protocol = protocol
    await again(server)
    await server.until(lambda: server.hellos)
    env = {"FAKE_STEP_S": "0.1", "FAKE_PRUNES": "yes"}
    await server.send(start_order(env=env), job_id="job_1", attempt=1, epoch=1)
    await server.until(lambda: max((r.step for r in reports(server) if isinstance(r, StepReport)), default=0) > 5)
    news = [report for report in reports(server) if isinstance(report, CheckpointsPruned)]
    if protocol > PROTOCOL_MIN:
        assert news
        return
    assert news == [] and server.gaps == 0
    (told,) = server.bodies(InputRefused)
    assert "older than the agent and does not know CheckpointsPruned" in told.reason
    assert sum(body.command_id == NOBODYS_COMMAND for body in server.bodies(CommandAnswer)) > 5
    assert agent.log().count('"kind":"CheckpointsPruned"') == 1


def reports(server: Server) -> list[object]:
    return [body.report for body in server.bodies(RankSaid)]


async def test_an_agent_whose_hello_an_older_server_does_not_understand_says_an_older_one(
    server: Server, agent: AgentProcess
) -> None:
    server.refuses_hello = lambda data: len(server.raw_hellos) == 1
    await again(server)
    await server.until(lambda: server.hellos)
    assert len(server.raw_hellos) == 2


async def test_an_agent_drops_what_a_newer_server_says_beyond_its_revision_and_goes_on(
    server: Server, agent: AgentProcess
) -> None:
    server.protocol, server.news = PROTOCOL_MIN + 1, {"weather": "fine"}
    await again(server)
    await server.until(lambda: server.hellos and len(server.frames) > 1)
    assert len(server.raw_hellos) == 1
    assert "weather" in agent.log()


async def test_a_frame_that_does_not_measure_its_agent_says_nothing_of_its_cost(
    server: Server, agent: AgentProcess
) -> None:
    await server.until(lambda: any(frame.rss_bytes for frame in server.frames))
    assert all(frame.rss_bytes is None or frame.rss_bytes > 1_000_000 for frame in server.frames)
    assert all(frame.cpu_ratio is None or frame.rss_bytes is not None for frame in server.frames)
