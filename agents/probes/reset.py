"""Reset of a device, by the driver's own tool.

Called by the runtime (`reset_device`) and by the sampler of real devices (`smi_reset`). NVML has no
call for it; `nvidia-smi --gpu-reset` has, and refuses while any process holds the device, so a
device that somebody else uses is never taken from him. It needs root; what it says is told.
"""

import asyncio
import shutil
from typing import Protocol

from agents.errors import ProbeError
from controlplane.protocol.bounds import fitted
from controlplane.protocol.commands import ResetDevice
from controlplane.protocol.samples import DeviceInfo

TOOL = "nvidia-smi"
RESET_TIMEOUT_S = 120.0
MAX_WORDS_CHARS = 500


class Resets(Protocol):
    """What a sampler offers here."""

    @property
    def devices(self) -> tuple[DeviceInfo, ...]:
        """As the driver lists them."""
        ...

    async def reset(self, device_index: int) -> None:
        """Raises ProbeError."""
        ...


async def reset_device(sampler: Resets, wanted: ResetDevice) -> str:
    """Why the device was not reset; "" when it was."""
    info = next((info for info in sampler.devices if info.index == wanted.device_index), None)
    if info is None:
        return f"no device {wanted.device_index} is known here"
    if info.uuid != wanted.uuid:
        return f"device {wanted.device_index} is {info.uuid} now, not {wanted.uuid}"
    try:
        await sampler.reset(wanted.device_index)
    except ProbeError as error:
        return str(error)
    return ""


async def smi_reset(pci_bus_id: str, tool: str = TOOL) -> None:
    """Raises ProbeError with the tool's own words."""
    program = shutil.which(tool)
    if program is None:
        raise ProbeError(f"{tool} is not installed here, so no device can be reset")
    try:
        child = await asyncio.create_subprocess_exec(
            program,
            "--gpu-reset",
            "-i",
            pci_bus_id,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
    except OSError as error:
        raise ProbeError(f"{tool} could not be started: {error}") from error
    try:
        async with asyncio.timeout(RESET_TIMEOUT_S):
            said, _ = await child.communicate()
    except TimeoutError:
        child.kill()
        await child.wait()
        raise ProbeError(f"{tool} did not end within {RESET_TIMEOUT_S:.0f} s; the device may need a reboot") from None
    if child.returncode != 0:
        words = fitted(" ".join(said.decode(errors="replace").split()), MAX_WORDS_CHARS)
        raise ProbeError(f"{tool} ended with {child.returncode}: {words}")
