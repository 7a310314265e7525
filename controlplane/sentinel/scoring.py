"""Ten seconds of readings to a sample of the score, for all devices at once (`scores`). A row is a slot of the live
state. Holds no clock.

Readings come once a second; the score is of `risk.SAMPLE_S` at a time, for which they are collected (means, and errors
counted) and scored when that time is over.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from controlplane.policy import risk
from controlplane.sentinel.columns import COLUMN, Floats, Slots
from controlplane.sentinel.scores import COLUMNS, ERRORS, PARTS, PAST, SOURCES, TRAINING, WEIGHTS, WINDOW, parts

_CORRECTED, _UNCORRECTED = COLUMN["ecc_corrected_total"], COLUMN["ecc_uncorrected_total"]
_READ = {
    "temperature_c": "temperature_c",
    "memory_ratio": "memory_utilization_ratio",
    "power_w": "power_w",
    "utilization_ratio": "utilization_ratio",
}


class Scoring:
    """Arrays grow by doubling. `scored`: changes with each new score of a row. `accused_s`: when a device was last
    accused of an error, by the tables (Unix seconds);
    `error_s`: when one of its ECC counters last rose."""

    def __init__(self, rows: int) -> None:
        self.window: Floats = np.full((rows, WINDOW, len(COLUMNS)), np.nan)
        self.risk: Floats = np.full(rows, np.nan)
        self.parts: Floats = np.full((rows, len(PARTS)), np.nan)
        self.accused_s: Floats = np.full(rows, -np.inf)
        self.error_s: Floats = np.full(rows, -np.inf)
        self.scored: Slots = np.zeros(rows, dtype=np.intp)
        self._ecc: Floats = np.full((rows, 2), np.nan)
        self._sums: Floats = np.zeros((rows, len(COLUMNS)))
        self._counts: Floats = np.zeros((rows, len(COLUMNS)))
        self._interval: Floats = np.full(rows, np.nan)

    def grow(self) -> None:
        """Twice as many rows; new ones have read nothing."""
        empty = Scoring(len(self.risk))
        for name, more in vars(empty).items():
            setattr(self, name, np.concatenate([getattr(self, name), more]))

    def clear(self, slot: int) -> None:
        """What its row held belongs to no device any more."""
        scored = self.scored[slot] + 1
        for name, fresh in vars(Scoring(1)).items():
            getattr(self, name)[slot] = fresh[0]
        self.scored[slot] = scored

    def shares(self, slot: int) -> dict[str, float]:
        """Each part's share of the score; empty before the first one."""
        if np.isnan(self.risk[slot]):
            return {}
        found = (self.parts[slot] * WEIGHTS).tolist()
        return {name: round(share, 4) for name, share in zip(PARTS, found, strict=True)}

    def reachable(self) -> float | None:
        """The highest score that any device can get, of the readings that it gives; None before the first score."""
        given = ~np.isnan(self.window[:, -1, :])[:, [COLUMNS.index(SOURCES[name]) for name in PARTS]]
        scored = ~np.isnan(self.risk)
        return round(float((given[scored] @ WEIGHTS).max()), 6) if scored.any() else None

    def add(self, slots: Slots, table: Floats, *, uptime_s: Floats, at_s: Floats, training: npt.NDArray[Any]) -> Slots:
        """A wave, in which each slot occurs once: `table` as `columns` makes it, the agent's uptime, when it was
        received, whether a rank on the device was in a step. Returns the slots that have a new score."""
        rows = np.empty((len(slots), len(COLUMNS)))
        rows[:, 0] = uptime_s
        for name, source in _READ.items():
            rows[:, COLUMNS.index(name)] = table[:, COLUMN[source]]
        rows[:, ERRORS] = self._new_errors(slots, table, at_s)
        rows[:, PAST], rows[:, TRAINING] = 0.0, training
        self._add_past(rows, slots, at_s)
        return self._append(slots, rows)

    def _new_errors(self, slots: Slots, table: Floats, at_s: Floats) -> Floats:
        """New uncorrectable errors since the sample before; NaN where the device does not count them.
        Corrected ones are no symptom of now, only part of its history. A counter that fell began anew:
        with the driver, or with a reset."""
        now = np.nan_to_num(table[:, [_CORRECTED, _UNCORRECTED]], nan=0.0)
        before = np.where(np.isnan(self._ecc[slots]), now, self._ecc[slots])
        self._ecc[slots] = now
        rose = (now > before).any(axis=1)
        self.error_s[slots] = np.where(rose, at_s, self.error_s[slots])
        new = np.maximum(now[:, 1] - before[:, 1], 0.0)
        return np.where(np.isnan(table[:, _UNCORRECTED]), np.nan, new)

    def _add_past(self, rows: Floats, slots: Slots, at_s: Floats) -> None:
        """What is known of its errors beside the counters' last step: XIDs, by the tables, and
        what came earlier in the day."""
        accused_s = self.accused_s[slots]
        now = at_s - accused_s < risk.SAMPLE_S
        rows[now, ERRORS] = np.nan_to_num(rows[now, ERRORS], nan=0.0) + 1.0
        rows[at_s - np.maximum(accused_s, self.error_s[slots]) < risk.PAST_ERRORS_S, PAST] = 1.0

    def _append(self, slots: Slots, samples: Floats) -> Slots:
        """A reading of another interval than the one that is open closes that one."""
        interval = np.floor(samples[:, 0] / risk.SAMPLE_S)
        open_ = self._interval[slots]
        over: Slots = slots[~np.isnan(open_) & (open_ != interval)]
        self._close(over)
        self._interval[slots] = interval
        self._sums[slots] += np.nan_to_num(samples, nan=0.0)
        self._counts[slots] += ~np.isnan(samples)
        return over

    def _close(self, slots: Slots) -> None:
        """One sample of the score: means, but errors are a count and one second without training
        is enough to expect less use."""
        if not len(slots):
            return
        sums, counts = self._sums[slots], self._counts[slots]
        row = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
        row[:, ERRORS] = np.where(counts[:, ERRORS] > 0, sums[:, ERRORS], np.nan)
        row[:, TRAINING] = (sums[:, TRAINING] >= counts[:, TRAINING]).astype(float)
        row[:, 0] = self._interval[slots] * risk.SAMPLE_S
        moved = np.concatenate([self.window[slots, 1:], row[:, None, :]], axis=1)
        self.window[slots] = moved
        self.parts[slots] = parts(moved)
        self.risk[slots] = self.parts[slots] @ WEIGHTS
        self.scored[slots] += 1
        self._sums[slots], self._counts[slots] = 0.0, 0.0
