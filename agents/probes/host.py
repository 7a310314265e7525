"""Facts about this machine and about the agent's own cost."""

import os
import re
import time
from pathlib import Path

_SHORTEST_S = 0.1
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def boot_id() -> str:
    """Changes with every boot; two agents of one boot share the monotonic clock."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        # Without it every start counts as a boot: safe, only forgetful.
        return f"unknown-{os.getpid()}-{time.monotonic_ns()}"


def machine_id() -> str:
    """Stays with the installed system across boots; "" where there is none."""
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        try:
            return re.sub(r"[^A-Za-z0-9_.:-]", "", Path(path).read_text())[:64]
        except OSError:
            continue
    return ""


def rss_bytes() -> int:
    """Resident memory of this process."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * _PAGE_BYTES


class CpuMeter:
    """CPU time of this process per second of wall time, between two calls."""

    def __init__(self, now_s: float) -> None:
        self._last_s = now_s
        self._last_cpu_s = time.process_time()

    def ratio(self, now_s: float) -> float | None:
        """Share of one core since the last call; None for an interval too short to tell."""
        cpu_s = time.process_time()
        elapsed_s, used_s = now_s - self._last_s, cpu_s - self._last_cpu_s
        self._last_s, self._last_cpu_s = now_s, cpu_s
        return used_s / elapsed_s if elapsed_s >= _SHORTEST_S else None
