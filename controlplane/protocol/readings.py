"""Every reading of a device, in one table: where it comes from, its unit, where it goes.

`samples.DeviceSample` has a field for each that the driver gives; the rest is derived from those.
History (`telemetry.codec`), Prometheus (`agents.device_series`), the page's charts, the revisions of the
protocol and docs/readings.md ask this table. Pure.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from controlplane.protocol.samples import DeviceSample

SLOWED_BY = frozenset(
    {"hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown", "sw_power_cap"}
)
"""Throttle reasons that make a device slower than it could be; idling and following others do not."""
HZ_IN_MHZ = 1_000_000.0
MIB_BYTES = float(1 << 20)
KIB_BYTES = 1024.0
PERCENT = 100.0
ECC = "Memory errors since the driver was loaded."


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One a device on a node's page. `place` in their order; `shown`: how a value is written (the page's
    `DeviceCharts`); the axis from `low` to `high`, or `span` at least; `ticks`: "whole" or "binary"."""

    place: int
    title: str
    shown: str
    low: float | None = None
    high: float | None = None
    span: float | None = None
    ticks: str = ""


@dataclass(frozen=True, kw_only=True)
class Exported:
    """Its series for Prometheus, without the prefix. A counter's name gets `_total` where it is printed."""

    name: str
    text: str
    counts: bool = False
    labels: dict[str, str] = field(default_factory=dict)
    scale: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Reading:
    """`name`: the sample's field, or (where `of` is given) a number of history made of the fields
    `made_of`; `nvml`: what the probe asks; `dcgm`: NVIDIA's name of it elsewhere; `step`: as fine as history
    keeps it, 0: not kept by itself; `band`, `band_ratio`: so far from it, or from so much of itself, history leaves the
    value before; `since`: the revision of the protocol that brought it."""

    name: str
    unit: str
    what: str
    nvml: str = ""
    dcgm: str = ""
    step: float = 0.0
    band: float = 0.0
    band_ratio: float = 0.0
    chart: Chart | None = None
    exported: Exported | None = None
    since: int = 0
    made_of: tuple[str, ...] = ()
    of: Callable[[DeviceSample], float | None] | None = None

    def read(self, sample: DeviceSample) -> float | None:
        """As a number; None where the device does not give it."""
        value = self.of(sample) if self.of is not None else getattr(sample, self.name)
        return None if value is None else float(value)

    @property
    def sampled(self) -> bool:
        """A driver gives it; else it is made of others."""
        return self.of is None


def _row_remap(sample: DeviceSample) -> float | None:
    """0: nothing; 1: rows wait for a reset to be remapped; 2: no row is left to remap to."""
    if sample.row_remap_failure is None and sample.row_remap_pending is None:
        return None
    return 2.0 if sample.row_remap_failure else float(bool(sample.row_remap_pending))


def _throttled(sample: DeviceSample) -> float | None:
    """1 while a reason holds it back. A device that gives no clock tells no reasons either."""
    if sample.throttle_reasons is None or (sample.sm_clock_mhz is None and not sample.throttle_reasons):
        return None
    return float(bool(SLOWED_BY.intersection(sample.throttle_reasons)))


RISK = Reading(
    name="risk",
    unit="score 0..1",
    what="how likely it fails soon (`policy.risk`)",
    step=0.001,
    chart=Chart(place=4, title="Risk", shown="score", low=0.0, high=1.0),
    of=lambda sample: None,
)
"""The sentinel's own; it puts its score beside the readings."""

