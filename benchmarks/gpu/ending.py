"""Ends all that a part of the check has started, ranks in sessions of their own included. The standard library alone.

A rank host gives each rank a session, so no signal to a process group reaches all. While a part runs, the
runner is the subreaper of everything below it: what loses its parent becomes the runner's child and stays
in its tree. A process is named by its pid and its start time, and signalled by both.
"""

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
END_TIMEOUT_S = 10.0
POLL_S = 0.02
EMPTY_READINGS = 3
Name = tuple[int, int]
"""(pid, start time in ticks since boot)."""


@contextlib.contextmanager
def adopting() -> Iterator[set[Name]]:
    """Orphans below this process become its children within the block. Yields what was here before."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER")
    try:
        yield below(os.getpid(), zombies=True)
    finally:
        prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def below(root: int, *, zombies: bool = False) -> set[Name]:
    """Descendants of a process; zombies run nothing and are left out unless asked for."""
    children: dict[int, list[tuple[Name, str]]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and (stat := _stat(int(entry.name))) is not None:
            state, parent, ticks = stat
            children.setdefault(parent, []).append(((int(entry.name), ticks), state))
    found: set[Name] = set()
    front = [root]
    while front:
        for name, state in children.get(front.pop(), []):
            front.append(name[0])
            if zombies or state not in "ZX":
                found.add(name)
    return found


def end(before: set[Name], *, part: int) -> set[Name]:
    """SIGKILL for all below this process that was not here before, until nothing of it is left; what could not
    be ended within END_TIMEOUT_S. `part`: the child whose exit status its owner collects."""
    deadline_s = time.monotonic() + END_TIMEOUT_S
    empty = 0
    # Reading /proc takes a while: who changes its parent meanwhile may be missed by one reading, not by more.
    while empty < EMPTY_READINGS:
        left = below(os.getpid()) - before
        empty = 0 if left else empty + 1
        if left and time.monotonic() > deadline_s:
            break
        for pid, ticks in left:
            stat = _stat(pid)
            if stat is not None and stat[2] == ticks:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_S)
    for pid, _ in below(os.getpid(), zombies=True) - before - left:
        if pid != part:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
    return left


def _stat(pid: int) -> tuple[str, int, int] | None:
    """State, parent and start time of a process; None when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return fields[0], int(fields[1]), int(fields[19])
