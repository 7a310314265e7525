"""The undisturbed run's losses: `python -m trainer.reference --config FILE --out losses.json`.

FILE is a `TrainerConfig` in JSON; `--seconds` bounds the training, and what was trained until then
is told: losses of a part of the steps are a proof of that part. One replica of the same layout computes every
micro-batch of every step through the same engine; no views, no other replicas. With
`resume` in the config it goes on from that checkpoint, in any layout. It is
deterministic: two runs on one machine give the same bytes. A run with any membership
history must agree with it to `TOLERANCE` in each step's loss; the two differ only in the
order in which fp32 micro-batch gradients are summed.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import socket
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from controlplane.protocol.launch import RankRef, TrainerConfig
from controlplane.protocol.spec import ranks_per_replica
from trainer import device
from trainer.checkpoint import manifest
from trainer.config import RankSettings, check
from trainer.errors import TrainerError
from trainer.priority import end_with_parent, step_aside

if TYPE_CHECKING:
    import torch

TOLERANCE = 1e-5
"""Absolute, on the mean loss per token, for fp32 (1e-2 for bf16)."""
STORE_TIMEOUT_S = 60.0


class Losses(msgspec.Struct, frozen=True):
    """`losses[i]` is the mean loss per token of step `first_step + i`; `tolerance` is absolute."""

    losses: list[float]
    tolerance: float
    first_step: int = 0


class Keep(msgspec.Struct, frozen=True):
    """Write the state after `step` committed steps to the directory `path`, as a checkpoint of its own."""

    step: int
    path: str


class Until(msgspec.Struct, frozen=True):
    """Train up to `steps` committed steps (None: all of the job's), and begin none after `train_s`
    seconds of training (None: however long it takes)."""

    steps: int | None = None
    train_s: float | None = None


WHOLE = Until()


def reference_losses(config: TrainerConfig, *, until: Until = WHOLE, keep: Keep | None = None) -> Losses:
    """Fork the ranks of one replica and collect the losses `until` it is to end.

    What the config resumes from is compared with its marker before any of it is parsed. Raises
    TrainerError when that differs, or a rank fails. The caller must not have threads that hold locks.
    """
    world_size = ranks_per_replica(config.parallelism)
    check(config, world_size)
    if config.resume is not None and (faults := manifest.verify(config.resume.path).faults):
        raise TrainerError(f"reference run: {config.resume.path}: {'; '.join(faults)}")
    port = _free_port()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "losses.json"
        parent = os.getpid()
        store = os.fork()
        if store == 0:
            end_with_parent(parent)
            _serve_store(port)
        ranks = [_fork_rank(config, world_size, rank, port, until, keep, out) for rank in range(world_size)]
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks]
        os.kill(store, 15)
        os.waitpid(store, 0)
        if any(codes):
            raise TrainerError(f"reference run: ranks ended with {codes}")
        return msgspec.json.decode(out.read_bytes(), type=Losses)


def _serve_store(port: int) -> None:
    import signal

    from torch.distributed import TCPStore

    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    signal.pause()
    del store
    os._exit(0)


def _fork_rank(
    config: TrainerConfig, world_size: int, rank: int, port: int, until: Until, keep: Keep | None, out: Path
) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        end_with_parent(parent)
        settings = RankSettings(
            ref=RankRef("reference", 1, 0, 1, rank),
            world_size=world_size,
            device_index=rank,
            agent_socket="",
            config=msgspec.structs.replace(config, store=f"127.0.0.1:{port}"),
        )
        _run_rank(settings, until, keep, out)
        code = 0
    except BaseException:  # The child ends here; the parent reports the code.
        import traceback

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _run_rank(settings: RankSettings, until: Until, keep: Keep | None, out: Path) -> None:
    import torch.distributed as dist

    from trainer.checkpoint.state import load, save
    from trainer.control.faults import Faults
    from trainer.engine import Engine
    from trainer.parallel import enter_inner_world

    my_device = device.activate(settings.device_index)
    host, _, port = settings.config.store.rpartition(":")
    store = dist.TCPStore(
        host, int(port), is_master=False, wait_for_workers=False, timeout=timedelta(seconds=STORE_TIMEOUT_S)
    )
    enter_inner_world(settings, store)
    engine = Engine(settings.config, my_device, Faults(allowed=False))
    resume = settings.config.resume
    first = load(engine, Path(resume.path)) if resume else 0
    everything = range(settings.micro_batch_count)
    losses: list[float] = []
    began_s = time.monotonic()
    for step in range(first, settings.config.training.steps if until.steps is None else until.steps):
        if until.train_s is not None and _any(time.monotonic() - began_s >= until.train_s, my_device):
            break
        engine.clear()
        engine.compute(step, everything)
        applied = engine.apply(engine.stage(everything, leaving=[False]))
        if applied.loss is not None:
            losses.append(applied.loss)
        if keep is not None and step + 1 == keep.step:
            save(engine, step + 1, Path(keep.path))
            if settings.ref.rank == 0:
                _mark(settings.config, keep)
    if settings.ref.rank == settings.world_size - 1:
        tolerance = TOLERANCE if settings.config.training.dtype == "fp32" else 1e-2
        out.write_bytes(msgspec.json.encode(Losses(losses, tolerance, first)))
    dist.barrier()


def _any(flag: bool, on: "torch.device") -> bool:
    """One rank says so: all of them end at the same step."""
    import torch
    import torch.distributed as dist

    flags = torch.tensor([float(flag)], device=on)
    dist.all_reduce(flags, op=dist.ReduceOp.MAX)
    return bool(flags.item() > 0)


def _mark(config: TrainerConfig, keep: Keep) -> None:
    files = manifest.describe_files(keep.path)
    content = manifest.Manifest(
        job_id="reference",
        attempt=1,
        epoch=1,
        step=keep.step,
        kind="reference",
        layout=manifest.layout_of(config),
        consumed_samples=keep.step * config.training.global_batch,
        files=files,
    )
    manifest.write_marker(keep.path, content)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    """Prints where the losses went."""
    parser = argparse.ArgumentParser(description="Losses of the undisturbed run of a job.")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--seconds", type=float, default=None, help="of training; then it ends where it is")
    options = parser.parse_args()
    step_aside()
    device.prepare_import()
    config = msgspec.json.decode(options.config.read_bytes(), type=TrainerConfig)
    losses = reference_losses(config, until=Until(options.steps, options.seconds))
    options.out.write_bytes(msgspec.json.encode(losses))
    print(f"{len(losses.losses)} losses in {options.out}", flush=True)


if __name__ == "__main__":
    main()
