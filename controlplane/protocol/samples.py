"""Device readings. A missing reading is None, never 0 or -1 (honest absence)."""

import msgspec

from controlplane.protocol.bounds import (
    Bytes,
    Celsius,
    Count,
    DeviceIndex,
    DriverName,
    Label,
    Line,
    Megahertz,
    Ratio,
    ThrottleReasons,
    Watts,
    Xid,
)


class DeviceInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A device as its driver names it. `memory_bytes` total; `driver`: nvml or simulated."""

    index: DeviceIndex
    uuid: Label
    model: Label
    memory_bytes: Bytes | None
    driver: DriverName
    pci_bus_id: Label = ""
    driver_version: Label = ""


class DeviceSample(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One reading of one device. Ratios are 0..1. Error counters are cumulative since
    the driver was loaded. `retired_pages_total` over the device's life (older models, which
    remap no rows). `present` False: the device fell off the bus. `throttle_reasons`
    None: it was asked and did not answer, which says nothing about them."""

    index: DeviceIndex
    present: bool = True
    temperature_c: Celsius | None = None
    memory_temperature_c: Celsius | None = None
    power_w: Watts | None = None
    power_limit_w: Watts | None = None
    utilization_ratio: Ratio | None = None
    memory_utilization_ratio: Ratio | None = None
    memory_used_bytes: Bytes | None = None
    sm_clock_mhz: Megahertz | None = None
    ecc_corrected_total: Count | None = None
    ecc_uncorrected_total: Count | None = None
    row_remap_pending: bool | None = None
    row_remap_failure: bool | None = None
    throttle_reasons: ThrottleReasons | None = ()
    pcie_replay_total: Count | None = None
    nvlink_error_total: Count | None = None
    retired_pages_total: Count | None = None


class XidEvent(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The driver reported an XID on a device. `detail` is the driver's text, untrusted."""

    index: DeviceIndex
    xid: Xid
    detail: Line = ""
