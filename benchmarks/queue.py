"""`python -m benchmarks queue --seeds 10000`: what the queue promises, over many seeds of small fleets.

Each seed is a fleet, its jobs and hours of their queue (`controlplane.simulator.queue_promises`), planned by the
product's `schedule`. Exit 1 when a promise was broken.
"""

import argparse
import multiprocessing
import sys
import time
from collections import Counter

from controlplane.simulator.queue_promises import watched

SHOWN = 20


def found_in(seed: int) -> tuple[int, Counter[str], tuple[str, ...]]:
    """(seed, how often what has happened, violations)."""
    watch = watched(seed)
    happened = {
        "plans": watch.queue.passes,
        "preemptions": watch.preemptions,
        "of these within a project for its quota alone": watch.within,
        "starts on what others lend": watch.borrows,
        "starts before one that waits, by their time limit": watch.limited,
        "starts on reserved nodes alone, past others": watch.alone,
    }
    return seed, Counter(happened), tuple(watch.violations)


def main(argv: list[str]) -> int:
    """Prints what has happened, and what was broken."""
    parser = argparse.ArgumentParser(prog="benchmarks queue", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=10_000)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args(argv)
    began_s, happened, broken = time.monotonic(), Counter[str](), list[tuple[int, tuple[str, ...]]]()
    seeds = range(options.seed, options.seed + options.seeds)
    with multiprocessing.get_context("fork").Pool(options.processes) as pool:
        for seed, found, violations in pool.imap(found_in, seeds, chunksize=16):
            happened.update(found)
            broken += [(seed, violations)] if violations else []
    took_s = time.monotonic() - began_s
    print(f"{len(seeds)} seeds, {len(broken)} broken, {took_s:.0f} s")
    for name, number in happened.items():
        print(f"{number} {name}")
    for seed, violations in broken[:SHOWN]:
        print(f"seed {seed}: {'; '.join(violations[:3])}", file=sys.stderr)
    return 1 if broken else 0
