"""SXIDs, and the driver's words about XIDs, out of the kernel log, read from `/dev/kmsg` without waiting.

Called by the examiner and by the NVML probe, each in a thread of its own. Where the log may not be read (no root, a
container) there are none: absence of a reading is no proof of a fault. It writes nothing.
"""

import os
import re
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from agents.core import sxid
from agents.core.sxid import Sxid

KERNEL_LOG = Path("/dev/kmsg")
MAX_KEPT = 1_000
MAX_TEXT = 400
_RECORD_BYTES = 8_192
KEPT_S = 60.0
"""A text whose event has not come by then is no event's; NVML tells of each within seconds."""
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)[^)]*\): (\d{1,5}), (.*)")


class _Follower:
    """Reads on from where it was, from the oldest record that the kernel still has."""

    def __init__(self, path: Path = KERNEL_LOG) -> None:
        self._path = path
        self._fd: int | None = None

    def close(self) -> None:
        """Let go of the log."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def news(self) -> Iterator[tuple[float, str]]:
        """(seconds since the boot, message) of each record since the last call."""
        try:
            if self._fd is None:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            while True:
                try:
                    record = os.read(self._fd, _RECORD_BYTES)
                except BrokenPipeError:
                    # Records were overwritten before we came; the next read goes on after them.
                    continue
                if not record:
                    return
                yield from _messages(record.decode("utf-8", "replace"))
        except OSError:
            return


class KernelLog(_Follower):
    """SXIDs of this node's switches."""

    def __init__(self, path: Path = KERNEL_LOG) -> None:
        super().__init__(path)
        self._seen: deque[Sxid] = deque(maxlen=MAX_KEPT)

    def fault(self) -> str:
        """What the SXIDs so far mean for this node; see `sxid.fault`."""
        for at_s, message in self.news():
            found = sxid.parse(message, at_s)
            if found is not None:
                self._seen.append(found)
        return sxid.fault(self._seen, time.clock_gettime(time.CLOCK_BOOTTIME))


class XidTexts(_Follower):
    """What the driver wrote about each device's XIDs: an event of NVML brings the number alone."""

    def __init__(self, path: Path = KERNEL_LOG) -> None:
        super().__init__(path)
        self._waiting: deque[tuple[float, tuple[str, int], str]] = deque(maxlen=MAX_KEPT)
        self.catch_up()

    def catch_up(self) -> None:
        """Forget what was written so far: it belongs to events that nobody heard."""
        for _ in self.news():
            pass

    def take(self, pci_bus_id: str, xid: int) -> str:
        """The oldest text about this XID of the device that no event has had yet; "" where there is none."""
        read_s = time.monotonic()
        for _, message in self.news():
            if told := _XID.search(message):
                self._waiting.append((read_s, (_slot(told[1]), int(told[2])), told[3].strip()[:MAX_TEXT]))
        while self._waiting and self._waiting[0][0] < read_s - KEPT_S:
            self._waiting.popleft()
        mine = next((one for one in self._waiting if one[1] == (_slot(pci_bus_id), xid)), None)
        if mine is None:
            return ""
        self._waiting.remove(mine)
        return mine[2]


def _messages(text: str) -> Iterator[tuple[float, str]]:
    """`priority,number,microseconds,flags;message`; a plain file holds many such lines."""
    for line in text.splitlines():
        head, _, message = line.partition(";")
        parts = head.split(",")
        if len(parts) >= 3 and parts[2].isdigit():
            yield int(parts[2]) / 1e6, message


def _slot(pci: str) -> str:
    """`00000000:B9:00.0` and `0000:b9:00` are one: domain, bus and device."""
    domain, _, rest = pci.lower().partition(":")
    return f"{domain[-4:]}:{rest.partition('.')[0]}"
