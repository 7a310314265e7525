"""Readings of devices that train, as NVML gives them: whole degrees, percents and clock steps, with their noise.

Seeded, for benchmarks and tests. Per device: power follows the training step (a second's mean still moves by some
percent), temperature follows power through the heat sink, utilisation and memory traffic jitter by some points, the
clock gives way in steps of 15 MHz when the power comes near its limit. Rates of errors are those of a fleet: rare.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from controlplane.protocol.samples import DeviceSample

Floats = npt.NDArray[np.float64]

LIMIT_W = 700.0
MEMORY_BYTES = 80 << 30
HEAT_S = 20.0
POWER_NOISE_S = 3.0
CLOCK_STEP_MHZ = 15.0
MOST_MHZ = 1980.0
ERRORS_A_DEVICE_HOUR = 0.01
FIELDS = (
    "temperature_c",
    "memory_temperature_c",
    "power_w",
    "utilization_ratio",
    "memory_utilization_ratio",
    "memory_used_bytes",
    "sm_clock_mhz",
    "ecc_corrected_total",
)


class Sensors:
    """`devices` of them, `interval_s` between two readings."""

    def __init__(self, devices: int, *, seed: int, interval_s: float = 1.0) -> None:
        self._random = np.random.default_rng(seed)
        self._interval_s = interval_s
        self._usual_w = self._random.uniform(560.0, 680.0, devices)
        self._swing_w = np.zeros(devices)
        self._heat_c = 30.0 + self._usual_w * 0.055
        self._used = np.floor(MEMORY_BYTES * self._random.uniform(0.6, 0.93, devices))
        self._errors = np.zeros(devices)

    def read(self) -> dict[str, Floats]:
        """One reading of each device, by the sample's field."""
        random, count = self._random, len(self._usual_w)
        keep = np.exp(-self._interval_s / POWER_NOISE_S)
        self._swing_w = self._swing_w * keep + random.normal(0.0, 18.0 * np.sqrt(1 - keep**2), count)
        power_w = np.minimum(self._usual_w + self._swing_w, LIMIT_W + 5.0)
        cool = np.exp(-self._interval_s / HEAT_S)
        self._heat_c = self._heat_c * cool + (30.0 + power_w * 0.055) * (1 - cool)
        over = np.maximum(power_w - 660.0, 0.0)
        self._errors += random.random(count) < ERRORS_A_DEVICE_HOUR * self._interval_s / 3600.0
        return {
            "temperature_c": np.round(self._heat_c + random.normal(0.0, 0.2, count)),
            "memory_temperature_c": np.round(self._heat_c + 9.0 + random.normal(0.0, 0.2, count)),
            "power_w": np.round(power_w, 3),
            "utilization_ratio": np.round(np.clip(random.normal(0.97, 0.02, count), 0.0, 1.0), 2),
            "memory_utilization_ratio": np.round(np.clip(random.normal(0.55, 0.02, count), 0.0, 1.0), 2),
            "memory_used_bytes": self._used,
            "sm_clock_mhz": MOST_MHZ - CLOCK_STEP_MHZ * np.floor(over / 8.0),
            "ecc_corrected_total": self._errors.copy(),
        }

    def samples(self) -> Iterator[DeviceSample]:
        """The same as an agent sends them; the index counts from 0 and is the caller's to set."""
        columns = self.read()
        rows = zip(*(columns[name].tolist() for name in FIELDS), strict=True)
        for index, (heat, memory_heat, power, used, traffic, bytes_, clock, errors) in enumerate(rows):
            yield DeviceSample(
                index=index,
                temperature_c=heat,
                memory_temperature_c=memory_heat,
                power_w=power,
                power_limit_w=LIMIT_W,
                utilization_ratio=used,
                memory_utilization_ratio=traffic,
                memory_used_bytes=int(bytes_),
                sm_clock_mhz=clock,
                ecc_corrected_total=int(errors),
                ecc_uncorrected_total=0,
                row_remap_pending=False,
                row_remap_failure=False,
                pcie_replay_total=0,
                nvlink_error_total=0,
                retired_pages_total=0,
            )
