"""The trainer with one replica of one rank: on the card, and the same steps on the CPU beside it."""

import math
import os
import sys
import tempfile
from pathlib import Path

from benchmarks.gpu.part import Findings, run
from benchmarks.gpu.rings import STEPS, ring, tell_steps

FIRST_APART, LAST_APART = 1e-3, 5e-2
TIMEOUT_S = 110.0


def check(found: Findings, cpu: bool) -> None:
    """Losses fall, and on a card are those of the CPU within the arithmetic of both."""
    on_card = _losses(found, cpu=cpu, what="on the CPU" if cpu else "on the card")
    first, last = on_card[0], on_card[max(on_card)]
    found.say("loss of the first and the last step", f"{first:.4f} {last:.4f}")
    found.claim("the loss falls", last - first, holds=math.isfinite(last) and last < first)
    if cpu:
        return
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    beside = _losses(found, cpu=False, what="the same on the CPU", steps=4)
    apart = abs(beside[0] - first) / abs(beside[0])
    found.claim("first loss, card against CPU (relative)", apart, holds=apart <= FIRST_APART)
    common = max(set(beside) & set(on_card))
    apart = abs(beside[common] - on_card[common]) / abs(beside[common])
    found.claim(f"loss of step {common}, card against CPU (relative)", apart, holds=apart <= LAST_APART)


def _losses(found: Findings, *, cpu: bool, what: str, steps: int = STEPS) -> dict[int, float]:
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-gpu-") as folder,
        ring(Path(folder), replicas=1, cpu=cpu, steps=steps) as cluster,
    ):
        cluster.wait_all_done(TIMEOUT_S)
        tell_steps(found, cluster, what, since=1)
        return cluster.losses()


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], __doc__, check))
