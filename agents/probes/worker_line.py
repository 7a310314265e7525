"""What the probe process says to the agent, one JSON line each."""

import msgspec

from agents.core.health import NvLinks
from controlplane.protocol.samples import DeviceInfo, DeviceSample, XidEvent


class WorkerLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line. Empty parts are left out; `samples` None: none were asked for."""

    devices: tuple[DeviceInfo, ...] = ()
    samples: tuple[DeviceSample, ...] | None = None
    nvlinks: tuple[NvLinks, ...] = ()
    xids: tuple[XidEvent, ...] = ()
    error: str = ""
