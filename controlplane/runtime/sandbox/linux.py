"""System calls that Python has no function for. Each raises OSError; called by the launcher
and its parts alone, in processes that end with their program."""

import ctypes
import fcntl
import os
import socket
import struct

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_NOATIME, MS_NODIRATIME, MS_BIND = 32, 1024, 2048, 4096
MS_REC, MS_PRIVATE, MS_RELATIME = 1 << 14, 1 << 18, 1 << 21
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 24, 36, 38
PR_SET_DUMPABLE, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 4, 47, 4
CAP_LAST = 63
CAPABILITY_VERSION_3 = 0x20080522
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 0x1
# statvfs's flags of a mount, and those that keep them in a remount: a user namespace may not drop one.
_KEPT = ((1, MS_RDONLY), (2, MS_NOSUID), (4, MS_NODEV), (8, MS_NOEXEC), (1024, MS_NOATIME), (2048, MS_NODIRATIME))
_KEPT_RELATIME = 4096

_libc = ctypes.CDLL(None, use_errno=True)


def call(number: int, *arguments: object) -> int:
    """A system call by its number."""
    return _checked(_libc.syscall(number, *arguments), f"system call {number}")


def unshare(flags: int) -> None:
    """Leave namespaces for new ones."""
    _checked(_libc.unshare(flags), "unshare")


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    """mount(2)."""
    done = _libc.mount(source.encode(), target.encode(), kind.encode() or None, ctypes.c_ulong(flags), data.encode())
    _checked(done, f"mount on {target}")


def bind(source: str, target: str, *, read_only: bool, devices: bool = False) -> None:
    """The file or directory `source`, without what is mounted below it, at `target` as well."""
    mount(source, target, "", MS_BIND)
    was = os.statvfs(target).f_flag
    kept = sum(flag for seen, flag in _KEPT if was & seen) | (MS_RELATIME if was & _KEPT_RELATIME else 0)
    wanted = MS_NOSUID | (MS_RDONLY if read_only else 0) | (0 if devices else MS_NODEV)
    mount("none", target, "", MS_REMOUNT | MS_BIND | kept | wanted)


def unmount(target: str) -> None:
    """What is mounted at `target` lies there no longer."""
    _checked(_libc.umount2(target.encode(), MNT_DETACH), f"umount of {target}")


def enter_root(root: str) -> None:
    """Make `root`, a mount, the root of this mount namespace, and let go of the old one."""
    os.chdir(root)
    call(SYS_PIVOT_ROOT[os.uname().machine], b".", b".")
    unmount(".")
    os.chdir("/")


def prctl(option: int, first: int = 0, second: int = 0) -> None:
    """prctl(2)."""
    _checked(_libc.prctl(option, ctypes.c_ulong(first), ctypes.c_ulong(second), 0, 0), f"prctl {option}")


def bound_capabilities() -> None:
    """No program that this process becomes gets any, whoever owns it."""
    for number in range(CAP_LAST + 1):
        try:
            prctl(PR_CAPBSET_DROP, number)
        except OSError:  # Beyond the last that this kernel has, or there is none to drop.
            break


def drop_capabilities() -> None:
    """All that this process has."""
    header = struct.pack("<Ii", CAPABILITY_VERSION_3, 0)
    _checked(_libc.capset(header, bytes(24)), "capset")


def raise_loopback() -> None:
    """A new network namespace has its loopback down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sh22x", b"lo", 0)
        (flags,) = struct.unpack("16xh22x", fcntl.ioctl(control, SIOCGIFFLAGS, request))
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", flags | IFF_UP))


def _checked(answer: int, what: str) -> int:
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return answer
