"""What the probe process says to the agent, one JSON line each."""

import msgspec

from agents.core.health import NvLinks
from controlplane.protocol.samples import DeviceInfo, DeviceSample, XidEvent


class WorkerLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line. Empty parts are left out; `samples` None: none were asked for. `reported_up_to`: the record of the
    kernel log up to which all XIDs were told, those of this line included; None where it is not said or not known."""

    devices: tuple[DeviceInfo, ...] = ()
    samples: tuple[DeviceSample, ...] | None = None
    nvlinks: tuple[NvLinks, ...] = ()
    xids: tuple[XidEvent, ...] = ()
    reported_up_to: int | None = None
    error: str = ""
