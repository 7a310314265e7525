"""G11: what the agent costs a node: CPU of a core and memory, 8 devices and 8 ranks at 1 Hz.

Runs the real agent with simulated devices and eight rank processes that report progress
and a step once a second, against a small server on loopback. The server and the ranks are
processes of their own and are not counted; NVML's own call time is not in it.

    python -m benchmarks g11 [--seconds 60]
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report import Report
from controlplane.protocol.frames import RankJoined
from controlplane.protocol.launch import RankPlacement
from tests.integration.agents.conftest import AgentProcess, end_everything_of, start_order
from tests.integration.agents.server import Server

CPU_GOAL_PERCENT, RSS_GOAL_MB = 0.5, 45.0
DEVICES = RANKS = 8
WARM_UP_S = 5.0
_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """`cpu_percent` of one core over `elapsed_s`; `rss_mb` is the peak since the start."""

    cpu_percent: float
    rss_mb: float
    elapsed_s: float
    frames_per_s: float
    events_per_s: float


def main(argv: list[str]) -> int:
    """Prints a table; 0 if both goals are met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args(argv)
    cost = asyncio.run(measure(options.seconds))
    report = Report(goal_id="G11", title=f"cost of the agent, {DEVICES} devices and {RANKS} ranks at 1 Hz")
    report.add("CPU", "% of a core", [cost.cpu_percent], goal=f"<= {CPU_GOAL_PERCENT}")
    report.add("peak memory", "MB", [cost.rss_mb], goal=f"<= {RSS_GOAL_MB:g}")
    report.add("frames", "1/s", [cost.frames_per_s])
    report.add("events", "1/s", [cost.events_per_s])
    report.facts |= {
        "seconds": round(cost.elapsed_s, 1),
        "caveat": "simulated devices: the time of NVML's own calls is not in it",
    }
    report.finish()
    return 0 if cost.cpu_percent <= CPU_GOAL_PERCENT and cost.rss_mb <= RSS_GOAL_MB else 1


async def measure(seconds: float) -> Cost:
    """The figures of one run."""
    with tempfile.TemporaryDirectory(prefix="hf") as directory:
        state_dir = Path(directory) / "s"
        async with Server(interval_s=1.0) as server:
            agent = AgentProcess(server, state_dir, "--devices", str(DEVICES)).start()
            try:
                await server.until(lambda: server.hellos)
                places = tuple(RankPlacement(index, index) for index in range(RANKS))
                order = start_order(ranks=places, world_size=RANKS, env={"FAKE_STEP_S": "1.0"})
                await server.send(order, epoch=1, job_id="job_1", attempt=1)
                await server.until(lambda: len(server.bodies(RankJoined)) == RANKS, 30.0)
                await asyncio.sleep(WARM_UP_S)
                assert agent.process is not None, "started above"
                return await _observe(server, agent.process.pid, seconds)
            finally:
                if agent.process is not None:
                    agent.process.kill()
                    agent.process.wait()
                end_everything_of(state_dir)


async def _observe(server: Server, pid: int, seconds: float) -> Cost:
    frames, events = len(server.frames), len(server.events)
    began_s, cpu_s = time.monotonic(), _cpu_s(pid)
    await asyncio.sleep(seconds)
    elapsed_s, used_s = time.monotonic() - began_s, _cpu_s(pid) - cpu_s
    return Cost(
        cpu_percent=100.0 * used_s / elapsed_s,
        rss_mb=_peak_rss_mb(pid),
        elapsed_s=elapsed_s,
        frames_per_s=(len(server.frames) - frames) / elapsed_s,
        events_per_s=(len(server.events) - events) / elapsed_s,
    )


def _cpu_s(pid: int) -> float:
    """User and system time of all its threads; exact to the scheduler's nanosecond where given."""
    try:
        total_ns = 0
        for task in Path(f"/proc/{pid}/task").iterdir():
            total_ns += int((task / "schedstat").read_text().split()[0])
        return total_ns * 1e-9
    except (OSError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * _TICK_S


def _peak_rss_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    return 0.0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
