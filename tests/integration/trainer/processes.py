"""What the kernel says of a process."""

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
