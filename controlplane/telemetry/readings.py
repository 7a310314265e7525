"""One sample as the numbers that history keeps, in the order of `codec.METRICS`.

Called by the sentinel's history. Pure. What a device did not read is NaN, never 0.
"""

from controlplane.protocol.samples import DeviceSample
from controlplane.telemetry.codec import METRICS, storable

NAN = float("nan")
SLOWED_BY = frozenset(
    {"hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown", "sw_power_cap"}
)
"""Throttle reasons that make a device slower than it could be; idling and following others do not."""


def values_of(sample: DeviceSample, risk: float | None) -> tuple[list[float], int]:
    """A value for each metric, and how many readings were too large to be kept (they are NaN)."""
    found = {"risk": risk, "row_remap": _row_remap(sample), "throttled": _throttled(sample)}
    values: list[float] = []
    refused = 0
    for name in METRICS:
        value = found[name] if name in found else getattr(sample, name)
        if value is not None and not storable(name, value):
            refused, value = refused + 1, None
        values.append(NAN if value is None else float(value))
    return values, refused


def _row_remap(sample: DeviceSample) -> float | None:
    """0: nothing; 1: rows wait for a reset to be remapped; 2: no row is left to remap to."""
    if sample.row_remap_failure is None and sample.row_remap_pending is None:
        return None
    return 2.0 if sample.row_remap_failure else float(bool(sample.row_remap_pending))


def _throttled(sample: DeviceSample) -> float | None:
    """1 while a reason holds it back. A device that gives no clock tells no reasons either."""
    if sample.sm_clock_mhz is None and not sample.throttle_reasons:
        return None
    return float(bool(SLOWED_BY.intersection(sample.throttle_reasons)))
