"""G8: a replica comes back: what it costs the others, and how fast its state travels.

    python -m benchmarks g8 [--rejoins 5] [--sizes 64,300,1000] [--skip-rates] [--skip-stall]

Stall (`benchmarks/rejoins.py`): a ring of real ranks (three replicas of two pipeline stages,
the membership protocol without backend and agents) loses a replica and takes it back,
`--rejoins` times. The times of the survivors' steps from the joiner's view to its first
contribution are held against those when the same survivors trained alone, and what is more
is split by the trainer's own clocks. Rate: one state from one process to another, ours,
torchft's HTTPTransport and plain TCP in turn, in the same run; plain TCP once through warm
buffers, once from and into as much memory as the state, and so once more with the sockets'
buffers bounded as ours are.
"""

import argparse
import os
import sys
from collections.abc import Callable
from functools import partial
from statistics import median

import torch

from benchmarks.peers import transfer, workload
from benchmarks.peers.command import scratch
from benchmarks.rejoins import SIZE, rejoins
from benchmarks.report import Report

GB = 1e9


def report_stall(report: Report, args: argparse.Namespace) -> None:
    """Rows of the survivors' steps and of the joiners."""
    with scratch("g8") as directory:
        found = rejoins(args, directory)
    alone, level = [said.step_time_s for said in found.alone], [each.level for each in found.rejoins]
    report.add("survivor's step, alone", "s", alone)
    starting = [said.step_time_s for each in found.rejoins for said in each.starting]
    report.add("survivor's step, while processes of the joiner start", "s", starting)
    joining = [said.step_time_s for each in found.rejoins for said in each.joining]
    report.add("survivor's step, while it joins", "s", joining)
    step_s = median(alone)
    shares = [time_s / step_s - 1.0 for time_s in joining]
    report.add("extra of a step while it joins", "of a step", shares, goal="<= 0.1")
    parts = [found.extra(each) for each in found.rejoins]
    whole = [sum(extra.values()) / step_s for extra in parts]
    report.add("extra of all steps of one rejoin together", "of a step", whole)
    of_rejoin = [(sum(extra.values()) - extra[SIZE]) / step_s for extra in parts]
    report.add(
        "extra of one rejoin, without what a larger group's exchange takes", "of a step", of_rejoin, goal="<= 0.1"
    )
    for name in parts[0]:
        report.add(f"of it, {name}", "of a step", [extra[name] / step_s for extra in parts])
    report.add("view change: until every install is there", "s", [each.installed.install_s for each in found.rejoins])
    report.add("view change: new outer group", "s", [each.installed.build_s for each in found.rejoins])
    report.add("joiner: request to whole state", "s", [said.fetch_s for said in level])
    report.add("joiner: steps replayed", "steps", [float(said.replayed_steps) for said in level])
    report.facts["state of one rank"] = f"{level[0].fetch_bytes / 1e6:.1f} MB, from {level[0].donor_count} donors"
    report.facts["ring"] = (
        f"{workload.REPLICAS} replicas x PP{workload.PIPELINE}, hidden {args.hidden}, {args.layers} layers,"
        f" {args.delay_s} s more a micro-batch; {workload.REPLICAS * workload.PIPELINE} ranks on {os.cpu_count()} cores"
    )


def report_rates(report: Report, args: argparse.Namespace) -> None:
    """Rows of each size, measured in turn, so that a busy moment of the machine hits all alike."""
    torch.set_num_threads(1)
    rates = transfer.memory_rates()
    report.facts["one core copies, digests (GB/s)"] = f"{rates['copy']:.1f}, {rates['digest']:.1f}"
    for megabytes in args.sizes:
        one, two = transfer.Ours(megabytes, donors=1), transfer.Ours(megabytes, donors=2)
        theirs = transfer.Torchft(megabytes)
        into = torch.ones(megabytes * transfer.MEGABYTE, dtype=torch.uint8)
        found: dict[str, list[float]] = {}
        with transfer.closing(one, two, theirs):
            contestants: dict[str, Callable[[], float]] = {
                "loopback, 1 connection": partial(transfer.loopback, megabytes, 1),
                "loopback, 2 connections": partial(transfer.loopback, megabytes, 2),
                "memory to memory, 1 connection": partial(transfer.loopback, megabytes, 1, into=into),
                "memory to memory, 2 connections": partial(transfer.loopback, megabytes, 2, into=into),
                "bounded buffers, 2 connections": partial(transfer.loopback, megabytes, 2, into=into, bounded=True),
                "holdfast, 1 donor": one.measure,
                "holdfast, 2 donors": two.measure,
                "torchft, whole": partial(theirs.measure, 0),
                "torchft, 4 chunks": partial(theirs.measure, 4),
            }
            for _ in range(args.repeats):
                for name, measure in contestants.items():
                    found.setdefault(name, []).append(megabytes * transfer.MEGABYTE / GB / measure())
        for name, values in found.items():
            report.add(f"{megabytes} MB: {name}", "GB/s", values)
        report.add(f"{megabytes} MB: donor's copy and digests before it", "s", one.prepared_s)
        _compare(report, megabytes, {name: median(values) for name, values in found.items()})


def _compare(report: Report, megabytes: int, rate: dict[str, float]) -> None:
    """The best of each against the best of the others."""
    kinds = ("hold", "torchft", "loop", "memory", "bounded")
    best = {kind: max(value for name, value in rate.items() if name.startswith(kind)) for kind in kinds}
    report.add(f"{megabytes} MB: holdfast / torchft", "x", [best["hold"] / best["torchft"]], goal=">= 1.5")
    report.add(f"{megabytes} MB: holdfast / loopback", "x", [best["hold"] / best["loop"]], goal=">= 0.8")
    for name, kind in (("", "memory"), (", our buffers", "bounded")):
        report.add(f"{megabytes} MB: holdfast / plain TCP, memory to memory{name}", "x", [best["hold"] / best[kind]])


def main(argv: list[str]) -> int:
    """0 when everything was measured."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rejoins", type=int, default=5, help="times a replica is lost and comes back")
    options.add_argument("--calm-steps", type=int, default=12, help="steps the survivors train alone before each")
    options.add_argument("--delay-s", type=float, default=workload.DELAY_S, help="sleep added to each micro-batch")
    options.add_argument("--hidden", type=int, default=128)
    options.add_argument("--layers", type=int, default=4)
    options.add_argument("--sizes", type=lambda text: [int(word) for word in text.split(",")], default=[64, 300, 1000])
    options.add_argument("--repeats", type=int, default=5, help="transfers of each kind and size")
    options.add_argument("--skip-stall", action="store_true")
    options.add_argument("--skip-rates", action="store_true")
    args = options.parse_args(argv)
    report = Report(goal_id="G8", title="a replica comes back: survivors' extra stall, and the rate of its transfer")
    report.facts["caveat"] = "CPU, gloo and loopback: protocol and copying, never NCCL or a network"
    if not args.skip_rates:
        report_rates(report, args)
    if not args.skip_stall:
        report_stall(report, args)
    report.finish()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
