"""Rings of real ranks for the check: one rank a replica, the membership protocol of the trainer's
own tests, no control plane."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.gpu.part import Findings
from controlplane.protocol.rank import StepReport
from controlplane.protocol.spec import Checkpoint, Model, Parallelism, Training
from tests.integration.trainer.cluster import Cluster, tiny_config
from tests.integration.trainer.node import Node

STEPS = 30
CALM = 5


@contextmanager
def ring(folder: Path, *, replicas: int, cpu: bool, steps: int) -> Iterator[Cluster]:
    """`replicas` of one rank each, on the first card or on the CPU; it ends with the block."""
    small = Model(layers=2, hidden=64, heads=2, sequence_length=64)
    large = Model(layers=8, hidden=512, heads=8, sequence_length=512)
    config = tiny_config(
        folder,
        model=small if cpu else large,
        parallelism=Parallelism(pp=1),
        training=Training(steps=steps, global_batch=6, hash_every_steps=1),
        checkpoint=Checkpoint(interval_steps=0),
    )
    node = Node(folder)
    try:
        (folder / "cluster").mkdir()
        cluster = Cluster(node, folder / "cluster", config)
        # NCCL refuses two processes on one card.
        cluster.env = {} if cpu or replicas == 1 else {"HOLDFAST_OUTER_BACKEND": "gloo"}
        try:
            cluster.start(*range(replicas))
            yield cluster
        finally:
            cluster.close()
    finally:
        node.close()


def tell_steps(found: Findings, cluster: Cluster, what: str, *, since: int = CALM) -> None:
    """Time and parts of the steps from `since` on, by replica 0."""
    steps = [said for said in cluster.of(StepReport, 0, 0) if said.step >= since]
    ordered = sorted(said.step_time_s for said in steps)
    found.say(f"{what}: step, median (s)", ordered[len(ordered) // 2], f"n {len(ordered)}, max {ordered[-1]:.3g}")
    found.say(f"{what}: of it exchange, mean (s)", sum(said.exchange_s for said in steps) / len(steps))
