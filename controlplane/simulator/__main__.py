"""`python -m controlplane.simulator --seed 7 [--seeds 200]`: run, print, exit 1 on a violation.
`python -m controlplane.simulator effective`: how much of the time trains under failures.
`python -m controlplane.simulator heartbeats`: who is evicted for late or lost heartbeats (G5)."""

import argparse
import json
import math
import sys
import time
from dataclasses import fields
from pathlib import Path

from controlplane.simulator import crowd, effective, heartbeats, many, report
from controlplane.simulator.effective import Arrivals
from controlplane.simulator.extras import Extras
from controlplane.simulator.many import PROGRAM, Options

HELP = {
    "one_way": "how often a link carries nothing up, or nothing down",
    "late": "how often a link holds what goes over it, or messages come again later",
    "server_restarts": "how often the server ends between two of its effects",
    "record_ends": "how often an agent, or its machine, ends right after a record",
    "wall_leaps": "how often the server's wall clock is set",
    "full_disks": "how often an agent's disk fills as something is decided",
    "requests": "how often a person asks for something as something is decided",
    "volleys": "how often two or three faults strike within one recovery",
    "failing_exchanges": "how often every exchange fails for a while",
    "slow": "how many devices turn slow",
    "overheats": "how many devices run hot for a while",
    "unfit": "how often checks of a node begin to fail, and pass again later",
    "host_ends": "how often a rank host is killed",
    "refused": "how often a rank sends what its agent does not take",
    "rotten": "how often bytes of a checkpoint rot",
    "bad_numbers": "how often the loss is no number, in every replica",
    "set_backs": "how often the database is restored to what it was a while before",
    "notices": "how often a node's provider gives notice that it is taken away",
    "windows": "how often a person sets a maintenance window of a node",
}


def main(arguments: list[str] | None = None) -> int:
    """Run one seed with its tape, or many with a summary; or what `effective` measures."""
    given = sys.argv[1:] if arguments is None else arguments
    if given[:1] == ["effective"]:
        return _effective(given[1:])
    if given[:1] == ["heartbeats"]:
        return _heartbeats(given[1:])
    options = _options(given)
    wanted = Options(
        extras=Extras(**{field.name: getattr(options, field.name) for field in fields(Extras)}),
        is_mixed=options.mixed,
        **{name: getattr(options, name) for name in ("faults", "orders", "stills", "leaps", "standing_by", "jobs")},
    )
    began_s = time.monotonic()
    seeds = range(options.seed, options.seed + options.seeds)
    one = len(seeds) == 1
    outcomes = [wanted.run(options.seed)] if one else many.run_for(options.seconds, wanted, seeds, options.processes)
    text = report.one(outcomes[0]) if one else report.many(outcomes, wanted.command)
    sys.stdout.write(text + "\n")
    if options.json is not None:
        command = " ".join([PROGRAM, *given])
        found = many.summary(wanted, outcomes, seconds=time.monotonic() - began_s, command=command)
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return 1 if any(outcome.violations for outcome in outcomes) else 0


def _options(given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="controlplane.simulator", description=__doc__)
    parser.add_argument("--seed", type=int, default=7, help="first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds, from --seed on")
    parser.add_argument("--faults", type=int, default=None, help="how many faults (default: drawn from the seed)")
    parser.add_argument("--orders", type=int, default=0, help="how often a person orders a replica out")
    parser.add_argument("--leaps", type=int, default=0, help="how often the clock of a node leaps")
    parser.add_argument(
        "--standing-by", type=int, choices=(0, 1, 2), default=0, help="how many of the replicas compute nothing"
    )
    parser.add_argument("--stills", type=int, default=0, help="how often an agent or a whole node stands still")
    for field in fields(Extras):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=int, default=0, help=HELP[field.name])
    parser.add_argument("--mixed", action="store_true", help="of every kind something, a job and a network drawn too")
    parser.add_argument(
        "--jobs", type=int, choices=(0, *range(1, crowd.MOST + 1)), default=1, help="with --mixed; 0: drawn, 2 to 6"
    )
    parser.add_argument("--processes", type=int, default=1, help="over how many processes the seeds are run")
    parser.add_argument("--seconds", type=float, default=math.inf, help="at most so long; fewer seeds then")
    parser.add_argument("--json", type=Path, default=None, help="a file for what was run and what came of it")
    options = parser.parse_args(given)
    if options.jobs != 1 and not options.mixed:
        parser.error("several jobs are drawn: --jobs goes with --mixed")
    return options


def _heartbeats(given: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="controlplane.simulator heartbeats", description=heartbeats.__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--heartbeats", type=float, default=1e6, help="how many, in whole worlds")
    parser.add_argument("--nodes", type=int, default=heartbeats.NODES, help="nodes that train, of each world")
    options = parser.parse_args(given)
    count = heartbeats.measure(int(options.heartbeats), seed=options.seed, nodes=options.nodes)
    sys.stdout.write(heartbeats.table(count) + "\n")
    return 1 if count.told or count.evictions else 0


def _effective(given: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="controlplane.simulator effective", description=effective.__doc__)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--failures", type=int, default=100, help="failures for each way of recovery")
    parser.add_argument("--mtbf-s", type=float, default=effective.MTBF_S, help="mean seconds between failures")
    parser.add_argument("--arrivals", type=Arrivals, choices=tuple(Arrivals), default=Arrivals.EVEN)
    options = parser.parse_args(given)
    if options.failures < 1 or options.mtbf_s <= 0.0:
        parser.error("--failures must be at least 1 and --mtbf-s more than 0")
    mtbf_s, arrivals = options.mtbf_s, options.arrivals
    runs = [
        effective.measure(recovery, failures=options.failures, seed=options.seed, mtbf_s=mtbf_s, arrivals=arrivals)
        for recovery in effective.RECOVERIES
    ]
    sys.stdout.write(effective.table(runs, mtbf_s=mtbf_s, arrivals=arrivals) + "\n")
    return 1 if any(run.violations for run in runs) else 0


if __name__ == "__main__":
    raise SystemExit(main())
