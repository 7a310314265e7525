"""A donor's copy of its state while the device goes on computing, and a joiner's way back in.

The copy is the trainer's own (`trainer.replica.snapshot`): on a GPU on a stream of its own,
after an event of the stream that computes. What was copied must be the state at that event,
though the state is overwritten as soon as the copy is through.
"""

import sys
import time

import torch

from benchmarks.gpu.part import Findings, run
from trainer import device
from trainer.replica.snapshot import Snapshot, Target

TENSORS, NUMBERS, CPU_NUMBERS = 8, 16 * 1024 * 1024, 256 * 1024
SIZE, CPU_SIZE, PRODUCTS = 8192, 256, 40


def check(found: Findings, cpu: bool) -> None:
    """Copy beside products; then into other tensors, compared bit by bit."""
    my_device = device.activate(0)
    numbers, size = (CPU_NUMBERS, CPU_SIZE) if cpu else (NUMBERS, SIZE)
    state = [torch.randn(numbers, device=my_device) for _ in range(TENSORS)]
    factor = torch.randn(size, size, device=my_device, dtype=torch.float32 if cpu else torch.bfloat16)
    alone_s = _products_s(factor)
    device.synchronize()
    expected = [tensor.clone() for tensor in state]
    device.synchronize()
    snapshot = Snapshot(step=7)
    after = None if cpu else torch.cuda.current_stream().record_event()
    began_s = time.perf_counter()
    if not cpu:
        for _ in range(PRODUCTS):
            factor @ factor
        queued_s = time.perf_counter() - began_s
        found.say("queueing the products took (s)", queued_s, "the device works on")
    snapshot.take(state, after=after)
    copied_s = time.perf_counter() - began_s
    device.synchronize()
    beside_s = time.perf_counter() - began_s if not cpu else alone_s
    snapshot.seal()
    bytes_copied = snapshot.memory.numel()
    found.say("state (MB)", bytes_copied / 1e6)
    found.say("copy to host memory (s)", copied_s, f"{bytes_copied / 1e9 / copied_s:.1f} GB/s")
    if not cpu:
        found.say("products alone (s)", alone_s)
        found.say("products beside the copy, and the copy (s)", beside_s)
        found.claim(
            "the copy hides behind the products", copied_s, holds=beside_s < alone_s + 0.9 * copied_s,
            note=f"together {beside_s:.3f} s, one after the other {alone_s + copied_s:.3f} s",
        )  # fmt: skip
        found.claim("host memory is pinned", snapshot.memory.is_pinned(), holds=snapshot.memory.is_pinned())
    for tensor in state:
        tensor.zero_()
    arrived = [torch.empty_like(tensor) for tensor in state]
    target = Target(arrived)
    index = target.read_index(snapshot.index or b"", 7)
    began_s = time.perf_counter()
    for number in range(index.chunks):
        target.put(number * index.chunk_bytes, snapshot.chunks(number, 1))
    device.synchronize()
    found.say("into the joiner's tensors (s)", time.perf_counter() - began_s)
    same = all(torch.equal(one, other) for one, other in zip(expected, arrived, strict=True))
    found.claim("the state at the event arrives bit by bit", same, holds=same)


def _products_s(factor: torch.Tensor) -> float:
    factor @ factor
    device.synchronize()
    began_s = time.perf_counter()
    for _ in range(PRODUCTS):
        factor @ factor
    device.synchronize()
    return time.perf_counter() - began_s


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], __doc__, check))
