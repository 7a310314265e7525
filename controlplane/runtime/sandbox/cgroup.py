"""A memory cgroup for one run, version 1 or 2, where the launcher may make one."""

import contextlib
import os
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
PREFIX = "holdfast-sandbox-"


class Cgroup:
    """Made when it is constructed. Raises OSError where that cannot be done."""

    def __init__(self, *, memory_bytes: int, root: Path = ROOT, own: Path = OWN) -> None:
        reasons = []
        for parent, limit in _parents(root, own):
            folder = parent / f"{PREFIX}{os.getpid()}"
            try:
                _sweep(parent)
                folder.mkdir()
                try:
                    (folder / limit).write_text(str(memory_bytes))
                except OSError:
                    folder.rmdir()
                    raise
            except OSError as error:
                reasons.append(f"{error.filename or parent}: {error.strerror}")
                continue
            self.folder = folder
            with contextlib.suppress(OSError):  # Only where swap is counted.
                swap = "memory.swap.max" if limit == "memory.max" else "memory.memsw.limit_in_bytes"
                (folder / swap).write_text("0" if limit == "memory.max" else str(memory_bytes))
            return
        raise OSError(f"no cgroup can be made ({'; '.join(reasons) or 'there is no memory controller'})")

    def take(self, pid: int) -> None:
        """A process, and all that it starts from now on. Raises OSError."""
        (self.folder / "cgroup.procs").write_text(str(pid))

    def was_exceeded(self) -> bool:
        """The kernel has ended a process of it for want of memory."""
        for name in ("memory.events", "memory.oom_control"):
            with contextlib.suppress(OSError, ValueError):
                fields = dict(line.split() for line in (self.folder / name).read_text().splitlines())
                return int(fields.get("oom_kill", "0")) > 0
        return False

    def close(self) -> None:
        """Remove it; its processes have ended. What the kernel holds up goes with a later run."""
        with contextlib.suppress(OSError):
            self.folder.rmdir()


def _parents(root: Path, own: Path) -> list[tuple[Path, str]]:
    """Folders in which a cgroup might be made, and the file of its limit."""
    found = []
    for line in own.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        base, limit = root, "memory.max"
        if controllers:
            if "memory" not in controllers.split(","):
                continue
            base, limit = root / "memory", "memory.limit_in_bytes"
        elif not (root / "cgroup.controllers").exists():
            base = root / "unified"
        # In a container its own path may not be visible, and what is seen is its own root.
        found += [(base / path.lstrip("/"), limit), (base, limit)]
    return [(folder, limit) for folder, limit in dict.fromkeys(found) if folder.is_dir()]


def _sweep(parent: Path) -> None:
    """Those of launchers that are no more."""
    for left in parent.glob(f"{PREFIX}*"):
        if not Path("/proc", left.name.removeprefix(PREFIX)).exists():
            with contextlib.suppress(OSError):
                left.rmdir()
