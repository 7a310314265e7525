"""Device readings. A missing reading is None, never 0 or -1 (honest absence)."""

import msgspec


class DeviceInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A device as its driver names it. `memory_bytes` total; `driver`: nvml or simulated."""

    index: int
    uuid: str
    model: str
    memory_bytes: int | None
    driver: str
    pci_bus_id: str = ""
    driver_version: str = ""


class DeviceSample(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One reading of one device. Ratios are 0..1. Error counters are cumulative since
    the driver was loaded. `present` False: the device fell off the bus."""

    index: int
    present: bool = True
    temperature_c: float | None = None
    memory_temperature_c: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    utilization_ratio: float | None = None
    memory_utilization_ratio: float | None = None
    memory_used_bytes: int | None = None
    sm_clock_mhz: float | None = None
    ecc_corrected_total: int | None = None
    ecc_uncorrected_total: int | None = None
    row_remap_pending: bool | None = None
    row_remap_failure: bool | None = None
    throttle_reasons: tuple[str, ...] = ()
    pcie_replay_total: int | None = None
    nvlink_error_total: int | None = None


class XidEvent(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The driver reported an XID on a device. `detail` is the driver's text, untrusted."""

    index: int
    xid: int
    detail: str = ""
