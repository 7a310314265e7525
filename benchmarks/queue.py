"""`python -m benchmarks queue --seeds 10000`: what the queue promises, over many seeds of small fleets.

Each seed is a fleet, its jobs and hours of their queue (`controlplane.simulator.queue_promises`), planned by the
product's `schedule`. Exit 1 when a promise was broken.
"""

import argparse
import multiprocessing
import sys
import time

from controlplane.simulator.queue_promises import watched

SHOWN = 20


def found_in(seed: int) -> tuple[int, int, int, tuple[str, ...]]:
    """(seed, plans, preemptions, violations)."""
    watch = watched(seed)
    return seed, watch.queue.passes, watch.preemptions, tuple(watch.violations)


def main(argv: list[str]) -> int:
    """Prints one line, and what was broken."""
    parser = argparse.ArgumentParser(prog="benchmarks queue", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=10_000)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args(argv)
    began_s, plans, preemptions, broken = time.monotonic(), 0, 0, list[tuple[int, tuple[str, ...]]]()
    seeds = range(options.seed, options.seed + options.seeds)
    with multiprocessing.get_context("fork").Pool(options.processes) as pool:
        for seed, passes, asked, violations in pool.imap(found_in, seeds, chunksize=16):
            plans, preemptions = plans + passes, preemptions + asked
            broken += [(seed, violations)] if violations else []
    took_s = time.monotonic() - began_s
    print(f"{len(seeds)} seeds, {plans} plans, {preemptions} preemptions, {len(broken)} broken, {took_s:.0f} s")
    for seed, violations in broken[:SHOWN]:
        print(f"seed {seed}: {'; '.join(violations[:3])}", file=sys.stderr)
    return 1 if broken else 0
