"""The seed's risk score over the whole fleet at once: the vectorised twin of
`policy.risk`, which is its specification (a test compares them)."""

import numpy as np
import numpy.typing as npt

from controlplane.policy import risk

Floats = npt.NDArray[np.float64]

WINDOW = risk.WINDOW_SAMPLES
COLUMNS = ("at_s", "temperature_c", "memory_ratio", "errors", "past", "power_w", "utilization_ratio", "training")
AT, TEMPERATURE, MEMORY, ERRORS, PAST, POWER, UTILIZATION, TRAINING = range(len(COLUMNS))
SOURCES = {
    "temperature": "temperature_c",
    "memory": "memory_ratio",
    "errors": "errors",
    "power": "power_w",
    "utilization_drop": "utilization_ratio",
    "temp_rise": "temperature_c",
}
"""The column without which a part is always 0."""
PARTS = tuple(risk.WEIGHTS)
WEIGHTS: Floats = np.array(list(risk.WEIGHTS.values()))


def score(window: Floats) -> Floats:
    """Risk 0..1 of each row; see `parts`."""
    weighted: Floats = parts(window) @ WEIGHTS
    return weighted


def parts(window: Floats) -> Floats:
    """[rows, PARTS], each 0..1 and unweighted. `window`: [rows, WINDOW, COLUMNS], newest sample
    last, NaN for what was not read (and for slots before the first sample)."""
    last = window[:, -1, :]
    earlier = np.where(last[:, PAST] > 0, risk.PAST_ERRORS_SHARE, 0.0)
    found = {
        "temperature": _above(last[:, TEMPERATURE], risk.TEMPERATURE_FROM_C, risk.TEMPERATURE_SPAN_C),
        "memory": _above(last[:, MEMORY] * 100.0, risk.MEMORY_FROM_PERCENT, risk.MEMORY_SPAN_PERCENT),
        "errors": np.where(last[:, ERRORS] > 0, 1.0, earlier),
        "power": _power(window),
        "utilization_drop": _drop(window),
        "temp_rise": _rise(window),
    }
    return np.nan_to_num(np.stack([found[name] for name in PARTS], axis=1), nan=0.0)


def _above(value: Floats, start: float, span: float) -> Floats:
    return np.clip((value - start) / span, 0.0, 1.0)


def _power(window: Floats) -> Floats:
    before, now = window[:, -2, POWER], window[:, -1, POWER]
    with np.errstate(divide="ignore", invalid="ignore"):
        swing = np.abs(now - before) / before * 100.0 / risk.POWER_SWING_PERCENT
    return np.where(before > 0, np.clip(swing, 0.0, 1.0), 0.0)


def _drop(window: Floats) -> Floats:
    past = window[:, : -risk.RECENT_SAMPLES, UTILIZATION] * 100.0
    counted = ~np.isnan(past)
    number = counted.sum(axis=1)
    baseline = np.where(counted, past, 0.0).sum(axis=1) / np.maximum(number, 1)
    now = window[:, -1, UTILIZATION] * 100.0
    busy = (number > 0) & (baseline > risk.UTILIZATION_BASELINE_PERCENT) & (window[:, -1, TRAINING] > 0)
    return np.where(busy, np.clip((baseline - now) / risk.UTILIZATION_DROP_POINTS, 0.0, 1.0), 0.0)


def _rise(window: Floats) -> Floats:
    first, last = window[:, -risk.TEMP_RISE_SAMPLES, :], window[:, -1, :]
    elapsed = last[:, AT] - first[:, AT]
    with np.errstate(divide="ignore", invalid="ignore"):
        per_min = (last[:, TEMPERATURE] - first[:, TEMPERATURE]) / elapsed * 60.0
    return np.where(elapsed > 0, np.clip(per_min / risk.TEMP_RISE_C_PER_MIN, 0.0, 1.0), 0.0)
