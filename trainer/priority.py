"""Work that steps back where cores are short.

A transfer must not slow the donor's own step down, so its threads run at a lower priority
than the training thread beside them. Linux counts a priority per thread. Ranks that share
their cores with a control plane, and runs that only prove something, step back as a whole.
"""

import contextlib
import errno
import os
import threading
import time
from pathlib import Path

TRANSFER_NICENESS = 5
STARTING_NICENESS = 10
MAX_NICENESS = 19
AUTOGROUP = Path("/proc/self/autogroup")
AUTOGROUP_PAUSE_S = 0.1
AUTOGROUP_TRIES = 100
PARENT_POLL_S = 1.0
ORPHANED = 75


class _Wanted:
    """What this process's session was last asked to be."""

    def __init__(self) -> None:
        self.niceness = 0
        self.lock = threading.Lock()


_wanted = _Wanted()


def yield_core() -> None:
    """Lower the calling thread's priority for the rest of its life."""
    os.nice(TRANSFER_NICENESS)


def lower_session(autogroup: Path = AUTOGROUP, *, starting: bool = False) -> None:
    """Let this process's niceness count beyond its session, which it leads. Where the kernel
    groups tasks by session (sched(7), autogroup) a process's own niceness only orders the
    session's inside. Does nothing where there are no such groups.

    While it is `starting` the session steps back further, for those who train on the same cores
    already; the next call, when it has started, takes that back.
    """
    wanted = min(MAX_NICENESS, os.nice(0) + (STARTING_NICENESS if starting else 0))
    with _wanted.lock:
        _wanted.niceness = wanted
        done = _lower(autogroup, wanted)
    if not done:
        threading.Thread(target=_lower_soon, args=(autogroup, wanted), name="niceness", daemon=True).start()


def step_aside() -> None:
    """For a run beside a service that started it: a session of its own, as low as its niceness
    says, that ends with the service."""
    with contextlib.suppress(PermissionError):  # It leads a session already.
        os.setsid()
    lower_session()
    end_with_parent(os.getppid())


def end_with_parent(parent: int) -> None:
    """This process ends soon after the one that started it; also for a fork of one that steps
    aside, whose own watch ends with itself. Returns at once."""
    threading.Thread(target=_end_with, args=(parent,), name="parent", daemon=True).start()


def _lower(autogroup: Path, niceness: int) -> bool:
    """False: not now. The kernel takes one change in 0.1 s from all its users but root."""
    try:
        autogroup.write_text(str(niceness))
    except OSError as error:
        return error.errno != errno.EAGAIN
    return True


def _lower_soon(autogroup: Path, niceness: int) -> None:
    for _ in range(AUTOGROUP_TRIES):
        time.sleep(AUTOGROUP_PAUSE_S)
        with _wanted.lock:
            if niceness != _wanted.niceness or _lower(autogroup, niceness):
                return


def _end_with(parent: int) -> None:
    """Not by PR_SET_PDEATHSIG: that counts the end of the thread that started us."""
    while os.getppid() == parent:
        time.sleep(PARENT_POLL_S)
    os._exit(ORPHANED)
