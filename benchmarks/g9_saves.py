"""G9: what a save costs training, and how long an emergency save takes to be durable.

    python -m benchmarks g9 [--megabytes 600] [--rounds 5]

One rank with a state of that size saves through the trainer's own saver (asynchronous), its
local tier (on disk, in memory), and Megatron's savers (synchronous, asynchronous) in turn,
beside one memcpy and one plain write of the same bytes to the same disk. Each round does
all of them, so that a busy machine is busy for all.
"""

import argparse
import multiprocessing
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from benchmarks import crash_real
from benchmarks.processes import rendezvous_store
from benchmarks.report import Report
from controlplane.protocol import digests
from controlplane.protocol.spec import Checkpoint, LocalTier, Model, Training
from trainer import device
from trainer.checkpoint.local.memory import DEFAULT_ROOT

HIDDEN = 1024
BYTES_PER_LAYER = 12 * HIDDEN * HIDDEN * 12  # fp32: parameter and two moments


class _Durable:
    """Waits for the report of a save."""

    def __init__(self) -> None:
        self._told = threading.Event()
        self.state, self.error, self.blocking_s = "", "", 0.0

    def heard(self, message: Any) -> None:
        """The trainer's `send`."""
        if getattr(message, "state", "") in ("complete", "failed"):
            self.state, self.error, self.blocking_s = message.state, message.error, message.blocking_s
            self._told.set()

    def wait(self) -> None:
        """Raises RuntimeError when the save failed."""
        self._told.wait()
        self._told.clear()
        if self.state != "complete":
            raise RuntimeError(f"the save failed: {self.error}")


def _measure(folder: Path, memory: Path, store: str, layers: int, rounds: int, out: Path) -> None:
    """In the rank: every contestant in every round; the samples go to `out` as JSON."""
    config = crash_real.config_of(folder / "ours", store, hidden=HIDDEN, layers=layers)
    config = msgspec.structs.replace(
        config,
        model=Model(layers=layers, hidden=HIDDEN, heads=8, sequence_length=16),
        training=Training(steps=100, global_batch=1),
        checkpoint=Checkpoint(keep=1, local=LocalTier(dir=str(folder / "local"), copies=0, keep=1)),
    )
    engine, votes, tcp_store = crash_real.rank_of(config, 1)
    durable = _Durable()
    contestants = (
        _ours(engine, votes, tcp_store, config, durable)
        | _tier("ours, local tier", engine, tcp_store, config, durable)
        | _tier("ours, local tier in memory", engine, tcp_store, _in_memory(config, memory), durable)
        | _megatron(engine, folder)
    )
    contestants = _floor(engine, folder) | contestants
    samples: dict[str, list[float]] = {}
    for number in range(1, rounds + 2):
        for name, run in contestants.items():
            for suffix, seconds in run(number).items():
                # The first round makes buffers, plans and caches.
                if number > 1:
                    samples.setdefault(f"{name}{suffix}", []).append(seconds)
    samples["bytes"] = [float(sum(t.nbytes for t in engine.state()))]
    out.write_bytes(msgspec.json.encode(samples))


Contestants = dict[str, Callable[[int], dict[str, float]]]


def _floor(engine: Any, folder: Path) -> Contestants:
    """One memcpy, and one plain write with fsync, of the same bytes."""
    import torch

    state = engine.state()
    copies = [torch.zeros_like(tensor, device="cpu") for tensor in state]

    def memcpy(_: int) -> dict[str, float]:
        began_s = time.monotonic()
        for copy, tensor in zip(copies, state, strict=True):
            copy.copy_(tensor)
        return {"": time.monotonic() - began_s}

    def write(_: int) -> dict[str, float]:
        began_s = time.monotonic()
        with (folder / "plain").open("wb") as file:
            for copy in copies:
                file.write(copy.reshape(-1).view(torch.uint8).numpy().data)
            file.flush()
            os.fsync(file.fileno())
        took_s = time.monotonic() - began_s
        (folder / "plain").unlink()
        return {"": took_s}

    def digest(_: int) -> dict[str, float]:
        """Two threads, as the saver has here: what the digests alone cost."""
        pieces = [copy.reshape(-1).view(torch.uint8).numpy().data for copy in copies]
        began_s = time.monotonic()
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda piece: digests.digest_of([piece]), pieces))
        return {"": time.monotonic() - began_s}

    return {"one memcpy": memcpy, "plain write, fsync": write, "digests alone": digest}


def _ours(engine: Any, votes: Any, store: Any, config: Any, durable: _Durable) -> Contestants:
    from controlplane.protocol.launch import RankRef
    from trainer.checkpoint.fence import Fence
    from trainer.checkpoint.saver import SaveOrder, Saver

    ref = RankRef("job_bench", 1, 0, 1, 0)
    saver = Saver(ref, config, engine, votes=votes, fence=Fence(config.checkpoint_dir), store=store, send=durable.heard)

    def emergency(number: int) -> dict[str, float]:
        began_s = time.monotonic()
        saver.save(SaveOrder(step=number, epoch=1, kind="emergency", blocking=False))
        blocking_s = time.monotonic() - began_s
        durable.wait()
        return {", blocking": blocking_s, ", durable": time.monotonic() - began_s}

    return {"ours, asynchronous": emergency}


