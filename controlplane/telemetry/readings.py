"""One sample as the numbers that history keeps, in the order of `codec.METRICS`.

Called by the sentinel's history. Pure. What a device did not read is NaN, never 0.
"""

from controlplane.protocol.readings import HISTORY, RISK
from controlplane.protocol.samples import DeviceSample
from controlplane.telemetry.codec import storable

NAN = float("nan")


def values_of(sample: DeviceSample, risk: float | None) -> tuple[list[float], int]:
    """A value for each metric, and how many readings were too large to be kept (they are NaN)."""
    values: list[float] = []
    refused = 0
    for reading in HISTORY:
        value = risk if reading is RISK else reading.read(sample)
        if value is not None and not storable(reading.name, value):
            refused, value = refused + 1, None
        values.append(NAN if value is None else float(value))
    return values, refused
