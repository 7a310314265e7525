"""G5: false evictions in so many simulated heartbeats, late and lost, with pauses of the backend.

    python -m benchmarks g5 --heartbeats 1e8 --processes 8

Each process runs worlds of `controlplane.simulator.heartbeats` with seeds of its own: the real policy and
step protocol over a simulated network, clock and trainer. One core of the machine that this was
written on simulates some 10,000 heartbeats a second, so 10^8 take it under three hours.
"""

import argparse
import time
from concurrent.futures import ProcessPoolExecutor

from benchmarks.report import Report
from controlplane.simulator.heartbeats import NODES, Count, measure, table

SEEDS_APART = 10_000_000


def main(argv: list[str]) -> int:
    """0: nobody was evicted and no invariant was broken."""
    parser = argparse.ArgumentParser(prog="benchmarks g5", description=__doc__)
    parser.add_argument("--heartbeats", type=float, default=1e8)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--nodes", type=int, default=NODES, help="nodes that train, of each world")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(argv)
    began_s = time.monotonic()
    total = Count()
    share = int(options.heartbeats / options.processes)
    with ProcessPoolExecutor(max_workers=options.processes) as pool:
        parts = [
            pool.submit(measure, share, seed=options.seed + number * SEEDS_APART, nodes=options.nodes)
            for number in range(options.processes)
        ]
        for part in parts:
            total.add(part.result())
    print(table(total, took_s=time.monotonic() - began_s))
    report = Report(goal_id="g5", title="False evictions by late and lost heartbeats, simulated")
    report.add("false evictions", "count", [total.evictions], goal="0 in 10^8 heartbeats")
    report.add("heartbeats", "count", [total.heartbeats], goal="10^8")
    report.add("left out and taken back", "count", [total.left_out])
    report.facts |= {
        "worlds": total.worlds,
        "pauses": total.pauses,
        "stops": total.stops,
        "steps": total.steps,
        "seed": options.seed,
    }
    report.finish()
    return 1 if total.told or total.evictions else 0
