"""Examinations: what takes a process of its own, that of `trainer.checkpoint.examine`.

Loading a checkpoint needs torch, reading one of an object store its driver; both take long.
The worker starts the program, at low priority and with a limit, and looks again when the
row's deadline says so; the verdict is a file, so any worker may find it.
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import msgspec
from django.conf import settings

from controlplane.checkpoints.models import Checkpoint
from controlplane.checkpoints.verify import Verdict
from controlplane.jobs.numbers import spec_of
from controlplane.protocol.launch import TrainerConfig
from controlplane.protocol.spec import Parallelism
from controlplane.runtime.logs import get

LIMIT_S = 300
GRACE_S = 30.0
NICE = 19
MAX_AT_ONCE = 1
VERDICT = "verdict.json"

_log = get(__name__)
_running: list[subprocess.Popen[bytes]] = []


def is_remote(path: str) -> bool:
    """On an object store: not to be read from here within a sweep."""
    return "://" in path


def wants_load(row: Checkpoint) -> bool:
    """The job asks for its checkpoints to be restore-tested."""
    return spec_of(row.job).spec.checkpoint.restore_test


def examine(row: Checkpoint) -> Verdict | None:
    """The verdict, once there is one; None: it is being made, or waits its turn."""
    folder = Path(settings.REFERENCE_DIR) / "examinations" / row.id
    found = _read(folder)
    if found is None and _is_overdue(folder):
        found = Verdict(ok=None, detail=f"no verdict within {LIMIT_S} s; see the examination's log")
    if found is not None:
        shutil.rmtree(folder, ignore_errors=True)
    elif not folder.exists() and _has_room():
        _start(row, folder)
    return found


def _start(row: Checkpoint, folder: Path) -> None:
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        return  # Another worker was quicker.
    argv = [
        sys.executable, "-m", "trainer.checkpoint.examine", "--path", row.path, "--job-id", row.job_id,
        "--step", str(row.step), "--epoch", str(row.epoch), "--out", str(folder / VERDICT),
        "--limit-s", str(LIMIT_S),
    ]  # fmt: skip
    if wants_load(row):
        (folder / "config.json").write_bytes(msgspec.json.encode(_one_rank(row)))
        argv += ["--config", str(folder / "config.json")]
    with (folder / "log").open("wb") as output:
        process = subprocess.Popen(
            ["nice", "-n", str(NICE), *argv], stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    _running.append(process)
    _log.info("checkpoint examination started", checkpoint=row.id, pid=process.pid)


def _one_rank(row: Checkpoint) -> TrainerConfig:
    spec = spec_of(row.job).spec
    return TrainerConfig(
        model=spec.model,
        parallelism=Parallelism(),
        training=spec.training,
        checkpoint=spec.checkpoint,
        checkpoint_dir="none",
        replicas=1,
        store="127.0.0.1:1",
    )


def _read(folder: Path) -> Verdict | None:
    try:
        said = msgspec.json.decode((folder / VERDICT).read_bytes())
        return Verdict(ok=said["ok"], detail=str(said["detail"]), loaded=bool(said["loaded"]))
    except (OSError, msgspec.DecodeError, KeyError, TypeError):
        return None


def _is_overdue(folder: Path) -> bool:
    """Its process died without a word, with the worker that had started it or alone."""
    try:
        return time.time() - os.stat(folder).st_mtime > LIMIT_S + GRACE_S
    except FileNotFoundError:
        return False


def _has_room() -> bool:
    _running[:] = [process for process in _running if process.poll() is None]
    return len(_running) < MAX_AT_ONCE
