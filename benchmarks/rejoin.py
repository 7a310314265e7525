"""What a replica's restart is made of, and what its living ranks would save by staying.

    python -m benchmarks rejoin [--rejoins 10]

A ring of real ranks (three replicas of two pipeline stages, the membership protocol without
backend and agents) loses a rank; its replica ends and starts again, `--rejoins` times, while
the others train on. Ranks that stayed in their processes would save the forks alone: the
groups, the model and the state of the step that the others have reached are due either way.
"""

import argparse
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

from benchmarks.peers import workload
from benchmarks.peers.command import scratch
from benchmarks.report import Report
from benchmarks.small_ring import LOST, endless, training, wait
from controlplane.protocol.rank import CaughtUp, RankForked, RankHello
from tests.integration.trainer.cluster import Cluster

_wait = partial(wait, poll_s=0.002)
PHASES = (
    "killed -> last process of the replica reaped",
    "ordered -> all ranks forked",
    "forked -> all ranks have groups and model",
    "groups and model -> whole state, at the boundary",
)


def measure(args: argparse.Namespace, directory: Path) -> list[tuple[float, ...]]:
    """Seconds of each phase of each rejoin. Raises PeerFailed."""
    config = endless(workload.trainer_config(delay_s=args.delay_s, interval_steps=workload.NO_SAVES), directory)
    forked: dict[tuple[int, int, int], float] = {}

    def on_host(message: object) -> None:
        if isinstance(message, RankForked):
            forked[message.ref.replica, message.ref.incarnation, message.ref.rank] = time.monotonic()

    with training(Cluster, directory, config, calm_steps=args.calm_steps) as cluster:
        cluster.on_host = on_host
        return [_rejoin(cluster, life, args.calm_steps, forked) for life in range(1, args.rejoins + 1)]


def _rejoin(
    cluster: Cluster, life: int, calm_steps: int, forked: dict[tuple[int, int, int], float]
) -> tuple[float, ...]:
    keys = [(LOST, life, rank) for rank in range(cluster.world)]
    killed_s = time.monotonic()
    os.killpg(cluster.pids[keys[-1]], signal.SIGKILL)
    _wait(cluster, lambda: all(key in cluster.gone for key in keys), "end it")
    reaped_s = time.monotonic()
    following = [(LOST, life + 1, rank) for rank in range(cluster.world)]
    ordered_s = time.monotonic()
    cluster.start(LOST, incarnation=life + 1)
    level = (LOST, life + 1, 0)
    _wait(cluster, lambda: _said(cluster, CaughtUp, [level]) is not None, "catch up")
    up_s, level_s = _said(cluster, RankHello, following), _said(cluster, CaughtUp, [level])
    assert up_s is not None, "they say hello first"
    assert level_s is not None, "just seen"
    forked_s = max(forked[key] for key in following)
    step = cluster.committed(0)
    _wait(cluster, lambda: cluster.committed(0) > step + calm_steps, "train together")
    return reaped_s - killed_s, forked_s - ordered_s, up_s - forked_s, level_s - up_s


def _said(cluster: Cluster, kind: type, keys: list[tuple[int, int, int]]) -> float | None:
    """When the last of `keys` said it; None before."""
    with cluster.changed:
        first: dict[tuple[int, int, int], float] = {}
        for at_s, key, message in cluster.said:
            if isinstance(message, kind) and key in keys:
                first.setdefault(key, at_s)
    return max(first.values()) if len(first) == len(keys) else None


def main(argv: list[str]) -> int:
    """0 when everything was measured."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rejoins", type=int, default=10)
    options.add_argument("--calm-steps", type=int, default=4, help="steps of all replicas between two losses")
    options.add_argument("--delay-s", type=float, default=workload.DELAY_S, help="sleep added to each micro-batch")
    args = options.parse_args(argv)
    report = Report(goal_id="rejoin", title="a replica's restart, phase by phase")
    with scratch("rejoin") as directory:
        found = measure(args, directory)
    for place, phase in enumerate(PHASES):
        report.add(phase, "s", [times[place] for times in found])
    saved = [times[1] / sum(times[1:]) for times in found]
    report.add("the forks' share from order to whole state", "ratio", saved)
    report.facts["caveat"] = "CPU: a forked child has no CUDA context to make; on a GPU that is part of the fork's cost"
    report.finish()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
