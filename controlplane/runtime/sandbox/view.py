"""What a sandboxed program sees of the file system: a tree of its own, or all that Landlock lets
it see of the server's. Called by the launcher: `build` in its mount namespace, `enter` in the
process that becomes the program.

The tree lies in memory and has the run's limit as its size. Everything in it but the
program's own folders is read-only. It holds no configuration of the server, no state
directory, no home, no socket.
"""

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from controlplane.runtime.sandbox import landlock, linux
from controlplane.runtime.sandbox.plan import Plan

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/alternatives", "/sys/devices/system/cpu")
ETC = ("/etc/ld.so.cache", "/etc/localtime", "/etc/passwd", "/etc/group")
ETC_OF_NETWORK = ("/etc/nsswitch.conf", "/etc/hosts", "/etc/resolv.conf", "/etc/ssl", "/etc/pki")
ALONE = {"/etc/nsswitch.conf": "hosts: files\n", "/etc/hosts": "127.0.0.1 localhost\n"}
"""Where there is no network: torch asks for names, and must not wait for a name server."""
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
GPUS = "nvidia*"
SHARED, TEMPORARY = "/dev/shm", "/tmp"  # noqa: S108
"""Of the tree; nothing of the server's lies there."""
SCRATCH, INPUTS, KEPT = "/scratch", "/in", "/keep"


class Replaced(Exception):
    """Somebody swaps names to have something else read: nothing is run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """`root` None: the program sees the server's own tree, as far as it may. `scratch` and `inputs`
    are as the program names them; `outputs` is the folder of its output as the launcher names it."""

    root: str | None
    scratch: str
    inputs: tuple[str, ...]
    outputs: str
    writable: str = ""


def build(plan: Plan, base: str) -> View:
    """The tree, mounted on the empty folder `base`. Raises OSError, Replaced."""
    linux.mount("none", "/", "", linux.MS_REC | linux.MS_PRIVATE)
    size = f"size={plan.limits.disk_bytes},mode=0755,nr_inodes=100000"
    linux.mount("holdfast-sandbox", base, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, size)
    for path in (*SYSTEM, *ETC, *(ETC_OF_NETWORK if plan.network else ()), *plan.programs):
        _show(path, base)
    for path, content in ({} if plan.network else ALONE).items():
        Path(base + path).write_text(content)
    for path in (*DEVICES, *_gpus()):
        with contextlib.suppress(OSError):
            _bind(path, base + path, read_only=False, devices=True)
    for number, descriptor in enumerate(plan.inputs):
        _bind_open(descriptor, f"{base}{INPUTS}/{number}", read_only=True)
    if plan.writable is not None:
        _bind_open(plan.writable, base + KEPT, read_only=False)
    for folder in ("/proc", SHARED, TEMPORARY):
        os.makedirs(base + folder, exist_ok=True)
    for folder in (base + SHARED, base + TEMPORARY):
        os.chmod(folder, 0o1777)  # noqa: S103  # As everywhere.
    _own(base + SCRATCH, plan)
    inputs = tuple(f"{INPUTS}/{number}" for number in range(len(plan.inputs)))
    return View(root=base, scratch=SCRATCH, inputs=inputs, outputs=f"{base}{SCRATCH}/out", writable=KEPT)


def without_root(plan: Plan, base: str) -> View:
    """The server's own tree, with `base` as the program's folder. Raises OSError."""
    _own(base, plan)
    inputs = tuple(f"/proc/self/fd/{descriptor}" for descriptor in plan.inputs)
    writable = "" if plan.writable is None else f"/proc/self/fd/{plan.writable}"
    return View(root=None, scratch=base, inputs=inputs, outputs=f"{base}/out", writable=writable)


def enter(view: View, *, own_processes: bool) -> None:
    """Take the tree as the root. Raises OSError."""
    assert view.root is not None, "there is a tree to enter"
    linux.unshare(linux.CLONE_NEWNS)
    if own_processes:
        flags = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
        linux.mount("proc", f"{view.root}/proc", "proc", flags)
    linux.enter_root(view.root)


def confine(view: View, plan: Plan) -> None:
    """Have Landlock hide the rest of the server's tree. Raises OSError."""
    read = (*SYSTEM, *ETC, *ETC_OF_NETWORK, *plan.programs, "/proc/self", *view.inputs)
    kept = (view.writable,) if view.writable else ()
    landlock.confine(read=read, write=(view.scratch, SHARED, *DEVICES, *_gpus(), *kept))


def _gpus() -> Iterable[str]:
    return map(str, Path("/dev").glob(GPUS))


def _show(path: str, base: str) -> None:
    """A path of the system under its own name; a link as a link. What is not there, or is seen already, is left out."""
    if os.path.islink(path) and path in SYSTEM:
        os.symlink(os.readlink(path), base + path)
    elif os.path.exists(path) and not os.path.lexists(base + path):
        _bind(path, base + path, read_only=True)


def _bind(source: str, target: str, *, read_only: bool, devices: bool = False) -> None:
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT, 0o644))
    linux.bind(source, target, read_only=read_only, devices=devices)


def _bind_open(descriptor: int, target: str, *, read_only: bool) -> None:
    """What is open as `descriptor`, found by its name: a descriptor of the namespace that was left
    cannot be mounted. Raises Replaced where that name leads to something else by now."""
    _bind(os.readlink(f"/proc/self/fd/{descriptor}"), target, read_only=read_only)
    wanted, found = os.fstat(descriptor), os.stat(target)
    if (wanted.st_dev, wanted.st_ino) != (found.st_dev, found.st_ino):
        raise Replaced("an input was replaced by something else while it was opened")


def _own(scratch: str, plan: Plan) -> None:
    """The program's own folders, and the files that it is given there."""
    for folder in (scratch, f"{scratch}/out", f"{scratch}{TEMPORARY}"):
        os.makedirs(folder, mode=0o700, exist_ok=True)
        if plan.uid is not None:
            os.chown(folder, plan.uid, plan.uid if plan.gid is None else plan.gid)