def _in_memory(config: Any, folder: Path) -> Any:
    tier = LocalTier(medium="memory", dir=str(folder), copies=0, keep=1)
    return msgspec.structs.replace(config, checkpoint=msgspec.structs.replace(config.checkpoint, local=tier))


def _tier(name: str, engine: Any, store: Any, config: Any, durable: _Durable) -> Contestants:
    from controlplane.protocol.launch import RankRef
    from trainer.checkpoint.local.tier import LocalOrder
    from trainer.checkpoint.local.tier import LocalTier as Tier

    ref = RankRef(f"job_{config.checkpoint.local.medium}", 1, 0, 1, 0)
    tier = Tier(ref, config, world=1, node="node0", host="127.0.0.1", store=store, send=durable.heard)

    def local(number: int) -> dict[str, float]:
        began_s = time.monotonic()
        tier.save(engine, LocalOrder(step=number, epoch=1, contributors=(0,)))
        blocking_s = time.monotonic() - began_s
        durable.wait()
        return {", blocking": blocking_s, ", durable": time.monotonic() - began_s}

    return {name: local}


def _megatron(engine: Any, folder: Path) -> Contestants:
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing.strategies import filesystem_async
    from megatron.core.dist_checkpointing.strategies.async_utils import AsyncCallsQueue

    from trainer.checkpoint.state import sharded_state

    results = multiprocessing.get_context("fork").Manager().Queue()
    calls = AsyncCallsQueue(persistent=False)

    def save(number: int, *, asynchronous: bool) -> dict[str, float]:
        path = folder / f"megatron-{number}-{asynchronous}"
        path.mkdir()
        ours, filesystem_async._results_queue = filesystem_async._results_queue, results
        began_s = time.monotonic()
        request = dist_checkpointing.save(
            sharded_state(engine, number, loading=False), str(path), async_sharded_save=asynchronous
        )
        if request is not None:
            calls.schedule_async_request(request)
        blocking_s = time.monotonic() - began_s
        calls.maybe_finalize_async_calls(blocking=True)
        took_s = time.monotonic() - began_s
        filesystem_async._results_queue = ours
        shutil.rmtree(path)
        return {", blocking": blocking_s} | ({", durable": took_s} if asynchronous else {})

    return {
        "Megatron, synchronous": lambda number: save(number, asynchronous=False),
        "Megatron, asynchronous": lambda number: save(number, asynchronous=True),
    }


def main(argv: list[str]) -> int:
    """0 when both goals are met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=600, help="state of the rank, about")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=None, help="on the disk to measure; default: temporary")
    options = parser.parse_args(argv)
    layers = max(1, round(options.megabytes * 1e6 / BYTES_PER_LAYER))
    device.prepare_import()
    import trainer.assemble  # noqa: F401

    with (
        rendezvous_store() as address,
        tempfile.TemporaryDirectory(dir=options.folder) as name,
        tempfile.TemporaryDirectory(dir=DEFAULT_ROOT) as memory,
    ):
        folder, out = Path(name), Path(name) / "samples.json"
        pid = crash_real.fork(lambda: _measure(folder, Path(memory), address, layers, options.rounds, out), group=True)
        _, status = os.waitpid(pid, 0)
        if status:
            print("the rank failed; its traceback is above", file=sys.stderr)
            return 1
        samples = msgspec.json.decode(out.read_bytes(), type=dict[str, list[float]])
    return _report(samples)


def _report(samples: dict[str, list[float]]) -> int:
    report = Report(goal_id="G9", title="blocking time of a save; emergency save accepted to durable")
    report.facts["state"] = f"{samples.pop('bytes')[0] / 1e6:.0f} MB in one rank; CPU, fork for the snapshot"
    copy_s, disk_s = median(samples["one memcpy"]), median(samples["plain write, fsync"])
    ours = samples["ours, asynchronous, blocking"]
    durable = max(samples["ours, asynchronous, durable"])
    goals = {"ours, asynchronous, blocking": "<= 1.2 x memcpy", "ours, asynchronous, durable": "max <= 2 x disk"}
    for name, values in samples.items():
        base_s = copy_s if name.endswith("blocking") else disk_s
        what = "memcpy" if name.endswith("blocking") else "disk"
        note = f"{median(values) / base_s:.2f} x {what}" if "," in name and name != "plain write, fsync" else ""
        report.add(name, "s", values, goal=goals.get(name, ""), note=note)
    slowest_s = max(samples["plain write, fsync"])
    report.facts["slowest emergency save"] = (
        f"{durable / disk_s:.2f} x the median plain write, {durable / slowest_s:.2f} x the slowest one"
    )
    report.finish()
    return int(median(ours) > 1.2 * copy_s or durable > 2 * disk_s)
