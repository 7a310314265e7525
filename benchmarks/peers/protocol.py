"""Holdfast's trainer without its control plane: what the membership protocol alone costs.

    python -m benchmarks.peers.protocol --kills 5 --json OUT

Real ranks, forks, sockets and gloo, with the membership authority of the trainer's own
tests (`tests.integration.trainer.cluster`) in this process instead of agents and backend.
The difference to `benchmarks.peers.holdfast` is the way through agent, database and policy.
"""

import argparse
import os
import random
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from benchmarks.outages import Kill, alone_step_s, is_full_again, normal_step_s, outage, progress
from benchmarks.peers import workload
from benchmarks.peers.command import finish, parser, scratch
from benchmarks.peers.runner import PeerFailed, Result
from benchmarks.records import Record
from controlplane.protocol.rank import StepReport
from tests.integration.trainer.cluster import Cluster
from tests.integration.trainer.node import Node

TIMEOUT_S = 120.0
POLL_S = 0.02


def measure(args: argparse.Namespace, directory: Path) -> Result:
    """Train, kill `args.kills` ranks one at a time, start each replica again. Raises PeerFailed."""
    chance = random.Random(args.seed)
    folder = directory / "cluster"
    folder.mkdir(parents=True)
    config = msgspec.structs.replace(
        workload.trainer_config(delay_s=args.delay_s, interval_steps=workload.NO_SAVES),
        checkpoint_dir=str(directory / "checkpoints"),
    )
    node = Node(directory)
    try:
        cluster = Cluster(node, folder, config)
        try:
            return _run(cluster, args, chance)
        finally:
            cluster.close()
    finally:
        node.close()


def _run(cluster: Cluster, args: argparse.Namespace, chance: random.Random) -> Result:
    cluster.start(*range(workload.REPLICAS))
    _wait(cluster, lambda found: len(_full(found, 0.0)) > args.calm_steps + 2, "start training")
    normal_s = normal_step_s([item for item in records(cluster) if item.step > 2], until_s=time.monotonic())
    lives = dict.fromkeys(range(workload.REPLICAS), 1)
    kills = []
    for _ in range(args.kills):
        kill = _kill_one(cluster, lives, chance, normal_s)
        kills.append(kill)

        def calm(found: list[Record], kill: Kill = kill) -> bool:
            full_at_s = is_full_again(found, kill, replicas=workload.REPLICAS)
            return full_at_s is not None and len(_full(found, full_at_s)) > args.calm_steps

        _wait(cluster, calm, "recover")
    alone_s = _alone_s(cluster, lives)
    found = records(cluster)
    outages = [outage(found, kill, replicas=workload.REPLICAS, normal_s=normal_s, alone_s=alone_s) for kill in kills]
    return Result(
        name="holdfast protocol",
        normal_s=normal_s,
        outages=[item for item in outages if item is not None],
        losses={item.step: item.loss for item in found if item.loss is not None and item.step <= args.calm_steps},
        facts={
            "control plane": "none: exits are seen by the rank host, membership is decided in the benchmark",
            "a step with a replica less, undisturbed (s)": round(alone_s, 4),
        },
    )


def records(cluster: Cluster) -> list[Record]:
    """The ranks' step reports in the form that the peers write; only steps that every
    contributor has told of."""
    with cluster.changed:
        said = [(at_s, key, item) for at_s, key, item in cluster.said if isinstance(item, StepReport)]
        pids = dict(cluster.pids)
    contributors: dict[int, set[int]] = defaultdict(set)
    for _, key, item in said:
        if item.micro_batches:
            contributors[item.step].add(key[0])
    newest = max(contributors, default=0)
    return [
        Record(
            kind="step", at_s=at_s, replica=key[0], rank=key[2], pid=pids[key], ticks=0, step=item.step + 1,
            contributors=len(contributors[item.step]), loss=item.loss,
        )
        for at_s, key, item in said
        if item.step < newest
    ]  # fmt: skip


def _kill_one(cluster: Cluster, lives: dict[int, int], chance: random.Random, normal_s: float) -> Kill:
    """SIGKILL a random rank in mid-step; its replica starts anew once all of it is gone."""
    replica, rank = chance.randrange(workload.REPLICAS), chance.randrange(workload.PIPELINE)
    seen = len(progress(records(cluster)))
    _wait(cluster, lambda found: len(progress(found)) > seen, "commit")
    time.sleep(chance.uniform(0.2, 0.8) * normal_s)
    pid = cluster.pids[replica, lives[replica], rank]
    at_s = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    cluster.wait_gone(*[(replica, lives[replica], index) for index in range(workload.PIPELINE)], timeout_s=TIMEOUT_S)
    lives[replica] += 1
    cluster.start(replica, incarnation=lives[replica])
    return Kill(at_s=at_s, replica=replica, rank=rank, pid=pid)


def _alone_s(cluster: Cluster, lives: dict[int, int]) -> float:
    """Median gap of undisturbed steps with a replica less, which does not come back."""
    replica = workload.REPLICAS - 1
    os.kill(cluster.pids[replica, lives[replica], 0], signal.SIGKILL)
    alone = partial(alone_step_s, replicas=workload.REPLICAS)
    _wait(cluster, lambda found: alone(found) is not None, "train with fewer replicas")
    found_s = alone(records(cluster))
    assert found_s is not None, "it does not come back"
    return found_s


def _full(found: list[Record], since_s: float) -> list[Record]:
    return [item for item in progress(found) if item.at_s > since_s and item.contributors == workload.REPLICAS]


def _wait(cluster: Cluster, claim: Callable[[list[Record]], bool], what: str) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline_s:
        if claim(records(cluster)):
            return
        time.sleep(POLL_S)
    raise PeerFailed(f"did not {what} within {TIMEOUT_S:.0f} s:\n{cluster.logs()}")


def main(argv: list[str]) -> int:
    """Command line."""
    args = parser(__doc__).parse_args(argv)
    with scratch("protocol") as directory:
        return finish(measure(args, directory), args)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
