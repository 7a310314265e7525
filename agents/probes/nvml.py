"""Real devices through NVML (nvidia-ml-py). The only file that imports pynvml.

NVML calls can hang when a device is ill, so this runs in a process of its own (see
`worker`). Each reading is asked for separately: what a device, a MIG setting or a driver
does not support is None, and one failing reading takes no other with it.
"""

import threading
from collections.abc import Callable
from typing import Any

import pynvml

from agents.core.health import NvLinks
from agents.errors import ProbeError
from agents.probes.base import Capabilities
from agents.probes.kernel_log import XidTexts, slot_of
from controlplane.protocol.samples import DeviceInfo, DeviceSample, XidEvent

_EVENT_WAIT_MS = 1_000
_MAX_XIDS_KEPT = 1_000
# NVML answers "not available" in some fields with all bits set.
_NOT_AVAILABLE = frozenset({0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF})
_GONE = frozenset({"NVMLError_GpuIsLost", "NVMLError_NotFound", "NVMLError_ResetRequired"})
_THROTTLE_NAMES = {
    "nvmlClocksThrottleReasonGpuIdle": "gpu_idle",
    "nvmlClocksThrottleReasonSwPowerCap": "sw_power_cap",
    "nvmlClocksThrottleReasonHwSlowdown": "hw_slowdown",
    "nvmlClocksThrottleReasonSyncBoost": "sync_boost",
    "nvmlClocksThrottleReasonSwThermalSlowdown": "sw_thermal_slowdown",
    "nvmlClocksThrottleReasonHwThermalSlowdown": "hw_thermal_slowdown",
    "nvmlClocksThrottleReasonHwPowerBrakeSlowdown": "hw_power_brake_slowdown",
}


