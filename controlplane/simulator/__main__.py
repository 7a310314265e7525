"""`python -m controlplane.simulator --seed 7 [--seeds 200]`: run, print, exit 1 on a violation."""

import argparse
import sys

from controlplane.simulator import report
from controlplane.simulator.world import World


def main(arguments: list[str] | None = None) -> int:
    """Run one seed with its tape, or many with a summary."""
    parser = argparse.ArgumentParser(prog="controlplane.simulator", description=__doc__)
    parser.add_argument("--seed", type=int, default=7, help="first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds, from --seed on")
    parser.add_argument("--faults", type=int, default=None, help="how many faults (default: drawn from the seed)")
    parser.add_argument(
        "--standing-by", type=int, choices=(0, 1, 2), default=0, help="how many of the replicas compute nothing"
    )
    options = parser.parse_args(arguments)
    seeds = range(options.seed, options.seed + options.seeds)
    outcomes = [World(seed, standing_by=options.standing_by).run(options.faults) for seed in seeds]
    text = report.one(outcomes[0]) if len(outcomes) == 1 else report.many(outcomes)
    sys.stdout.write(text + "\n")
    return 1 if any(outcome.violations for outcome in outcomes) else 0


if __name__ == "__main__":
    raise SystemExit(main())
