"""A simulated GPU: the physics of a toy, the interface of the real thing.

Temperature follows power through one thermal resistance and one time constant
(`C dT/dt = P - (T - ambient)/R`), power follows utilisation, utilisation follows whether
a rank runs on the device. Deterministic: given the seed and the times passed in, the
readings are always the same. Figures are of the order of an H100 SXM.
"""

import math
import zlib
from dataclasses import dataclass, field

from agents.core.health import NvLinks
from agents.errors import ProbeError
from agents.probes.base import Capabilities
from controlplane.protocol.samples import DeviceInfo, DeviceSample, XidEvent

_IDLE_W, _BUSY_W, _LIMIT_W = 75.0, 620.0, 700.0
_RESISTANCE_C_PER_W = 0.075
_TIME_CONSTANT_S = 18.0
_OVERHEAT_CONSTANT_S = 4.0
_RAMP_S = 2.0
_IDLE_CLOCK_MHZ, _BOOST_CLOCK_MHZ, _SLOW_CLOCK_MHZ = 345.0, 1980.0, 1095.0
_SLOWDOWN_C = 87.0
_MEMORY_BYTES = 80 * 1024**3
_EMPTY_BYTES = 320 * 1024**2
_LINKS = 18
_LINK_TEXT = {
    # Corrected errors, after which work goes on; a link that trains anew.
    74: ", link {link}(0x0, 0x0, 0x0, 0x0, 0x100000, 0x0, 0x0)",
    145: ", RLW_CTRL Nonfatal XC0 i0 Link {link:02d} (0x00000001 0x80000000)",
}
"""The driver's words about an NVLink."""
FAULTS = frozenset({"overheat", "ecc", "xid", "throttle", "off_bus", "nvlink", "old_driver", "heal"})
_DRIVER_VERSION = "570.124.06"


@dataclass(slots=True)
class _Device:
    """One device's hidden state."""

    index: int
    temperature_c: float
    utilization: float = 0.0
    overheat_c: float | None = None
    throttled: bool = False
    off_bus: bool = False
    ecc_corrected: int = 0
    ecc_uncorrected: int = 0
    remap_pending: bool = False
    last_s: float | None = None
    links_down: set[int] = field(default_factory=set)
    xids: list[XidEvent] = field(default_factory=list)


