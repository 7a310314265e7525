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
from typing import NamedTuple

from agents.core import sxid
from agents.core.sxid import Sxid

KERNEL_LOG = Path("/dev/kmsg")
MAX_KEPT = 1_000
MAX_TEXT = 400
_RECORD_BYTES = 8_192
KEPT_S = 60.0
"""A text whose event has not come by then is no event's; NVML tells of each within seconds."""
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)[^)]*\): (\d{1,5}), (.*)")


class Record(NamedTuple):
    """`number` counts records since the boot, `at_s` seconds since then."""

    number: int
    at_s: float
    text: str


class MissedXid(NamedTuple):
    """What the driver wrote while nobody listened. `slot`: see `slot_of`."""

    slot: str
    xid: int
    text: str


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

    def news(self) -> Iterator[Record]:
        """Each record since the last call."""
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
                yield from _records(record.decode("utf-8", "replace"))
        except OSError:
            return


class KernelLog(_Follower):
    """SXIDs of this node's switches."""

    def __init__(self, path: Path = KERNEL_LOG) -> None:
        super().__init__(path)
        self._seen: deque[Sxid] = deque(maxlen=MAX_KEPT)

    def fault(self) -> str:
        """What the SXIDs so far mean for this node; see `sxid.fault`."""
        for record in self.news():
            found = sxid.parse(record.text, record.at_s)
            if found is not None:
                self._seen.append(found)
        return sxid.fault(self._seen, time.clock_gettime(time.CLOCK_BOOTTIME))


class XidTexts(_Follower):
    """What the driver wrote about each device's XIDs: an event of NVML brings the number alone.

    `after`: the record up to which an earlier listener has told of all (its `reported_up_to`). What was written since
    belongs to events that nobody heard: `missed` has it, once. None: nobody listened before; all of it is of before.
    """

    def __init__(self, path: Path = KERNEL_LOG, *, after: int | None = None) -> None:
        super().__init__(path)
        self._waiting: deque[tuple[float, int, MissedXid]] = deque(maxlen=MAX_KEPT)
        self._early: deque[tuple[float, tuple[str, int]]] = deque(maxlen=MAX_KEPT)
        self._read: int | None = None
        self._missed = [xid for number, xid in self._xids() if after is not None and number > after][-MAX_KEPT:]

    def missed(self) -> tuple[MissedXid, ...]:
        """Oldest first; nothing the second time."""
        missed, self._missed = tuple(self._missed), []
        return missed

    def reported_up_to(self) -> int | None:
        """The newest record up to which each text about an XID had its event; None where the log cannot be read."""
        return self._read if not self._waiting else self._waiting[0][1] - 1

    def read(self) -> None:
        """Take in what was written since; a text whose event came before it has had it."""
        read_s = time.monotonic()
        while self._early and self._early[0][0] < read_s - KEPT_S:
            self._early.popleft()
        for number, xid in self._xids():
            early = next((one for one in self._early if one[1] == xid[:2]), None)
            if early is not None:
                self._early.remove(early)
            else:
                self._waiting.append((read_s, number, xid))
        while self._waiting and self._waiting[0][0] < read_s - KEPT_S:
            self._waiting.popleft()

    def take(self, pci_bus_id: str, xid: int) -> str:
        """The oldest text about this XID of the device that no event has had yet; "" where there is none."""
        self.read()
        wanted = (slot_of(pci_bus_id), xid)
        mine = next((one for one in self._waiting if one[2][:2] == wanted), None)
        if mine is None:
            self._early.append((time.monotonic(), wanted))
            return ""
        self._waiting.remove(mine)
        return mine[2].text

    def _xids(self) -> Iterator[tuple[int, MissedXid]]:
        for record in self.news():
            self._read = record.number
            if told := _XID.search(record.text):
                yield record.number, MissedXid(slot_of(told[1]), int(told[2]), told[3].strip()[:MAX_TEXT])


def _records(text: str) -> Iterator[Record]:
    """`priority,number,microseconds,flags;message`; a plain file holds many such lines."""
    for line in text.splitlines():
        head, _, message = line.partition(";")
        parts = head.split(",")
        if len(parts) >= 3 and parts[1].isdigit() and parts[2].isdigit():
            yield Record(int(parts[1]), int(parts[2]) / 1e6, message)


def slot_of(pci: str) -> str:
    """`00000000:B9:00.0` and `0000:b9:00` are one: domain, bus and device."""
    domain, _, rest = pci.lower().partition(":")
    return f"{domain[-4:]}:{rest.partition('.')[0]}"
