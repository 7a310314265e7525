"""Series of this node's devices for Prometheus: what the driver told last, and what was counted.

The runtime feeds it each round of samples and each XID; `agents.exporter` reads it when it is
scraped, from a thread of its own. What the driver does not tell has no series: absent, never 0. It
asks no device itself.
"""

import threading
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from controlplane.protocol.readings import READINGS
from controlplane.protocol.samples import DeviceInfo, DeviceSample, XidEvent

PREFIX = "holdfast_gpu_"


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
                    for reason in set(before.throttle_reasons or ()) & set(sample.throttle_reasons or ()):
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
        """All that is known at `now_s`, by the monotonic clock, in the order of `protocol.readings`."""
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
            for reading in READINGS:
                told = reading.exported
                if told is not None and (value := reading.read(sample)) is not None:
                    yield Series(PREFIX + told.name, told.text, told.counts, named | told.labels, value * told.scale)
        for (index, xid), number in sorted(xids.items()):
            labels = _named(index, uuids) | {"xid": str(xid)}
            yield Series(f"{PREFIX}xid_errors", "XIDs since the agent began.", True, labels, float(number))
        for (index, reason), seconds in sorted(throttled.items()):
            labels = _named(index, uuids) | {"reason": reason}
            yield Series(f"{PREFIX}clock_throttle_seconds", "Time throttled since then.", True, labels, seconds)


def _named(index: int, uuids: dict[int, str]) -> dict[str, str]:
    return {"gpu": str(index), "uuid": uuids.get(index, "")}
