"""The trainer's own stopwatch beside a clock around work that is waited for.

On a GPU: CUDA events. Without one: the training thread's processor time.
"""

import sys
import time
from functools import partial

import torch

from benchmarks.gpu.part import Findings, run
from trainer import device
from trainer.stopwatch import stopwatch_for

LAPS, PRODUCTS, SIZE, CPU_SIZE = 20, 20, 4096, 192
APART = 0.1


def check(found: Findings, cpu: bool) -> None:
    """The same products, timed both ways; then with a wait of the host inside, which is nobody's work."""
    my_device = device.activate(0)
    size = CPU_SIZE if cpu else SIZE
    left = torch.randn(size, size, device=my_device)
    right = torch.randn(size, size, device=my_device)
    watch = stopwatch_for(my_device, pipeline_stages=1)
    work = partial(_products, left, right)
    for _ in range(3):
        work()
    device.synchronize()
    watched_s = clock_s = 0.0
    for _ in range(LAPS):
        began_s = time.perf_counter()
        with watch.schedule():
            work()
        device.synchronize()
        clock_s += time.perf_counter() - began_s
        watched_s += watch.take() or 0.0
    found.say("stopwatch", type(watch).__name__)
    found.say(f"{LAPS} laps by the clock (s)", clock_s)
    # Processor time is never more than the clock's; on a machine with other work it is less.
    holds = 0.0 < watched_s <= clock_s * (1.0 + APART) and (cpu or watched_s >= clock_s * (1.0 - APART))
    found.claim(f"{LAPS} laps by the stopwatch (s)", watched_s, holds=holds)
    with watch.schedule():
        work()
        if cpu:
            time.sleep(0.2)
    device.synchronize()
    lap_s = watch.take() or 0.0
    found.claim("a lap beside which the host sleeps (s)", lap_s, holds=lap_s < clock_s / LAPS + 0.1)


def _products(left: torch.Tensor, right: torch.Tensor) -> None:
    for _ in range(PRODUCTS):
        left @ right


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], __doc__, check))
