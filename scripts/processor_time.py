"""What a test set takes of the cores, by all that it started: used by `run_tests.py`, in the process of a set.

The kernel adds a process's time to its parent's when the parent has waited for it. An agent's ranks and hosts
outlive their agent, so nobody of the set waits for them: they become children of this process and it does.
"""

import contextlib
import ctypes
import os
import resource
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36


def adopt() -> None:
    """From now on what outlives its parent, of all below this process, becomes a child of it (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children() -> frozenset[int]:
    """Of this process's first thread, which all adopted ones are; none where the kernel does not tell."""
    pid = os.getpid()
    try:
        return frozenset(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    except OSError:
        return frozenset()


def wait_for_adopted(own: frozenset[int]) -> None:
    """Those that have ended, but not `own`, for which somebody else here waits."""
    for pid in children() - own:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def taken_s() -> float:
    """Seconds of a core that everything took which has been waited for."""
    took = resource.getrusage(resource.RUSAGE_CHILDREN)
    return took.ru_utime + took.ru_stime
