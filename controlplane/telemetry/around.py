"""What a device's readings say about the minutes around a fault: what was not observed, and what changed.

Called by `recovery.around`. Pure. Nothing is judged here that no rule judges: a reading is past a limit where
`policy.readings` has one, a counter or a state has changed, or a value has left the range that it had before
the fault by more than that range is wide. Every sample counts, however few points a chart is given.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from controlplane.policy.readings import MEMORY_HOT_C, POWER_LIMIT_SHARE, READINGS, Limit
from controlplane.protocol.readings import HISTORY, RISK, Reading, in_words
from controlplane.runtime.clock import from_s, iso
from controlplane.telemetry.codec import METRICS
from controlplane.telemetry.selectors import Floats

GAP_FACTOR, GAP_S = 3.0, 5.0
"""Longer than so many usual distances between samples, and so many seconds, nothing was observed."""
MAX_GAPS = 10
MARGIN_STEPS = 4.0
"""A value that never moved before the fault has left its range when it differs by so many steps of history."""
LEVELS = ("limit", "changed", "left_range", "steady")
"""In the order in which they are named."""
LIMIT_OF = {limit.reads: limit for limit in READINGS.values() if limit.window_s}


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """In Unix seconds. `end_s`: until when anything can have been observed; `risk_limit` alarms."""

    since_s: float
    fault_s: float
    end_s: float
    risk_limit: float


@dataclass(frozen=True, slots=True)
class Moves:
    """One reading: its moments and values, none of them missing."""

    t_s: Floats
    values: Floats

    def within(self, keep: Any) -> "Moves":
        """Those for which `keep` holds."""
        return Moves(self.t_s[keep], self.values[keep])


def observed(t_s: Floats, values: Floats) -> Floats:
    """The moments at which the device itself gave anything; the score is not its own."""
    own = [row for row, name in enumerate(METRICS) if name != RISK.name]
    return t_s[~np.all(np.isnan(values[own]), axis=0)] if len(t_s) else t_s


def gaps(seen_s: Floats, span: Span) -> list[tuple[float, float]]:
    """Where nothing was observed, from the first moment of the span to its end, in order of time."""
    if not len(seen_s):
        return [(span.since_s, span.end_s)]
    steps = np.diff(seen_s)
    limit_s = max(GAP_S, GAP_FACTOR * float(np.median(steps))) if len(steps) else GAP_S
    edges = np.concatenate([[span.since_s], seen_s, [span.end_s]])
    return [(float(edges[i]), float(edges[i + 1])) for i in np.flatnonzero(np.diff(edges) > limit_s)]


def broken(t_s: Floats, values: Floats, holes: list[tuple[float, float]], span: Span) -> tuple[Floats, Floats]:
    """With a moment without values in each hole, so that no line is drawn across it, and at both ends of the span, so
    that the axis shows all of it and the fault with it."""
    ends = [at_s for at_s in (span.since_s, span.end_s) if at_s not in t_s]
    inner = [(since + until) / 2 for since, until in holes if since != span.since_s and until != span.end_s]
    moments = np.concatenate([t_s, ends, inner])
    table = np.concatenate([values, np.full((len(METRICS), len(ends) + len(inner)), np.nan)], axis=1)
    turned = np.argsort(moments, kind="stable")
    return moments[turned], table[:, turned]


def thinned(t_s: Floats, values: Floats, max_points: int) -> tuple[Floats, Floats]:
    """At most `max_points`, among them every moment without any value."""
    stride = max(1, -(-len(t_s) // max_points))
    if stride == 1:
        return t_s, values
    holes = np.flatnonzero(np.all(np.isnan(values), axis=0))[:max_points]
    room = max(1, max_points - len(holes))
    kept = np.unique(np.concatenate([np.arange(0, len(t_s), max(1, -(-len(t_s) // room))), holes]))
    return t_s[kept], values[:, kept]


def reported(t_s: Floats, values: Floats, span: Span) -> tuple[list[dict[str, Any]], list[str]]:
    """(each reading that has a value, what is out of the ordinary first; titles of the others)."""
    found: list[dict[str, Any]] = []
    absent: list[str] = []
    for row, reading in enumerate(HISTORY):
        known = ~np.isnan(values[row]) if len(t_s) else np.empty(0, dtype=bool)
        if not known.any():
            absent.append(title(reading))
            continue
        found.append(_view(reading, Moves(t_s[known], values[row][known]), span))
    return sorted(found, key=lambda each: LEVELS.index(each["level"])), absent


def title(reading: Reading) -> str:
    """As its chart is headed."""
    return reading.chart.title if reading.chart else reading.name


def _view(reading: Reading, moves: Moves, span: Span) -> dict[str, Any]:
    before = moves.within(moves.t_s <= span.fault_s)
    after = moves.within(moves.t_s > span.fault_s)
    level, sentence, at_s = _notable(reading, moves, span)
    first, last = (float(part.values[-1]) if len(part.values) else None for part in (before, after))
    return {
        "reading": reading.name,
        "title": title(reading),
        "unit": reading.unit,
        "before": _rounded(first),
        "low": _rounded(float(moves.values.min())),
        "high": _rounded(float(moves.values.max())),
        "after": _rounded(last),
        "change": None if first is None or last is None else _rounded(last - first),
        "level": level,
        "sentence": sentence,
        "at": None if at_s is None else iso(from_s(at_s)),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


Notable = tuple[str, str, float | None]
STEADY: Notable = ("steady", "", None)


def _notable(reading: Reading, moves: Moves, span: Span) -> Notable:
    """(level, sentence, since when)."""
    if reading.exported is not None and reading.exported.counts:
        return _counted(reading, moves)
    match reading.name:
        case "row_remap":
            return _remap(moves)
        case "throttled":
            return _throttled(moves)
        case "memory_temperature_c" if moves.values.max() >= MEMORY_HOT_C:
            return _hot(reading, moves)
        case "power_limit_w" if moves.values.min() < POWER_LIMIT_SHARE * moves.values.max():
            return _capped(reading, moves)
        case RISK.name:
            return _risk(moves, span)
    return _left_range(reading, moves, span)


def _counted(reading: Reading, moves: Moves) -> Notable:
    """Growth; a counter that fell began again."""
    grown = np.maximum(np.diff(moves.values), 0.0)
    total = float(grown.sum())
    limit = LIMIT_OF.get(reading.name)
    pages = READINGS["retired_pages"]
    over = reading.name == pages.reads and moves.values.max() >= pages.value
    if not total and not over:
        return STEADY
    at_s = float(moves.t_s[int(np.argmax(grown > 0)) + 1]) if total else float(moves.t_s[0])
    sentence = f"{title(reading)} rose by {total:,.0f}, to {moves.values[-1]:,.0f}"
    if over:
        what = f"{title(reading)}: {moves.values.max():,.0f}" if not total else sentence
        return "limit", f"{what} (limit: {pages.value:g}).", at_s
    if limit is not None and _most_within(moves.t_s[1:], grown, limit.window_s) >= limit.value:
        return "limit", f"{sentence} (limit: {limit.value:g} in {limit.window_s:g} s).", at_s
    return "changed", f"{sentence}.", at_s


def _most_within(t_s: Floats, grown: Floats, window_s: float) -> float:
    """The largest growth within any such window."""
    sums = np.concatenate([[0.0], np.cumsum(grown)])
    starts = np.searchsorted(t_s, t_s - window_s, side="left")
    return float(np.max(sums[1:] - sums[starts], initial=0.0))


def _remap(moves: Moves) -> Notable:
    worst = float(moves.values.max())
    if worst <= 0.0:
        return STEADY
    return "limit", f"Row remap: {_words('row_remap', worst)}.", float(moves.t_s[int(np.argmax(moves.values == worst))])


def _throttled(moves: Moves) -> Notable:
    """Only where it changes: at its power limit a device may work all day."""
    held = moves.values > 0
    if held.all() or not held.any():
        return STEADY
    sentence = f"Clock held back for {_lasting_s(moves.t_s, held):.0f} s."
    return "changed", sentence, float(moves.t_s[int(np.argmax(held))])


def _hot(reading: Reading, moves: Moves) -> Notable:
    hot = moves.values >= MEMORY_HOT_C
    lasts_s, limit = _lasting_s(moves.t_s, hot), READINGS["memory_temperature"]
    sentence = (
        f"{title(reading)} was {MEMORY_HOT_C:g} C or more for {lasts_s:.0f} s, {moves.values.max():.0f} C at most "
        f"(limit: {limit.value:g} s)."
    )
    return _level(lasts_s, limit), sentence, float(moves.t_s[int(np.argmax(hot))])


def _capped(reading: Reading, moves: Moves) -> Notable:
    highest = float(moves.values.max())
    low = moves.values < POWER_LIMIT_SHARE * highest
    lasts_s, limit = _lasting_s(moves.t_s, low), READINGS["power_limit"]
    sentence = (
        f"{title(reading)} was {moves.values.min():.0f} W for {lasts_s:.0f} s, {highest:.0f} W at most "
        f"(limit: {limit.value:g} s a tenth below its own)."
    )
    return _level(lasts_s, limit), sentence, float(moves.t_s[int(np.argmax(low))])


def _level(lasts_s: float, limit: Limit) -> str:
    return "limit" if lasts_s >= limit.value else "changed"


def _risk(moves: Moves, span: Span) -> Notable:
    over = moves.values >= span.risk_limit
    if not over.any():
        return STEADY
    sentence = f"Risk reached {moves.values.max():.2f} (limit: {span.risk_limit:.2f})."
    return "limit", sentence, float(moves.t_s[int(np.argmax(over))])


def _left_range(reading: Reading, moves: Moves, span: Span) -> Notable:
    before, after = moves.within(moves.t_s <= span.fault_s), moves.within(moves.t_s > span.fault_s)
    if not len(before.t_s) or not len(after.t_s):
        return STEADY
    low, high = float(before.values.min()), float(before.values.max())
    # What was stored before may be off by the band on either side of what was read.
    band = max(reading.band, reading.band_ratio * max(abs(low), abs(high)))
    margin = max(high - low, MARGIN_STEPS * reading.step, 2 * band)
    below, above = low - float(after.values.min()), float(after.values.max()) - high
    if max(below, above) <= margin:
        return STEADY
    fell = below >= above
    out = after.values < low - margin if fell else after.values > high + margin
    end = float(after.values.min() if fell else after.values.max())
    was = " to ".join(dict.fromkeys((in_words(reading, low), in_words(reading, high))))
    sentence = f"{title(reading)} {'fell' if fell else 'rose'} to {in_words(reading, end)}; {was} before the fault."
    return "left_range", sentence, float(after.t_s[int(np.argmax(out))])


def _lasting_s(t_s: Floats, holds: Any) -> float:
    """How long it held, each sample for the time to the next one, but across no hole."""
    steps = np.diff(t_s)
    usual_s = float(np.median(steps)) if len(steps) else 0.0
    until = np.append(np.where(steps > max(GAP_S, GAP_FACTOR * usual_s), usual_s, steps), usual_s)
    return float(until[holds].sum())


def _words(name: str, value: float) -> str:
    return in_words(HISTORY[METRICS.index(name)], value)
