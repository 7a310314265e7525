"""What history keeps of a reading: the value before, while the reading is so near to it that the sensor says no more.

A sensor's last digits are noise: a board's power meter is exact to about 5 %, utilisation is a share of a part of a
second. Stored as they come they are most of a history's bytes, and mean nothing. So of each reading the value before is
kept while the reading is within `band` of it (or `band_ratio` of itself), by the table of readings; then, and at each
limit by which something is judged, the reading itself. Each stored value is within `bound` of what was read, at each
moment; counters, states and scores have no band. Pure; called by the sentinel's history for a wave of devices.
"""

import numpy as np
import numpy.typing as npt

from controlplane.policy.readings import MEMORY_HOT_C
from controlplane.protocol.readings import HISTORY
from controlplane.telemetry.codec import METRICS, MISSING, STEPS

Floats = npt.NDArray[np.float64]

BAND: Floats = np.array([reading.band for reading in HISTORY])
BAND_RATIO: Floats = np.array([reading.band_ratio for reading in HISTORY])
EDGES: Floats = np.full(len(METRICS), np.inf)
"""A value from which on a reading is judged otherwise: never kept across it."""
EDGES[METRICS.index("memory_temperature_c")] = MEMORY_HOT_C


def bound(values: Floats) -> Floats:
    """How far what is stored may be from what was read, [.., METRICS], each in its unit."""
    largest: Floats = np.maximum(np.maximum(BAND, BAND_RATIO * np.abs(values)), STEPS / 2)
    return largest


class Held:
    """The value kept of each metric in each row, in steps; NaN before the first."""

    def __init__(self) -> None:
        self._kept: Floats = np.empty((0, len(METRICS)))

    def take(self, rows: npt.NDArray[np.intp], values: Floats) -> npt.NDArray[np.int32]:
        """[rows, METRICS] in steps of one reading of each of these rows, in units, NaN where nothing was read. Each
        value is `codec.storable`, each row occurs once."""
        missing = int(rows.max(initial=-1)) + 1 - len(self._kept)
        if missing > 0:
            more = max(missing, len(self._kept))
            self._kept = np.concatenate([self._kept, np.full((more, len(METRICS)), np.nan)])
        before = self._kept[rows]
        kept = before * STEPS
        near = np.abs(values - kept) <= np.maximum(BAND, BAND_RATIO * np.abs(values))
        near &= (values >= EDGES) == (kept >= EDGES)
        exact = np.round(values / STEPS)
        # A step may lie across the edge that its reading does not reach.
        exact = np.where((exact * STEPS >= EDGES) & (values < EDGES), np.ceil(values / STEPS) - 1, exact)
        exact = np.where((exact * STEPS < EDGES) & (values >= EDGES), np.ceil(values / STEPS), exact)
        now = np.where(near, before, exact)
        self._kept[rows] = np.where(np.isnan(values), before, now)
        return np.where(np.isnan(values), float(MISSING), now).astype(np.int32)
