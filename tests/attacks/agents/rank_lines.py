"""Starts a replica whose rank 0 attacks its agent's socket, on a real agent."""

import sys
from pathlib import Path

from controlplane.protocol.frames import RankSaid, RankStarted
from controlplane.protocol.rank import StepReport
from tests.attacks.agents.evil_rank import GOOD_STEP
from tests.integration.agents.conftest import ROOT, AgentProcess, start_order
from tests.integration.agents.server import Server


async def attack(server: Server, agent: AgentProcess, lines: list[bytes]) -> None:
    """The lines are sent by rank 0; returns when both ranks' good reports have arrived."""
    evil = Path(agent.state_dir).parent / "evil"
    evil.write_bytes(b"\n".join(lines))
    order = start_order(
        entrypoint=(sys.executable, "-m", "tests.attacks.agents.evil_rank"),
        env={"EVIL_LINES": str(evil), "PYTHONPATH": str(ROOT)},
    )
    command = await server.send(order, epoch=1, job_id="job_1", attempt=1)
    answer = await server.done(command)
    assert answer.state == "succeeded", answer.detail
    # Two interpreters start, and each evil line may wait half a second for its answer.
    await server.until(lambda: {GOOD_STEP, GOOD_STEP + 1} <= set(steps(server)), timeout_s=60.0)
    assert len(server.bodies(RankStarted)) == 2


def steps(server: Server) -> list[int]:
    """Of the step reports that have reached the control plane."""
    reports = [body.report for body in server.bodies(RankSaid)]
    return [report.step for report in reports if isinstance(report, StepReport)]
