"""Peer: torchrun (torchelastic), one world, restart of all ranks from a checkpoint.

python -m benchmarks.peers.torchrun --kills 5 --json OUT
"""

import argparse
import sys
from pathlib import Path

from benchmarks.peers import runner, workload
from benchmarks.peers.command import finish, parser, scratch
from benchmarks.peers.launch import QUIET, torchrun_argv
from benchmarks.processes import Processes

SAVE_EVERY_STEPS = 10
MONITOR_S = 0.1


def measure(args: argparse.Namespace, directory: Path, body: runner.Body = runner.run) -> runner.Result:
    """Start torchrun and do `body` to it; by default kill `args.kills` ranks, one at a time.
    Raises PeerFailed."""
    records, saves = directory / "records", directory / "saves"
    records.mkdir(parents=True)
    saves.mkdir()
    facts = {
        "save every (steps)": args.save_every,
        "monitor interval (s)": MONITOR_S,
        "checkpoint": "one file a stage, fsynced, no distributed format",
    }
    plan = runner.Plan(
        name="torchrun", kills=args.kills, seed=args.seed, replicas=workload.REPLICAS, ranks=workload.PIPELINE,
        calm_steps=args.calm_steps, facts=facts,
    )  # fmt: skip
    program = (
        "benchmarks.peers.torchrun_rank", "--records", str(records), "--saves", str(saves),
        "--save-every", str(args.save_every), "--delay-s", str(args.delay_s),
    )  # fmt: skip
    argv = torchrun_argv(
        sys.executable, ranks=workload.REPLICAS * workload.PIPELINE, max_restarts=args.kills + 3,
        monitor_s=MONITOR_S, program=program,
    )  # fmt: skip
    with Processes(directory / "logs") as processes:
        processes.start("torchrun", argv, QUIET)
        return body(plan, processes=processes, directory=records)


def add_options(options: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """This peer's own."""
    options.add_argument("--save-every", type=int, default=SAVE_EVERY_STEPS, help="torchrun: steps between checkpoints")
    return options


def main(argv: list[str]) -> int:
    """Command line."""
    args = add_options(parser(__doc__)).parse_args(argv)
    with scratch("torchrun") as directory:
        return finish(measure(args, directory), args)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
