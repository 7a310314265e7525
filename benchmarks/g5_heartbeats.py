"""G5: false evictions in so many simulated heartbeats, late and lost, with pauses of the backend.

    python -m benchmarks g5 --heartbeats 1e8 --processes 8 [--seed 1] [--out var/bench/g5.jsonl]

Each world of `controlplane.simulator.heartbeats` has a seed of its own: the real policy and step protocol over
a simulated network, clock and trainer. A world is a line of the file as soon as it has run, so that a run
that was stopped goes on where it was when it is started again with the same file. 10^8 take some three and a half hours
of one core of the machine that this was written on.
"""

import argparse
import math
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from benchmarks.report import Report
from benchmarks.seed_lines import lines_of, state_of_sources
from controlplane.simulator.heartbeats import NODES, Count, heartbeats_of_a_world, is_clean, one, table


def a_world(seed: int) -> dict[str, Any]:
    """What one world counted, with its seed."""
    return {"seed": seed, **asdict(one(seed))}


def summed(lines: list[dict[str, Any]]) -> Count:
    """All of them together. A line that was written before a figure was counted has 0 of it."""
    total = Count()
    for line in lines:
        counted = {field.name: line.get(field.name, field.default) for field in fields(Count)}
        total.add(Count(**counted | {"told": tuple(counted["told"])}))
    return total


def main(argv: list[str]) -> int:
    """0: so many heartbeats were sent, nobody was evicted, nothing restarted and no invariant was broken."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks g5", description=__doc__)
    parser.add_argument("--heartbeats", type=float, default=1e8)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1, help="of the first world; each further one has the next")
    parser.add_argument("--out", type=Path, default=Path("var/bench/g5.jsonl"))
    parser.add_argument("--sum", action="store_true", help="run no more; the table of what the file has")
    options = parser.parse_args(argv)
    worlds = math.ceil(options.heartbeats / heartbeats_of_a_world(NODES))
    wanted = range(options.seed, options.seed + worlds)
    lines = lines_of(options.out, wanted, a_world, processes=options.processes, sum_alone=options.sum)
    total = summed(lines)
    print(table(total))
    report = Report(goal_id="g5", title="False evictions by late and lost heartbeats, simulated")
    report.add("false evictions", "count", [total.evictions], goal="0 in 10^8 heartbeats")
    report.add("heartbeats", "count", [total.heartbeats], goal="10^8")
    report.add("left out and taken back", "count", [total.left_out])
    report.facts |= {
        "worlds": total.worlds,
        "pauses": total.pauses,
        "stops": total.stops,
        "stalls": total.stalls,
        "steps": total.steps,
        "restarts": total.restarts,
        "holds": total.holds,
        "first seed": options.seed,
        "state of the sources": state_of_sources(),
    }
    report.finish()
    return 0 if is_clean(total) and total.heartbeats >= options.heartbeats else 1
