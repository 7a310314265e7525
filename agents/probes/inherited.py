"""Of the devices that the driver lists, those that an outer scheduler gave to this agent.

The others are somebody else's: they are neither reported nor read nor used, and never reset. What is named and not
there is simply no device. An index is the driver's own; a UUID may be cut as long as it is one device's alone, as CUDA
takes it.
"""

from collections.abc import Callable, Iterable, Sequence

from agents.core.health import NvLinks
from agents.errors import ProbeError
from agents.probes.sampler import OnSamples, OnXid, Sampler
from controlplane.protocol.commands import InjectDeviceFault
from controlplane.protocol.samples import DeviceInfo, DeviceSample, XidEvent


def chosen(devices: Iterable[DeviceInfo], names: Sequence[str]) -> frozenset[int]:
    """Indices of those that are named, by index or by the beginning of the UUID. One that begins several names none:
    the others might be somebody else's."""
    there = tuple(devices)
    found = ([device.index for device in there if _is(device, name)] for name in names)
    return frozenset(indices[0] for indices in found if len(indices) == 1)


def _is(device: DeviceInfo, name: str) -> bool:
    return int(name) == device.index if name.isdecimal() else device.uuid.startswith(name)


class InheritedSampler:
    """A sampler through which only the named devices are seen. `driver` makes the real one, with its callbacks."""

    def __init__(
        self,
        names: Sequence[str],
        driver: Callable[[OnSamples, OnXid], Sampler],
        on_samples: OnSamples,
        on_xid: OnXid,
    ) -> None:
        self._names = tuple(names)
        self._on_samples, self._on_xid = on_samples, on_xid
        self._driver = driver(self._samples, self._xid)
        self.delay_s = self._driver.delay_s

    @property
    def devices(self) -> tuple[DeviceInfo, ...]:
        """The named ones."""
        own = self._own()
        return tuple(device for device in self._driver.devices if device.index in own)

    @property
    def nvlinks(self) -> tuple[NvLinks, ...]:
        """Of the named ones."""
        own = self._own()
        return tuple(links for links in self._driver.nvlinks if links.device_index in own)

    async def start(self) -> None:
        """See `Sampler`."""
        await self._driver.start()

    def ask(self, now_s: float, busy: frozenset[int]) -> None:
        """See `Sampler`."""
        self._driver.ask(now_s, busy)

    def inject(self, fault: InjectDeviceFault) -> None:
        """Raises ProbeError."""
        self._check(fault.device_index)
        self._driver.inject(fault)

    async def reset(self, device_index: int) -> None:
        """Raises ProbeError."""
        self._check(device_index)
        await self._driver.reset(device_index)

    def close(self) -> None:
        """See `Sampler`."""
        self._driver.close()

    def _own(self) -> frozenset[int]:
        return chosen(self._driver.devices, self._names)

    def _check(self, device_index: int) -> None:
        if device_index not in self._own():
            raise ProbeError(f"device {device_index} is not of this allocation")

    def _samples(self, samples: tuple[DeviceSample, ...]) -> None:
        own = self._own()
        self._on_samples(tuple(sample for sample in samples if sample.index in own))

    def _xid(self, xid: XidEvent) -> None:
        if xid.index in self._own():
            self._on_xid(xid)