class NvmlProbe:
    """All devices the driver shows, held by handle; absent ones stay in the list."""

    def __init__(self, *, reported_up_to: int | None = None) -> None:
        """`reported_up_to`: what the probe before this one had told of the kernel log; later XIDs are in `xids`."""
        try:
            pynvml.nvmlInit()
            self._handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        except (pynvml.NVMLError, OSError) as error:
            raise ProbeError(f"NVML is not usable: {error}", retry=True) from error
        self._infos = tuple(self._info(index, handle) for index, handle in enumerate(self._handles))
        self._nvlinks: dict[int, NvLinks] = {}
        self._xids: list[XidEvent] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()
        # Before events are asked for, so that nothing is in both.
        self._texts = XidTexts(after=reported_up_to)
        self._xids += self._missed()
        self._reported_up_to = self._texts.reported_up_to()
        self._events = self._register()
        if self._events is not None:
            threading.Thread(target=self._wait_for_xids, name="xids", daemon=True).start()

    @property
    def capabilities(self) -> Capabilities:
        """Flags say what NVML can answer in principle; None says what a device did not."""
        return Capabilities(
            may_block=True, faults=False, xid_events=self._events is not None, ecc=True, row_remap=True, nvlink=True
        )

    def devices(self) -> tuple[DeviceInfo, ...]:
        """As found at start."""
        return self._infos

    def sample(self, now_s: float, busy: frozenset[int]) -> tuple[DeviceSample, ...]:
        """Ask every device."""
        return tuple(self._read(index, handle) for index, handle in enumerate(self._handles))

    def nvlinks(self) -> tuple[NvLinks, ...]:
        """Read with the newest sample; devices without NVLink are left out."""
        return tuple(self._nvlinks[index] for index in sorted(self._nvlinks))

    def xids(self) -> tuple[XidEvent, ...]:
        """Since the last call."""
        with self._lock:
            seen = tuple(self._xids)
            self._xids.clear()
        return seen

    @property
    def reported_up_to(self) -> int | None:
        """The record of the kernel log up to which `xids` had all; None where it cannot be read."""
        return self._reported_up_to

    def inject(self, device_index: int, fault: str, value: float) -> None:
        """Real devices are never harmed."""
        raise ProbeError("device faults can be injected on simulated devices only")

    def reset(self, device_index: int) -> None:
        """Never from here: whoever holds a handle of the device keeps it from being reset."""
        raise ProbeError("a device is reset while no process holds it: see agents.probes.reset")

    def close(self) -> None:
        """Shut NVML down."""
        self._closing.set()
        _ask(pynvml.nvmlShutdown)

    def _info(self, index: int, handle: Any) -> DeviceInfo:
        memory = _ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
        pci = _ask(pynvml.nvmlDeviceGetPciInfo, handle)
        return DeviceInfo(
            index=index,
            uuid=_text(_ask(pynvml.nvmlDeviceGetUUID, handle)) or f"unknown-{index}",
            model=_text(_ask(pynvml.nvmlDeviceGetName, handle)) or "unknown",
            memory_bytes=int(memory.total) if memory is not None else None,
            driver="nvml",
            pci_bus_id=_text(pci.busId) if pci is not None else "",
            driver_version=_text(_ask(pynvml.nvmlSystemGetDriverVersion)),
        )

    def _read(self, index: int, handle: Any) -> DeviceSample:
        self._nvlinks.pop(index, None)
        try:
            temperature_c = float(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU))
        except pynvml.NVMLError as error:
            if type(error).__name__ in _GONE:
                return DeviceSample(index=index, present=False)
            temperature_c = None
        rates = _ask(pynvml.nvmlDeviceGetUtilizationRates, handle)
        remapped = _ask(pynvml.nvmlDeviceGetRemappedRows, handle)
        links = _nvlinks(index, handle)
        if links.active or links.inactive:
            self._nvlinks[index] = links
        return DeviceSample(
            index=index,
            temperature_c=temperature_c,
            memory_temperature_c=_memory_temperature_c(handle),
            power_w=_scaled(_ask(pynvml.nvmlDeviceGetPowerUsage, handle), 1e-3),
            power_limit_w=_scaled(_ask(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle), 1e-3),
            utilization_ratio=_ratio(rates.gpu) if rates is not None else None,
            memory_utilization_ratio=_ratio(rates.memory) if rates is not None else None,
            memory_used_bytes=_memory_used_bytes(handle),
            sm_clock_mhz=_scaled(_ask(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM), 1.0),
            ecc_corrected_total=_ecc(handle, pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
            ecc_uncorrected_total=_ecc(handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
            row_remap_pending=bool(remapped[2]) if remapped is not None else None,
            row_remap_failure=bool(remapped[3]) if remapped is not None else None,
            throttle_reasons=_throttle_reasons(handle),
            pcie_replay_total=_count(_ask(pynvml.nvmlDeviceGetPcieReplayCounter, handle)),
            nvlink_error_total=_nvlink_errors(handle, links.active),
            retired_pages_total=_retired_pages(handle),
        )

    def _register(self) -> Any | None:
        """An event set that hears XIDs of every device that can tell them."""
        events = _ask(pynvml.nvmlEventSetCreate)
        if events is None:
            return None
        wanted = pynvml.nvmlEventTypeXidCriticalError
        heard = 0
        for handle in self._handles:
            supported = _ask(pynvml.nvmlDeviceGetSupportedEventTypes, handle)
            if supported is not None and supported & wanted:
                try:
                    pynvml.nvmlDeviceRegisterEvents(handle, wanted, events)
                    heard += 1
                except pynvml.NVMLError:
                    continue
        return events if heard else None

    def _wait_for_xids(self) -> None:
        by_bus = {info.pci_bus_id: info.index for info in self._infos}
        while not self._closing.is_set():
            try:
                event = pynvml.nvmlEventSetWait_v2(self._events, _EVENT_WAIT_MS)
            except pynvml.NVMLError as error:
                if type(error).__name__ != "NVMLError_Timeout":
                    # The driver went away; readings will say so, and a restart listens again.
                    self._closing.wait(_EVENT_WAIT_MS / 1000)
                else:
                    self._texts.read()
                    self._reported_up_to = self._texts.reported_up_to()
                continue
            pci = _ask(pynvml.nvmlDeviceGetPciInfo, event.device)
            bus = _text(pci.busId) if pci is not None else ""
            index = by_bus.get(bus)
            if index is None:
                continue
            xid = int(event.eventData)
            with self._lock:
                self._xids.append(XidEvent(index=index, xid=xid, detail=self._texts.take(bus, xid)))
                del self._xids[:-_MAX_XIDS_KEPT]
            self._reported_up_to = self._texts.reported_up_to()

    def _missed(self) -> list[XidEvent]:
        by_slot = {slot_of(info.pci_bus_id): info.index for info in self._infos if info.pci_bus_id}
        return [
            XidEvent(index=by_slot[missed.slot], xid=missed.xid, detail=missed.text)
            for missed in self._texts.missed()
            if missed.slot in by_slot
        ]


def _ask(question: Callable[..., Any], *arguments: Any) -> Any | None:
    """The answer, or None where the device, the driver or this binding has none."""
    try:
        return question(*arguments)
    except (pynvml.NVMLError, AttributeError, TypeError, ValueError):
        return None


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")


def _count(value: Any) -> int | None:
    return None if value is None or int(value) in _NOT_AVAILABLE or int(value) < 0 else int(value)


def _scaled(value: Any, factor: float) -> float | None:
    number = _count(value)
    return None if number is None else number * factor


def _ratio(percent: Any) -> float | None:
    number = _count(percent)
    return None if number is None or number > 100 else number / 100.0


def _memory_temperature_c(handle: Any) -> float | None:
    fields = _ask(pynvml.nvmlDeviceGetFieldValues, handle, [pynvml.NVML_FI_DEV_MEMORY_TEMP])
    if not fields or fields[0].nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    value = int(fields[0].value.uiVal)
    return float(value) if 0 < value < 200 else None


def _ecc(handle: Any, kind: int) -> int | None:
    return _count(_ask(pynvml.nvmlDeviceGetTotalEccErrors, handle, kind, pynvml.NVML_VOLATILE_ECC))


def _retired_pages(handle: Any) -> int | None:
    """Pages taken out of use for either cause, on models that retire pages."""
    causes = (
        pynvml.NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS,
        pynvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR,
    )
    pages = [_ask(pynvml.nvmlDeviceGetRetiredPages, handle, cause) for cause in causes]
    return None if any(found is None for found in pages) else sum(len(found or ()) for found in pages)


def _throttle_reasons(handle: Any) -> tuple[str, ...] | None:
    """None: it does not answer."""
    bits = _ask(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
    if bits is None:
        return None
    return tuple(name for key, name in _THROTTLE_NAMES.items() if bits & getattr(pynvml, key, 0))


def _memory_used_bytes(handle: Any) -> int | None:
    """What processes have allocated. The older form of the answer counts what the driver keeps
    for itself as used, more than half a GB on large devices that are empty."""
    version = getattr(pynvml, "nvmlMemory_v2", None)
    memory = _ask(pynvml.nvmlDeviceGetMemoryInfo, handle, version) if version is not None else None
    memory = memory or _ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
    return int(memory.used) if memory is not None else None


def _nvlinks(index: int, handle: Any) -> NvLinks:
    """A link that the device has not answers "not supported" or "invalid argument", or that it is
    not a valid one: of some models a part is disabled for good, and is no fault."""
    valid = pynvml.NVML_NVLINK_CAP_VALID
    states = {
        link: state
        for link in range(pynvml.NVML_NVLINK_MAX_LINKS)
        if (state := _ask(pynvml.nvmlDeviceGetNvLinkState, handle, link)) is not None
        and _ask(pynvml.nvmlDeviceGetNvLinkCapability, handle, link, valid) != 0
    }
    active = tuple(link for link, state in states.items() if state == pynvml.NVML_FEATURE_ENABLED)
    return NvLinks(device_index=index, active=active, inactive=tuple(link for link in states if link not in active))


def _nvlink_errors(handle: Any, links: tuple[int, ...]) -> int | None:
    """Sum over these links and kinds of error; None without NVLink."""
    total: int | None = None
    kinds = (
        pynvml.NVML_NVLINK_ERROR_DL_REPLAY,
        pynvml.NVML_NVLINK_ERROR_DL_RECOVERY,
        pynvml.NVML_NVLINK_ERROR_DL_CRC_FLIT,
    )
    for link in links:
        for kind in kinds:
            count = _count(_ask(pynvml.nvmlDeviceGetNvLinkErrorCounter, handle, link, kind))
            total = total if count is None else (total or 0) + count
    return total