READINGS: tuple[Reading, ...] = (
    Reading(
        name="temperature_c",
        unit="degrees Celsius",
        what="temperature of the device",
        nvml="nvmlDeviceGetTemperature",
        dcgm="DCGM_FI_DEV_GPU_TEMP",
        step=0.25,
        band=1.0,
        chart=Chart(place=1, title="Temperature", shown="celsius", span=20.0, ticks="whole"),
        exported=Exported(name="temperature_celsius", text="Temperature of the device."),
    ),
    Reading(
        name="memory_temperature_c",
        unit="degrees Celsius",
        what="temperature of its memory",
        nvml="nvmlDeviceGetFieldValues",
        dcgm="DCGM_FI_DEV_MEMORY_TEMP",
        step=0.25,
        band=1.0,
        chart=Chart(place=12, title="Memory temperature", shown="celsius", span=20.0, ticks="whole"),
        exported=Exported(name="memory_temperature_celsius", text="Temperature of its memory."),
    ),
    Reading(
        name="power_w",
        unit="watts",
        what="power that it draws",
        nvml="nvmlDeviceGetPowerUsage",
        dcgm="DCGM_FI_DEV_POWER_USAGE",
        step=1.0,
        band=2.0,
        band_ratio=0.05,
        chart=Chart(place=2, title="Power", shown="watts", ticks="whole"),
        exported=Exported(name="power_watts", text="Power that it draws."),
    ),
    Reading(
        name="power_limit_w",
        unit="watts",
        what="power that it may draw",
        nvml="nvmlDeviceGetEnforcedPowerLimit",
        dcgm="DCGM_FI_DEV_ENFORCED_POWER_LIMIT",
        step=0.5,
        chart=Chart(place=13, title="Power limit", shown="watts", span=100.0, ticks="whole"),
        exported=Exported(name="power_limit_watts", text="Power that it may draw."),
    ),
    Reading(
        name="utilization_ratio",
        unit="ratio 0..1",
        what="share of the time in which it computed",
        nvml="nvmlDeviceGetUtilizationRates",
        dcgm="DCGM_FI_DEV_GPU_UTIL",
        step=0.005,
        band=0.05,
        chart=Chart(place=3, title="Utilisation", shown="percent", low=0.0, high=1.0),
        exported=Exported(name="utilization_ratio", text="Share of the time in which it computed."),
    ),
    Reading(
        name="memory_utilization_ratio",
        unit="ratio 0..1",
        what="share of the time in which its memory was busy",
        nvml="nvmlDeviceGetUtilizationRates",
        dcgm="DCGM_FI_DEV_MEM_COPY_UTIL",
        step=0.005,
        band=0.05,
        chart=Chart(place=14, title="Memory bandwidth in use", shown="percent", low=0.0, high=1.0),
        exported=Exported(name="memory_utilization_ratio", text="Share of the time in which its memory was busy."),
    ),
    Reading(
        name="memory_used_bytes",
        unit="bytes",
        what="memory that processes have allocated",
        nvml="nvmlDeviceGetMemoryInfo",
        dcgm="DCGM_FI_DEV_FB_USED",
        step=MIB_BYTES,
        chart=Chart(place=5, title="Memory used", shown="bytes", ticks="binary"),
        exported=Exported(name="memory_used_bytes", text="Memory in use."),
    ),
    Reading(
        name="sm_clock_mhz",
        unit="megahertz",
        what="clock of its processors",
        nvml="nvmlDeviceGetClockInfo",
        dcgm="DCGM_FI_DEV_SM_CLOCK",
        step=1.0,
        band=30.0,
        chart=Chart(place=6, title="SM clock", shown="megahertz", ticks="whole"),
        exported=Exported(name="sm_clock_hertz", text="Clock of its processors.", scale=HZ_IN_MHZ),
    ),
    Reading(
        name="ecc_corrected_total",
        unit="errors",
        what="corrected memory errors since the driver was loaded",
        nvml="nvmlDeviceGetTotalEccErrors",
        dcgm="DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",
        step=1.0,
        chart=Chart(place=8, title="Corrected memory errors", shown="count", span=4.0, ticks="whole"),
        exported=Exported(name="ecc_errors", text=ECC, counts=True, labels={"type": "corrected"}),
    ),
    Reading(
        name="ecc_uncorrected_total",
        unit="errors",
        what="uncorrectable memory errors since the driver was loaded",
        nvml="nvmlDeviceGetTotalEccErrors",
        dcgm="DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
        step=1.0,
        chart=Chart(place=7, title="Uncorrectable memory errors", shown="count", span=4.0, ticks="whole"),
        exported=Exported(name="ecc_errors", text=ECC, counts=True, labels={"type": "uncorrected"}),
    ),
    Reading(
        name="row_remap_pending",
        unit="yes or no",
        what="a row of memory waits for a reset to be remapped",
        nvml="nvmlDeviceGetRemappedRows",
        dcgm="DCGM_FI_DEV_ROW_REMAP_PENDING",
        exported=Exported(name="row_remap_pending", text="1: a row of memory waits for a reset to be remapped."),
    ),
    Reading(
        name="row_remap_failure",
        unit="yes or no",
        what="a row of memory could not be remapped",
        nvml="nvmlDeviceGetRemappedRows",
        dcgm="DCGM_FI_DEV_ROW_REMAP_FAILURE",
        exported=Exported(name="row_remap_failure", text="1: a row of memory could not be remapped."),
    ),
    Reading(
        name="retired_pages_total",
        unit="pages",
        what="pages of memory retired since it was made, on models that remap no rows",
        nvml="nvmlDeviceGetRetiredPages",
        dcgm="DCGM_FI_DEV_RETIRED_SBE, DCGM_FI_DEV_RETIRED_DBE",
        step=1.0,
        chart=Chart(place=10, title="Retired pages", shown="count", span=4.0, ticks="whole"),
        exported=Exported(name="retired_pages", text="Pages of memory retired since it was made.", counts=True),
        since=3,
    ),
    Reading(
        name="row_remap",
        unit="0, 1 or 2",
        what="0 nothing, 1 rows wait for a reset, 2 no row is left to remap to",
        step=1.0,
        chart=Chart(place=9, title="Row remap", shown="remap", low=0.0, high=2.0, ticks="whole"),
        made_of=("row_remap_pending", "row_remap_failure"),
        of=_row_remap,
    ),
    Reading(
        name="throttled",
        unit="0 or 1",
        what="1 while a reason holds it back",
        step=1.0,
        chart=Chart(place=11, title="Throttled", shown="throttled", low=0.0, high=1.0, ticks="whole"),
        made_of=("throttle_reasons",),
        of=_throttled,
    ),
    Reading(
        name="pcie_replay_total",
        unit="repeats",
        what="repeats on its PCIe link",
        nvml="nvmlDeviceGetPcieReplayCounter",
        dcgm="DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
        step=1.0,
        chart=Chart(place=15, title="PCIe replays", shown="count", span=4.0, ticks="whole"),
        exported=Exported(name="pcie_replays", text="Repeats on its PCIe link.", counts=True),
    ),
    Reading(
        name="nvlink_error_total",
        unit="errors",
        what="errors of its NVLinks",
        nvml="nvmlDeviceGetNvLinkErrorCounter",
        dcgm="DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL and its kin",
        step=1.0,
        chart=Chart(place=16, title="NVLink errors", shown="count", span=4.0, ticks="whole"),
        exported=Exported(name="nvlink_errors", text="Errors of its NVLinks.", counts=True),
    ),
    Reading(
        name="throttle_reasons",
        unit="words",
        what="why its clock is held back; counted in seconds for Prometheus",
        nvml="nvmlDeviceGetCurrentClocksThrottleReasons",
        dcgm="DCGM_FI_DEV_CLOCK_THROTTLE_REASONS",
    ),
    RISK,
)
HISTORY = tuple(reading for reading in READINGS if reading.step)
"""What is kept, in the order of a packed chunk."""


