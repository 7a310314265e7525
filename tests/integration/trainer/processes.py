"""What the kernel, and a rank itself, say of a process."""

import contextlib
import os
import signal
import time
from pathlib import Path


def wait_stopped(pid: int, timeout_s: float = 20.0) -> None:
    """Until every thread stands."""
    deadline_s = time.monotonic() + timeout_s
    while any(_state(thread) != "T" for thread in Path(f"/proc/{pid}/task").iterdir()):
        assert time.monotonic() < deadline_s, f"process {pid} does not stop"
        time.sleep(0.005)


def _state(thread: Path) -> str:
    try:
        return (thread / "stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return "T"  # It has ended.


def stacks_of(pid: int, log: Path) -> str:
    """What a rank adds to its log when it is asked for its stacks."""
    before = log.stat().st_size
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGUSR2)
    time.sleep(0.2)
    return f"--- stacks of {log.name}\n{log.read_bytes()[before:].decode(errors='replace')}"
