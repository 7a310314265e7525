"""What every device driver offers, and what it can do.

A driver is asked from one place at a time and may block; `sampler` keeps one that may
block in a process of its own. A reading that the device does not give is None.
"""

from dataclasses import dataclass
from typing import Protocol

from agents.core.health import NvLinks
from controlplane.protocol.samples import DeviceInfo, DeviceSample, XidEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a driver can say or do; a flag that is False goes with readings of None."""

    may_block: bool
    faults: bool
    xid_events: bool
    ecc: bool
    row_remap: bool
    nvlink: bool


class Probe(Protocol):
    """One driver. Times are the node's monotonic seconds, passed in."""

    @property
    def capabilities(self) -> Capabilities:
        """What this driver can do here."""
        ...

    def devices(self) -> tuple[DeviceInfo, ...]:
        """The devices of this node, by index. Raises ProbeError."""
        ...

    def sample(self, now_s: float, busy: frozenset[int]) -> tuple[DeviceSample, ...]:
        """One reading per device, in order of index. `busy`: devices with a running rank
        (a hint that only the simulated driver uses). Raises ProbeError."""
        ...

    def nvlinks(self) -> tuple[NvLinks, ...]:
        """State of the NVLinks of each device that tells it, as of the newest sample."""
        ...

    def xids(self) -> tuple[XidEvent, ...]:
        """XIDs seen since the last call, oldest first."""
        ...

    def inject(self, device_index: int, fault: str, value: float) -> None:
        """Make a device fail. Raises ProbeError where that is impossible."""
        ...

    def reset(self, device_index: int) -> None:
        """Reset a device that nothing uses. Raises ProbeError where that is impossible, or where
        this process must let go of the driver first (`sampler` then resets it from outside)."""
        ...

    def close(self) -> None:
        """Let go of the driver."""
        ...
