"""Does this checkpoint read back, and does it load? `python -m trainer.checkpoint.examine`.

    --path P --job-id J --step N --epoch E --out verdict.json [--config FILE | --keep DIR --max-bytes N]
    [--limit-s S]

Started by the control plane's worker in a sandbox, with a limit. Compares every file with the
marker and, where FILE (a `TrainerConfig` of one rank) is given, loads the checkpoint from its
directory into a model: any layout into one rank. From an object store nothing is loaded: it is
fetched to DIR, where it may have N bytes, and loaded from there by a second call without the
store's credentials. The verdict is a JSON object: `ok` true, false, or null where nothing can
be said from here; `loaded`; `detail` for people.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

import msgspec

from controlplane.protocol.launch import RankRef, TrainerConfig
from controlplane.protocol.spec import Parallelism
from trainer.checkpoint import manifest
from trainer.checkpoint.fetching import fetch
from trainer.checkpoint.storage import LocalStorage, storage_at
from trainer.errors import CheckpointFault
from trainer.priority import step_aside

DEFAULT_LIMIT_S = 300


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """`ok` None: nothing can be said from here. `took_s`: reading, and loading where it was, seconds."""

    ok: bool | None
    detail: str
    loaded: bool = False
    took_s: float | None = None


class OutOfTime(Exception):
    """The limit is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Which checkpoint, and what beside reading it back: load it (`config`), or fetch it to the
    directory `keep` if it has `max_bytes` or less."""

    path: str
    job_id: str
    step: int
    epoch: int
    config: TrainerConfig | None = None
    keep: Path | None = None
    max_bytes: int = 0


def examine(task: Task) -> Verdict:
    """Read it back; load it or fetch it as well, as the task says. Where the storage or its driver fails, nothing
    is said of the checkpoint. Raises OutOfTime from the alarm."""
    try:
        return _judge(task)
    except CheckpointFault as error:
        return Verdict(ok=False, detail=str(error))
    except (OSError, ValueError) as error:
        return Verdict(ok=None, detail=f"it cannot be read from here: {error}")


def _judge(task: Task) -> Verdict:
    place = storage_at(task.path)
    if isinstance(place, LocalStorage) and not place.path.is_dir():
        return Verdict(ok=None, detail=f"{task.path} is not visible from here")
    content = manifest.read_marker(place)
    wanted = (task.job_id, task.step, task.epoch)
    if content is not None and (content.job_id, content.step, content.epoch) != wanted:
        return Verdict(
            ok=False, detail=f"its marker is of step {content.step}, epoch {content.epoch}, {content.job_id}"
        )
    if content is not None and task.keep is not None:
        if content.total_bytes > task.max_bytes:
            return Verdict(ok=False, detail=f"its marker names {content.total_bytes} bytes, not {task.max_bytes}")
        fetch(task.path, task.keep, life=0)
        return Verdict(ok=True, detail=f"{len(content.files)} files fetched and compared")
    verdict = manifest.verify(place)
    if not verdict.ok or content is None:
        return Verdict(ok=False, detail="; ".join(verdict.faults))
    read = f"{len(content.files)} files read back equal"
    return Verdict(ok=True, detail=read) if task.config is None else _load(Path(task.path), task.config, read)


def _load(path: Path, config: TrainerConfig, read: str) -> Verdict:
    try:
        import torch
    except ImportError:
        return Verdict(ok=True, detail=f"{read}; whether it loads is unknown: torch is not installed here")
    from trainer import device
    from trainer.checkpoint.state import load
    from trainer.config import RankSettings
    from trainer.control.faults import Faults
    from trainer.engine import Engine
    from trainer.parallel import enter_inner_world

    device.prepare_import()
    my_device = device.activate(0)
    settings = RankSettings(
        ref=RankRef("examine", 1, 0, 1, 0),
        world_size=1,
        device_index=0,
        agent_socket="",
        config=msgspec.structs.replace(config, parallelism=Parallelism()),
    )
    enter_inner_world(settings, torch.distributed.HashStore())
    engine = Engine(settings.config, my_device, Faults(allowed=False))
    try:
        step = load(engine, path)
    except CheckpointFault as error:
        return Verdict(ok=False, detail=f"it does not load: {error}")
    state = engine.state()
    if not all(bool(torch.isfinite(tensor).all()) for tensor in state):
        return Verdict(ok=False, detail=f"it loads, but not every number of step {step} is finite")
    size = sum(tensor.nbytes for tensor in state)
    return Verdict(ok=True, loaded=True, detail=f"{read}; loaded into one rank, {size} bytes, all finite")


def _out_of_time(_number: int, _frame: FrameType | None) -> NoReturn:
    raise OutOfTime


def main() -> None:
    """Writes the verdict in one piece, whatever happens."""
    parser = argparse.ArgumentParser(description="Reads a checkpoint back and tries to load it.")
    parser.add_argument("--path", required=True)
    parser.add_argument("--job-id", required=True)
    parser.add_argument("--step", type=int, required=True)
    parser.add_argument("--epoch", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--config", type=Path)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--max-bytes", type=int, default=0)
    parser.add_argument("--limit-s", type=int, default=DEFAULT_LIMIT_S)
    options = parser.parse_args()
    step_aside()
    signal.signal(signal.SIGALRM, _out_of_time)
    signal.alarm(options.limit_s)
    config = msgspec.json.decode(options.config.read_bytes(), type=TrainerConfig) if options.config else None
    began_s = time.monotonic()
    try:
        verdict = examine(
            Task(
                path=options.path,
                job_id=options.job_id,
                step=options.step,
                epoch=options.epoch,
                config=config,
                keep=options.keep,
                max_bytes=options.max_bytes,
            )
        )
    except OutOfTime:
        verdict = Verdict(ok=None, detail=f"not read and loaded within {options.limit_s} s")
    except Exception as error:  # Not the checkpoint's fault as far as is known: out of memory, a broken driver.
        verdict = Verdict(ok=None, detail=f"the examination failed: {type(error).__name__}: {error}")
    timed = msgspec.structs.replace(verdict, took_s=time.monotonic() - began_s)
    LocalStorage(options.out.parent).write(options.out.name, msgspec.json.encode(timed))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