def added_in(revision: int) -> tuple[str, ...]:
    """Fields of a sample that this revision of the protocol brought."""
    return tuple(reading.name for reading in READINGS if reading.sampled and reading.since == revision)


def _bytes(value: float) -> str:
    unit = "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < KIB_BYTES:
            break
        value, unit = value / KIB_BYTES, larger
    return f"{value:.0f} {unit}" if value >= PERCENT or unit == "B" else f"{value:.1f} {unit}"


_REMAP = ("nothing", "waits for a reset", "failed")
_SHOWN: dict[str, Callable[[float], str]] = {
    "celsius": lambda value: f"{value:.0f} C",
    "watts": lambda value: f"{value:.0f} W",
    "percent": lambda value: f"{value * PERCENT:.0f} %",
    "score": lambda value: f"{value:.2f}",
    "bytes": _bytes,
    "megahertz": lambda value: f"{value:.0f} MHz",
    "count": lambda value: f"{value:,.0f}",
    "remap": lambda value: _REMAP[min(max(int(value), 0), len(_REMAP) - 1)],
    "throttled": lambda value: "held back" if value > 0 else "free",
}


def in_words(reading: Reading, value: float | None) -> str:
    """A value of it with its unit, as the page writes it; "-" for none."""
    show = _SHOWN.get(reading.chart.shown) if reading.chart else None
    if value is None:
        return "-"
    return show(value) if show else f"{value:g}"
