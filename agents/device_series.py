"""Series of this node's devices for Prometheus: what the driver told last, and what was counted.

The runtime feeds it each round of samples and each XID; `agents.exporter` reads it when it is
scraped, from a thread of its own. What the driver does not tell has no series: absent, never 0. It
asks no device itself.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from controlplane.protocol.samples import DeviceInfo, DeviceSample, XidEvent

PREFIX = "holdfast_gpu_"
HZ_IN_MHZ = 1_000_000
Reading = Callable[[DeviceSample], float | None]
GAUGES: tuple[tuple[str, str, Reading], ...] = (
    ("temperature_celsius", "Temperature of the device.", lambda s: s.temperature_c),
    ("memory_temperature_celsius", "Temperature of its memory.", lambda s: s.memory_temperature_c),
    ("power_watts", "Power that it draws.", lambda s: s.power_w),
    ("power_limit_watts", "Power that it may draw.", lambda s: s.power_limit_w),
    ("utilization_ratio", "Share of the time in which it computed.", lambda s: s.utilization_ratio),
    (
        "memory_utilization_ratio",
        "Share of the time in which its memory was busy.",
        lambda s: s.memory_utilization_ratio,
    ),
    ("memory_used_bytes", "Memory in use.", lambda s: s.memory_used_bytes),
    (
        "sm_clock_hertz",
        "Clock of its processors.",
        lambda s: None if s.sm_clock_mhz is None else s.sm_clock_mhz * HZ_IN_MHZ,
    ),
    ("row_remap_pending", "1: a row of memory waits for a reset to be remapped.", lambda s: s.row_remap_pending),
    ("row_remap_failure", "1: a row of memory could not be remapped.", lambda s: s.row_remap_failure),
)
COUNTERS: tuple[tuple[str, str, dict[str, str], Reading], ...] = (
    (
        "ecc_errors",
        "Memory errors since the driver was loaded.",
        {"type": "corrected"},
        lambda s: s.ecc_corrected_total,
    ),
    (
        "ecc_errors",
        "Memory errors since the driver was loaded.",
        {"type": "uncorrected"},
        lambda s: s.ecc_uncorrected_total,
    ),
    ("pcie_replays", "Repeats on its PCIe link.", {}, lambda s: s.pcie_replay_total),
    ("nvlink_errors", "Errors of its NVLinks.", {}, lambda s: s.nvlink_error_total),
    ("retired_pages", "Pages of memory retired over its life.", {}, lambda s: s.retired_pages_total),
)


class Series(NamedTuple):
    """One value. `counts`: a counter, whose name gets `_total` where it is printed."""

    name: str
    text: str
    counts: bool
    labels: dict[str, str]
    value: float


class DeviceSeries:
    """Of all devices of one node."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._uuids: dict[int, str] = {}
        self._samples: dict[int, DeviceSample] = {}
        self._sampled_s: float | None = None
        self._xids: Counter[tuple[int, int]] = Counter()
        self._throttled_s: dict[tuple[int, str], float] = {}

    def sampled(self, now_s: float, samples: tuple[DeviceSample, ...], devices: tuple[DeviceInfo, ...]) -> None:
        """A round of readings at `now_s`, by the monotonic clock. A reason to throttle that both
        this round and the one before gave counts for the time between them."""
        with self._lock:
            for sample in samples:
                before = self._samples.get(sample.index)
                if before is not None and self._sampled_s is not None:
                    for reason in set(before.throttle_reasons) & set(sample.throttle_reasons):
                        key = (sample.index, reason)
                        self._throttled_s[key] = self._throttled_s.get(key, 0.0) + now_s - self._sampled_s
            self._uuids = {device.index: device.uuid for device in devices}
            self._samples = {sample.index: sample for sample in samples}
            self._sampled_s = now_s

    def xid(self, event: XidEvent) -> None:
        """The driver reported it once more. It is counted for good: an old one is no state."""
        with self._lock:
            self._xids[event.index, event.xid] += 1

    def read(self, now_s: float) -> Iterator[Series]:
        """All that is known at `now_s`, by the monotonic clock, in the order of the tables above."""
        with self._lock:
            samples = [sample for _, sample in sorted(self._samples.items()) if sample.present]
            uuids, xids, throttled = dict(self._uuids), dict(self._xids), dict(self._throttled_s)
            sampled_s = self._sampled_s
        yield Series("holdfast_gpus_expected", "Devices that the driver listed.", False, {}, float(len(uuids)))
        yield Series("holdfast_gpus_present", "Of them, those that answer.", False, {}, float(len(samples)))
        if sampled_s is not None:
            age_s = now_s - sampled_s
            yield Series("holdfast_gpus_sample_age_seconds", "Since the driver answered.", False, {}, age_s)
        for sample in samples:
            named = _named(sample.index, uuids)
            for name, text, reading in GAUGES:
                if (value := reading(sample)) is not None:
                    yield Series(PREFIX + name, text, False, named, float(value))
            for name, text, labels, reading in COUNTERS:
                if (value := reading(sample)) is not None:
                    yield Series(PREFIX + name, text, True, named | labels, float(value))
        for (index, xid), number in sorted(xids.items()):
            labels = _named(index, uuids) | {"xid": str(xid)}
            yield Series(f"{PREFIX}xid_errors", "XIDs since the agent began.", True, labels, float(number))
        for (index, reason), seconds in sorted(throttled.items()):
            labels = _named(index, uuids) | {"reason": reason}
            yield Series(f"{PREFIX}clock_throttle_seconds", "Time throttled since then.", True, labels, seconds)


def _named(index: int, uuids: dict[int, str]) -> dict[str, str]:
    return {"gpu": str(index), "uuid": uuids.get(index, "")}
