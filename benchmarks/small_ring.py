"""A ring of real ranks that benchmarks break: three replicas of two pipeline stages, the
membership protocol without backend and agents.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from benchmarks.peers import workload
from benchmarks.peers.runner import PeerFailed
from controlplane.protocol.launch import TrainerConfig
from tests.integration.trainer.cluster import Cluster
from tests.integration.trainer.node import Node

TIMEOUT_S = 180.0
LOST = 2
"""The replica that is lost and comes back."""
STEPS = 1_000_000
Kind = TypeVar("Kind", bound=Cluster)


def endless(config: TrainerConfig, directory: Path) -> TrainerConfig:
    """The same job without an end, its checkpoints in `directory`."""
    training = msgspec.structs.replace(config.training, steps=STEPS)
    return msgspec.structs.replace(config, checkpoint_dir=str(directory / "checkpoints"), training=training)


@contextmanager
def training(kind: type[Kind], directory: Path, config: TrainerConfig, *, calm_steps: int) -> Iterator[Kind]:
    """A ring that has trained more than `calm_steps`; it ends with the block. Raises PeerFailed."""
    node = Node(directory)
    try:
        ring = kind(node, directory, config)
        try:
            ring.start(*range(workload.REPLICAS))
            wait(ring, lambda: ring.committed(0) > calm_steps, "start training", poll_s=0.2)
            yield ring
        finally:
            ring.close()
    finally:
        node.close()


def wait(ring: Cluster, claim: Callable[[], bool], what: str, *, poll_s: float) -> None:
    """Until `claim` holds. A look at the ring takes time from its membership authority, so
    `poll_s` is as long as the question allows. Raises PeerFailed."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while not claim():
        if time.monotonic() > deadline_s:
            raise PeerFailed(f"did not {what} within {TIMEOUT_S:.0f} s:\n{ring.logs()}")
        time.sleep(poll_s)
