"""Examinations: reading checkpoints back and loading them, by processes of their own.

Reading takes as long as it takes (`limit_s`), loading needs torch, an object store its driver.
The worker starts the program in the sandbox, at low priority and with a limit, and looks again
when the row's deadline says so; the verdict is a file, so any worker may find it. What lies on a
file system is read by `controlplane.checkpoints.verify`, and loaded, where the job wants that,
by `trainer.checkpoint.examine`. What lies in an
object store is fetched and compared by a first program, which has the network and the store's
credentials and parses nothing but the marker; what is to be loaded then is loaded by a second,
which has neither. Checkpoints of a job's own program are never loaded.
"""

import contextlib
import os
import shutil
import time
from pathlib import Path

import msgspec
from django.conf import settings

from controlplane.checkpoints import places
from controlplane.checkpoints.models import Checkpoint
from controlplane.checkpoints.readback import LONGEST_S, VERDICT, decoded, identity, why_silent
from controlplane.jobs.numbers import spec_of
from controlplane.protocol.launch import TrainerConfig
from controlplane.protocol.readback import Verdict
from controlplane.protocol.spec import Parallelism
from controlplane.protocol.states import CheckpointState
from controlplane.runtime.logs import get
from controlplane.runtime.sandbox import service
from controlplane.runtime.sandbox.plan import Limits
from controlplane.runtime.sandbox.service import Sandboxed, Task

MODULE = "trainer.checkpoint.examine"
READER = "controlplane.checkpoints.verify"
LIMIT_S = 300
SLOWEST_BYTES_PER_S = 10e6
"""A storage that gives less than this for the whole of a checkpoint counts as stuck."""
GRACE_S = 30.0
NICE = 19
MAX_AT_ONCE = 2
"""At a time, of this process: one that is read for an hour holds up no other."""
FETCHED = "fetched"
"""Folder of what was fetched from an object store, to be loaded by the second program."""

_log = get(__name__)
_running: list[Sandboxed] = []


def limit_s(row: Checkpoint) -> int:
    """Seconds that one look at it may take, by its size."""
    return min(LIMIT_S + int(row.bytes / SLOWEST_BYTES_PER_S), LONGEST_S)


def wants_load(row: Checkpoint) -> bool:
    """The job asks for its checkpoints to be restore-tested, and the built-in trainer wrote them."""
    return spec_of(row.job).spec.checkpoint.restore_test and not places.own_program(row)


def is_under_way(row: Checkpoint) -> bool:
    """This machine reads it, or has read it and nobody has taken the verdict."""
    return _folder(row).exists()


def examine(row: Checkpoint) -> Verdict | None:
    """The verdict, once there is one; None: it is being made, or waits its turn."""
    if why := places.why_not_readable(row):
        return Verdict(ok=False, detail=why)
    folder = _folder(row)
    found = _read(folder)
    if found is not None and found.ok and not found.loaded and (folder / FETCHED).is_dir():
        found = _load_fetched(row, folder)
    if found is None and _is_overdue(folder, limit_s(row)):
        found = Verdict(ok=None, detail=f"no verdict within {limit_s(row)} s; see the examination's log")
    if found is not None:
        # The next look at the same checkpoint has the same folder.
        _running[:] = [process for process in _running if process.place not in (folder, folder / "load")]
        shutil.rmtree(folder, ignore_errors=True)
    elif not folder.exists() and _has_room():
        _start(row, folder)
    return found


def _folder(row: Checkpoint) -> Path:
    return Path(settings.REFERENCE_DIR) / "examinations" / row.id


def _start(row: Checkpoint, folder: Path) -> None:
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        return  # Another worker was quicker.
    try:
        if places.is_remote(row.path):
            _fetch(row, folder)
        else:
            with places.opened(row) as descriptor:
                begin = _begin if row.state == CheckpointState.VERIFIED and wants_load(row) else _read_back
                begin(row, folder, descriptor)
    except FileNotFoundError:
        _write(folder, Verdict(ok=None, detail=f"{row.path} is not visible from the control plane"))
    except (places.Outside, OSError) as error:
        detail = str(error) if isinstance(error, places.Outside) else f"it cannot be read: {error.strerror or error}"
        _write(folder, Verdict(ok=False if isinstance(error, places.Outside) else None, detail=detail))


