"""Ending what lives on a simulated node: its rank hosts and ranks.

They outlive their agent on purpose, so the demo must end them itself. Their identity is
(pid, start time): a pid alone may long belong to somebody else.
"""

import contextlib
import os
import signal
from pathlib import Path

MARKER = "HOLDFAST_DEMO_NODE_STATE"


def processes_of(state_dir: Path) -> list[int]:
    """Pids whose environment says that they belong to the node with this state directory."""
    wanted = f"{MARKER}={state_dir}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def kill_node_processes(state_dir: Path) -> int:
    """SIGKILL every rank host and rank of the node; returns how many there were."""
    victims = [pid for pid in processes_of(state_dir) if pid != os.getpid()]
    for pid in victims:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return len(victims)
