"""Two replicas of one rank share the card; one is killed and comes back from the other's state."""

import os
import signal
import sys
import tempfile
from pathlib import Path

from benchmarks.gpu.part import Findings, run
from benchmarks.gpu.rings import CALM, ring, tell_steps
from controlplane.protocol.rank import CaughtUp
from tests.integration.trainer.cluster import Cluster

ENDLESS = 100_000
TIMEOUT_S = 120.0


def check(found: Findings, cpu: bool) -> None:
    """No step is lost, and both replicas have the same parameters after it."""
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-gpu-") as folder,
        ring(Path(folder), replicas=2, cpu=cpu, steps=ENDLESS) as cluster,
    ):
        cluster.wait_committed(3 * CALM, 0, 1, timeout_s=TIMEOUT_S)
        tell_steps(found, cluster, "two replicas")
        os.kill(cluster.pids[1, 1, 0], signal.SIGKILL)
        cluster.wait_gone((1, 1, 0), timeout_s=TIMEOUT_S)
        killed_at = cluster.committed(0)
        cluster.wait_committed(killed_at + 2 * CALM, 0, timeout_s=TIMEOUT_S)
        tell_steps(found, cluster, "alone", since=killed_at + 2)
        cluster.start(1, incarnation=2)
        cluster.wait(lambda: bool(cluster.of(CaughtUp, 1)), "catch up", TIMEOUT_S)
        level = cluster.of(CaughtUp, 1)[0]
        cluster.wait_committed(level.step + 3 * CALM, 0, 1, timeout_s=TIMEOUT_S)
        tell_steps(found, cluster, "together again", since=level.step + 2)
        found.say("catch-up: fetched (MB)", level.fetch_bytes / 1e6, f"{level.fetch_s:.3g} s")
        found.say("catch-up: steps replayed", level.replayed_steps)
        _judge(found, cluster, level.step)


def _judge(found: Findings, cluster: Cluster, joined: int) -> None:
    losses, hashes, ledger = cluster.losses(), cluster.hashes(), cluster.ledger()
    lost = sorted(set(range(max(losses))) - set(losses))
    found.claim("steps without a loss", len(lost), holds=not lost, note=f"of {max(losses) + 1}")
    after = {key: said for key, said in hashes.items() if key[0] > joined}
    differ = [key for key, said in hashes.items() if len(said) != 1]
    found.claim(
        "steps whose parameters differ between replicas", len(differ), holds=not differ and bool(after),
        note=f"of {len(hashes)} compared, {len(after)} of them after the return",
    )  # fmt: skip
    whole = [sorted(trained) for trained in ledger.values()]
    held = all(trained == list(range(trained[0], trained[0] + 6)) for trained in whole if trained)
    found.claim("every micro-batch once in each step", len(whole), holds=held and all(whole))


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], __doc__, check))