def _read_back(row: Checkpoint, folder: Path, checkpoint: int) -> None:
    """Compare every file of the directory `checkpoint` with the marker; nothing is loaded."""
    _run(row, Task(
        module=READER, arguments=["--path", "{in0}", "--name", row.path, *identity(row), "--out", f"{{out}}/{VERDICT}"],
        place=folder, inputs=[checkpoint], outputs=[VERDICT], nice=NICE,
        limits=service.default_limits(wall_s=limit_s(row) + GRACE_S),
    ))  # fmt: skip


def _begin(row: Checkpoint, folder: Path, checkpoint: int) -> None:
    """Load the directory `checkpoint`."""
    arguments = ["--path", "{in0}", *identity(row), "--out", f"{{out}}/{VERDICT}", "--limit-s", str(limit_s(row))]
    files = {}
    if wants_load(row):
        files["config.json"] = msgspec.json.encode(_one_rank(row)).decode()
        arguments += ["--config", "{scratch}/config.json"]
    _run(row, Task(
        module=MODULE, arguments=arguments, place=folder, inputs=[checkpoint], files=files, outputs=[VERDICT],
        limits=service.default_limits(wall_s=limit_s(row) + GRACE_S), nice=NICE,
    ))  # fmt: skip


def _fetch(row: Checkpoint, folder: Path) -> None:
    """Compare it where it lies, and keep what was read where it is to be loaded afterwards."""
    arguments = ["--path", row.path, *identity(row), "--out", f"{{out}}/{VERDICT}", "--limit-s", str(limit_s(row))]
    kept = None
    if wants_load(row) and row.state == CheckpointState.VERIFIED:
        (folder / FETCHED).mkdir()
        kept = os.open(folder / FETCHED, os.O_RDONLY | os.O_DIRECTORY)
        arguments += ["--keep", "{keep}", "--max-bytes", str(row.bytes)]
    try:
        _run(row, Task(
            module=MODULE, arguments=arguments, place=folder, outputs=[VERDICT], nice=NICE, writable=kept,
            limits=_limits(row), network=True, server_user=True,
            environment=settings.STORE_ENVIRONMENT, shown=settings.STORE_FILES,
        ))  # fmt: skip
    finally:
        if kept is not None:
            os.close(kept)


def _load_fetched(row: Checkpoint, folder: Path) -> Verdict | None:
    """The second program, once; None while it runs. Its verdict lies in the folder in the folder."""
    second = folder / "load"
    if second.exists():
        return _read(second)
    if not _has_room():
        return None
    second.mkdir()
    os.utime(folder)
    fetched = next(path for path in sorted((folder / FETCHED).iterdir()) if path.is_dir())
    descriptor = os.open(fetched, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        _begin(row, second, descriptor)
    finally:
        os.close(descriptor)
    return None


def _limits(row: Checkpoint) -> Limits:
    """Of a fetch: room for the largest file that the checkpoint may have."""
    limits = service.default_limits(wall_s=limit_s(row) + GRACE_S)
    return msgspec.structs.replace(limits, disk_bytes=max(limits.disk_bytes, row.bytes))


def _run(row: Checkpoint, task: Task) -> None:
    process = service.start(task)
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
    """What was found; also that nothing can be, where a program of this process has ended without a word."""
    found = decoded(folder)
    if found is not None:
        return found
    for process in _running:
        if process.place == folder and (code := process.poll()) is not None:
            # It may have ended between the two looks.
            return decoded(folder) or Verdict(ok=None, detail=why_silent(folder, code))
    return None


def _write(folder: Path, verdict: Verdict) -> None:
    (folder / VERDICT).write_bytes(msgspec.json.encode(verdict))


def _is_overdue(folder: Path, within_s: float) -> bool:
    """Its process died without a word, with the worker that had started it or alone."""
    with contextlib.suppress(FileNotFoundError):
        return time.time() - os.stat(folder).st_mtime > within_s + GRACE_S
    return False


def _has_room() -> bool:
    _running[:] = [process for process in _running if process.poll() is None]
    return len(_running) < MAX_AT_ONCE
