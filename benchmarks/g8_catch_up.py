"""G8: a replica comes back: what it costs the others, and how fast its state travels.

    python -m benchmarks g8 [--rejoins 5] [--sizes 64,300,1000] [--skip-rates] [--skip-stall]

Stall: a ring of real ranks (three replicas of two pipeline stages, the membership protocol
without backend and agents) loses a replica and takes it back, `--rejoins` times. The times
of the survivors' steps from the joiner's view to its first contribution are held against
those before the view, when the same survivors trained alone. Rate: one state from one
process to another, ours, torchft's HTTPTransport and plain TCP in turn, in the same run;
plain TCP once through warm buffers, once from and into as much memory as the state.
"""

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

import msgspec
import torch

from benchmarks.peers import transfer, workload
from benchmarks.peers.command import scratch
from benchmarks.peers.runner import PeerFailed
from benchmarks.report import Report
from controlplane.protocol.rank import CaughtUp, StepReport
from tests.integration.trainer.cluster import Cluster
from tests.integration.trainer.node import Node

TIMEOUT_S = 180.0
POLL_S = 0.02
SETTLE_STEPS = 2
LOST = 2
STEPS = 1_000_000
GB = 1e9


@dataclass(slots=True)
class Rejoins:
    """Seconds of each step of a survivor: without the lost replica, while its next life starts
    its processes, and from the view that admits it to the step before its first contribution.
    What each joiner said."""

    alone: list[float] = field(default_factory=list)
    starting: list[float] = field(default_factory=list)
    joining: list[float] = field(default_factory=list)
    level: list[CaughtUp] = field(default_factory=list)


def rejoins(args: argparse.Namespace, directory: Path) -> Rejoins:
    """Lose a replica and take it back `args.rejoins` times. Raises PeerFailed."""
    base = workload.trainer_config(delay_s=args.delay_s, interval_steps=workload.NO_SAVES)
    config = msgspec.structs.replace(
        base,
        checkpoint_dir=str(directory / "checkpoints"),
        model=msgspec.structs.replace(base.model, hidden=args.hidden, layers=args.layers),
        training=msgspec.structs.replace(base.training, steps=STEPS, hash_every_steps=0),
    )
    node = Node(directory)
    try:
        cluster = Cluster(node, directory, config)
        try:
            cluster.start(*range(workload.REPLICAS))
            _wait(cluster, lambda: cluster.committed(0) > args.calm_steps, "start training")
            found = Rejoins()
            for life in range(1, args.rejoins + 1):
                _rejoin(cluster, life, args.calm_steps, found)
            return found
        finally:
            cluster.close()
    finally:
        node.close()


def _rejoin(cluster: Cluster, life: int, calm_steps: int, found: Rejoins) -> None:
    for rank in range(cluster.world):
        os.killpg(cluster.pids[LOST, life, rank], signal.SIGKILL)
    _wait(cluster, lambda: LOST not in cluster.members, "leave it out")
    calm_from = cluster.committed(0) + SETTLE_STEPS
    _wait(cluster, lambda: cluster.committed(0) > calm_from + calm_steps, "go on alone")
    calm_until, views = cluster.committed(0), len(cluster.views)
    cluster.start(LOST, incarnation=life + 1)
    _wait(cluster, lambda: _level(cluster, life + 1) is not None, "catch up")
    said = _level(cluster, life + 1)
    assert said is not None, "just seen"
    _wait(cluster, lambda: cluster.committed(0) > said.step + SETTLE_STEPS, "train together")
    joined_s = cluster.views[views][0]
    steps = _steps(cluster)
    joined = next(step for step, (at_s, _) in sorted(steps.items()) if at_s >= joined_s)
    found.alone += [steps[step][1] for step in range(calm_from, calm_until)]
    found.starting += [steps[step][1] for step in range(calm_until, joined)]
    found.joining += [steps[step][1] for step in range(joined, said.step)]
    found.level.append(said)


def _level(cluster: Cluster, incarnation: int) -> CaughtUp | None:
    with cluster.changed:
        said = [m for _, key, m in cluster.said if isinstance(m, CaughtUp) and key == (LOST, incarnation, 0)]
    return said[0] if said else None


def _steps(cluster: Cluster) -> dict[int, tuple[float, float]]:
    """Step to (when it was told of, seconds it took), by replica 0's first rank."""
    with cluster.changed:
        reports = [(at_s, m) for at_s, key, m in cluster.said if isinstance(m, StepReport) and key == (0, 1, 0)]
    return {report.step: (at_s, report.step_time_s) for at_s, report in reports}


def _wait(cluster: Cluster, claim: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not claim():
        if time.monotonic() > deadline_s:
            raise PeerFailed(f"did not {what} within {TIMEOUT_S:.0f} s:\n{cluster.logs()}")
        time.sleep(POLL_S)


def report_stall(report: Report, args: argparse.Namespace) -> None:
    """Rows of the survivors' steps and of the joiners."""
    with scratch("g8") as directory:
        found = rejoins(args, directory)
    step_s, level = median(found.alone), found.level
    extra = (sum(found.joining) - step_s * len(found.joining)) / step_s / args.rejoins
    report.add("survivor's step, alone", "s", found.alone)
    report.add("survivor's step, while processes of the joiner start", "s", found.starting)
    report.add("survivor's step, while it joins", "s", found.joining)
    shares = [time_s / step_s - 1.0 for time_s in found.joining]
    report.add("extra of a step while it joins", "of a step", shares, goal="<= 0.1")
    report.add("extra of all steps of one rejoin together", "of a step", [extra], goal="<= 0.1")
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
    kinds = ("hold", "torchft", "loop", "memory")
    best = {kind: max(value for name, value in rate.items() if name.startswith(kind)) for kind in kinds}
    report.add(f"{megabytes} MB: holdfast / torchft", "x", [best["hold"] / best["torchft"]], goal=">= 1.5")
    report.add(f"{megabytes} MB: holdfast / loopback", "x", [best["hold"] / best["loop"]], goal=">= 0.8")
    report.add(f"{megabytes} MB: holdfast / plain TCP, memory to memory", "x", [best["hold"] / best["memory"]])


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
