"""The seed's weighted device risk (S2.1 to S2.3), as a pure function over samples.

A sample is `SAMPLE_S` seconds of readings, as the formulas were made for: the means of what was
read once a second, and the errors of that time (`sentinel.live_state` makes them). This is the
baseline that every better score is compared with. The sentinel holds a vectorised twin; this
form is the specification it is tested against. A reading that is None takes no part: its share
of the score is 0, never a guess.

What is not proved: no data here joins these readings with failures, so neither weights nor
threshold are calibrated, and the score alone may ask for a save and never for an eviction. A
study of 27,648 GPUs of Summit found no link of double-bit errors to temperature, and one to
earlier errors of the same GPU; that is why errors of the last day count (`PAST_ERRORS_SHARE`),
beside the seed's own text.
"""

from collections.abc import Sequence

import msgspec

SAMPLE_S = 10.0
WINDOW_SAMPLES = 60
PAST_ERRORS_S = 86_400.0
PAST_ERRORS_SHARE = 0.5
"""Of the errors part, while the device had an error within `PAST_ERRORS_S` and has none now."""
WEIGHTS: dict[str, float] = {
    "temperature": 0.25,
    "memory": 0.15,
    "errors": 0.25,
    "power": 0.10,
    "utilization_drop": 0.15,
    "temp_rise": 0.10,
}

# S2.1: where a part starts to count and over which span it reaches 1.
TEMPERATURE_FROM_C, TEMPERATURE_SPAN_C = 70.0, 15.0
MEMORY_FROM_PERCENT, MEMORY_SPAN_PERCENT = 85.0, 10.0
POWER_SWING_PERCENT = 15.0
UTILIZATION_DROP_POINTS = 30.0
UTILIZATION_BASELINE_PERCENT = 50.0
TEMP_RISE_C_PER_MIN = 5.0
TEMP_RISE_SAMPLES = 6
RECENT_SAMPLES = 5


class RiskSample(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`SAMPLE_S` of one device, in the units of `protocol.samples`. `at_s` on the sender's
    monotonic clock; `errors` new uncorrectable ECC errors and XIDs that accuse the device within
    it; `past_errors` those of the day before it, corrected ECC errors among them.
    `training` False (saving, evaluating, ending): a drop in use is no symptom (S2.3)."""

    at_s: float
    temperature_c: float | None = None
    memory_utilization_ratio: float | None = None
    errors: int | None = None
    past_errors: int | None = None
    power_w: float | None = None
    utilization_ratio: float | None = None
    training: bool = True


def risk_parts(samples: Sequence[RiskSample]) -> dict[str, float]:
    """Each part of the score, 0..1, unweighted. Oldest sample first; only the last
    `WINDOW_SAMPLES` count."""
    window = list(samples)[-WINDOW_SAMPLES:]
    if not window:
        return dict.fromkeys(WEIGHTS, 0.0)
    last = window[-1]
    return {
        "temperature": _above(last.temperature_c, TEMPERATURE_FROM_C, TEMPERATURE_SPAN_C),
        "memory": _above(_percent(last.memory_utilization_ratio), MEMORY_FROM_PERCENT, MEMORY_SPAN_PERCENT),
        "errors": 1.0 if last.errors else PAST_ERRORS_SHARE if last.past_errors else 0.0,
        "power": _power_swing(window),
        "utilization_drop": _utilization_drop(window),
        "temp_rise": _temp_rise(window),
    }


def risk_score(samples: Sequence[RiskSample]) -> float:
    """Weighted sum of the parts, 0..1."""
    parts = risk_parts(samples)
    return sum(WEIGHTS[name] * parts[name] for name in WEIGHTS)


def _above(value: float | None, start: float, span: float) -> float:
    return 0.0 if value is None else _clip((value - start) / span)


def _percent(ratio: float | None) -> float | None:
    return None if ratio is None else ratio * 100.0


def _power_swing(window: list[RiskSample]) -> float:
    """Change of power against the sample before, in percent of it."""
    if len(window) < 2:
        return 0.0
    before, now = window[-2].power_w, window[-1].power_w
    if before is None or now is None or before <= 0.0:
        return 0.0
    return _clip(abs(now - before) / before * 100.0 / POWER_SWING_PERCENT)


def _utilization_drop(window: list[RiskSample]) -> float:
    """Points lost against the mean of all but the last five samples, when it was busy."""
    now = _percent(window[-1].utilization_ratio)
    past = [s.utilization_ratio * 100.0 for s in window[:-RECENT_SAMPLES] if s.utilization_ratio is not None]
    if now is None or not past or not window[-1].training:
        return 0.0
    baseline = sum(past) / len(past)
    if baseline <= UTILIZATION_BASELINE_PERCENT:
        return 0.0
    return _clip((baseline - now) / UTILIZATION_DROP_POINTS)


def _temp_rise(window: list[RiskSample]) -> float:
    """Rise over the last six samples, in degrees C a minute."""
    if len(window) < TEMP_RISE_SAMPLES:
        return 0.0
    first, last = window[-TEMP_RISE_SAMPLES], window[-1]
    if first.temperature_c is None or last.temperature_c is None or last.at_s <= first.at_s:
        return 0.0
    rise_c_per_min = (last.temperature_c - first.temperature_c) / (last.at_s - first.at_s) * 60.0
    return _clip(rise_c_per_min / TEMP_RISE_C_PER_MIN)


def _clip(value: float) -> float:
    return min(1.0, max(0.0, value))