class SimulatedProbe:
    """`count` devices of one model. `ambient_c` is the air at the inlet."""

    def __init__(
        self, *, count: int, node_name: str, model: str = "H100", seed: int = 0, ambient_c: float = 28.0
    ) -> None:
        self._node_name = node_name
        self._model = f"Simulated {model}"
        self._seed = seed
        self._ambient_c = ambient_c
        self._driver_version = _DRIVER_VERSION
        self._devices = [_Device(index, ambient_c + _IDLE_W * _RESISTANCE_C_PER_W) for index in range(count)]

    @property
    def capabilities(self) -> Capabilities:
        """Everything."""
        return Capabilities(may_block=False, faults=True, xid_events=True, ecc=True, row_remap=True, nvlink=True)

    def devices(self) -> tuple[DeviceInfo, ...]:
        """Names that say what they are."""
        return tuple(
            DeviceInfo(
                index=device.index,
                uuid=f"SIM-{zlib.crc32(self._node_name.encode()):08x}-{device.index:04d}",
                model=self._model,
                memory_bytes=_MEMORY_BYTES,
                driver="simulated",
                pci_bus_id=f"0000:{device.index + 1:02x}:00.0",
                driver_version=self._driver_version,
            )
            for device in self._devices
        )

    def sample(self, now_s: float, busy: frozenset[int]) -> tuple[DeviceSample, ...]:
        """Advance every device to `now_s` and read it."""
        return tuple(self._read(device, now_s, device.index in busy) for device in self._devices)

    def nvlinks(self) -> tuple[NvLinks, ...]:
        """All links of a device are up but those that were cut."""
        return tuple(
            NvLinks(
                device_index=device.index,
                active=tuple(link for link in range(_LINKS) if link not in device.links_down),
                inactive=tuple(sorted(device.links_down)),
            )
            for device in self._devices
            if not device.off_bus
        )

    def xids(self) -> tuple[XidEvent, ...]:
        """Injected ones, once each."""
        seen: list[XidEvent] = []
        for device in self._devices:
            seen.extend(device.xids)
            device.xids.clear()
        return tuple(seen)

    def inject(self, device_index: int, fault: str, value: float) -> None:
        """See `protocol.commands.InjectDeviceFault`."""
        if not 0 <= device_index < len(self._devices):
            raise ProbeError(f"no device {device_index}; there are {len(self._devices)}")
        if fault not in FAULTS:
            raise ProbeError(f"unknown fault {fault!r}; known: {', '.join(sorted(FAULTS))}")
        device = self._devices[device_index]
        match fault:
            case "overheat":
                device.overheat_c = value or 98.0
            case "ecc":
                device.ecc_corrected += 40
                device.ecc_uncorrected += max(int(value), 1)
                device.remap_pending = True
            case "xid":
                self._raise_xid(device, int(value) or 79, link=round(value % 1 * 100))
            case "throttle":
                device.throttled = True
            case "off_bus":
                self._raise_xid(device, 79)
            case "nvlink":
                if not 0 <= value < _LINKS:
                    raise ProbeError(f"no NVLink {value:g}; there are {_LINKS}, from 0")
                device.links_down.add(int(value))
            case "old_driver":
                self._driver_version = f"{int(value) or 535}.104.05"
            case _:
                healed = _Device(device_index, device.temperature_c, last_s=device.last_s)
                self._devices[device_index] = healed
                self._driver_version = _DRIVER_VERSION

    def reset(self, device_index: int) -> None:
        """As a real one: volatile counters begin anew, rows that waited are remapped. A device off
        the bus cannot be reached; heat and a throttle come from outside and stay."""
        if not 0 <= device_index < len(self._devices):
            raise ProbeError(f"no device {device_index}; there are {len(self._devices)}")
        device = self._devices[device_index]
        if device.off_bus:
            raise ProbeError("the device is not on the bus: reboot the node")
        device.ecc_corrected = device.ecc_uncorrected = 0
        device.remap_pending = False
        device.utilization = 0.0

    def close(self) -> None:
        """Nothing to let go of."""

    def _raise_xid(self, device: _Device, xid: int, *, link: int = 0) -> None:
        detail = f"simulated XID {xid}{_LINK_TEXT.get(xid, '').format(link=link)}"
        device.xids.append(XidEvent(index=device.index, xid=xid, detail=detail))
        # 79 is "GPU has fallen off the bus"; 48 and 94, 95 are uncorrectable memory errors.
        if xid == 79:
            device.off_bus = True
        if xid in (48, 94, 95):
            device.ecc_uncorrected += 1
            device.remap_pending = True

    def _read(self, device: _Device, now_s: float, busy: bool) -> DeviceSample:
        if device.off_bus:
            return DeviceSample(index=device.index, present=False)
        elapsed_s = 0.0 if device.last_s is None else max(now_s - device.last_s, 0.0)
        device.last_s = now_s
        noise = _noise(self._seed, device.index, now_s)
        target = 0.94 if busy else 0.0
        device.utilization += (target - device.utilization) * -math.expm1(-elapsed_s / _RAMP_S)
        slowed = device.throttled or device.temperature_c >= _SLOWDOWN_C
        share = device.utilization * (0.55 if slowed else 1.0)
        power_w = min(_IDLE_W + (_BUSY_W - _IDLE_W) * share + 6.0 * noise * device.utilization, _LIMIT_W)
        self._heat(device, power_w, elapsed_s)
        idle = device.utilization < 0.02
        clock_mhz = _SLOW_CLOCK_MHZ if slowed else _BOOST_CLOCK_MHZ
        reasons = (("hw_thermal_slowdown",) if slowed else ()) + (("gpu_idle",) if idle else ())
        return DeviceSample(
            index=device.index,
            temperature_c=round(device.temperature_c + 0.4 * noise, 1),
            memory_temperature_c=round(device.temperature_c + 8.0 + 0.3 * noise, 1),
            power_w=round(power_w, 1),
            power_limit_w=_LIMIT_W,
            utilization_ratio=0.0 if idle else round(min(max(device.utilization + 0.02 * noise, 0.0), 1.0), 3),
            memory_utilization_ratio=0.0 if idle else round(min(max(0.6 * device.utilization, 0.0), 1.0), 3),
            # A rank's memory is free at once when it ends; only its heat stays for a while.
            memory_used_bytes=_EMPTY_BYTES + (int(_MEMORY_BYTES * 0.78 * device.utilization) if busy else 0),
            sm_clock_mhz=_IDLE_CLOCK_MHZ if idle else clock_mhz,
            ecc_corrected_total=device.ecc_corrected,
            ecc_uncorrected_total=device.ecc_uncorrected,
            row_remap_pending=device.remap_pending,
            row_remap_failure=False,
            throttle_reasons=reasons,
            pcie_replay_total=0,
            nvlink_error_total=len(device.links_down),
            retired_pages_total=0,
        )

    def _heat(self, device: _Device, power_w: float, elapsed_s: float) -> None:
        target_c = self._ambient_c + power_w * _RESISTANCE_C_PER_W
        constant_s = _TIME_CONSTANT_S
        if device.overheat_c is not None:
            target_c, constant_s = device.overheat_c, _OVERHEAT_CONSTANT_S
        # The exact solution over the interval, so that sampling rate changes nothing.
        device.temperature_c += (target_c - device.temperature_c) * -math.expm1(-elapsed_s / constant_s)


def _noise(seed: int, index: int, now_s: float) -> float:
    """-1..1, the same for the same arguments."""
    return zlib.crc32(f"{seed}:{index}:{now_s:.3f}".encode()) / 0x7FFFFFFF - 1.0
