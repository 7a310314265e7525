"""Figures of a load test: how many, median and p99, and whether the generator itself was in time. Pure.

Millions of values are counted in buckets a fiftieth wide (`Spread`), which several processes can add up. A p99 is
given from MIN_FOR_P99 values on and never below.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

MIN_FOR_P99 = 100
SMALLEST_S, STEP = 1e-6, math.log(1.02)
GATE_LATE_S, GATE_CORES = 0.1, 0.9
"""Above these of the generator itself, p99 of its lateness and cores of a process, what it measured is refused."""


class Spread(msgspec.Struct):
    """How durations (seconds) are spread; what is below a microsecond counts as one."""

    counts: dict[int, int] = {}
    total: int = 0
    largest_s: float = 0.0

    def add(self, value_s: float) -> None:
        """One more."""
        place = int(math.log(max(value_s, SMALLEST_S) / SMALLEST_S) / STEP)
        self.counts[place] = self.counts.get(place, 0) + 1
        self.total += 1
        self.largest_s = max(self.largest_s, value_s)

    def plus(self, other: "Spread") -> "Spread":
        """Both together."""
        places = self.counts.keys() | other.counts.keys()
        counts = {place: self.counts.get(place, 0) + other.counts.get(place, 0) for place in places}
        return Spread(counts, self.total + other.total, max(self.largest_s, other.largest_s))

    def quantile_s(self, q: float) -> float | None:
        """To one percent; None of nothing."""
        if not self.total:
            return None
        left = q * (self.total - 1)
        for place in sorted(self.counts):
            left -= self.counts[place]
            if left < 0:
                return min(SMALLEST_S * math.exp((place + 0.5) * STEP), self.largest_s)
        return self.largest_s

    def summary(self) -> dict[str, Any]:
        """In seconds."""
        p99_s = self.quantile_s(0.99) if self.total >= MIN_FOR_P99 else None
        largest_s = self.largest_s if self.total else None
        return {"n": self.total, "median_s": self.quantile_s(0.5), "p99_s": p99_s, "max_s": largest_s}


def summary(values_s: Iterable[float]) -> dict[str, Any]:
    """The same of few values, exactly."""
    found = sorted(values_s)
    if not found:
        return {"n": 0, "median_s": None, "p99_s": None, "max_s": None}
    p99_s = found[math.ceil(0.99 * len(found)) - 1] if len(found) >= MIN_FOR_P99 else None
    return {"n": len(found), "median_s": found[(len(found) - 1) // 2], "p99_s": p99_s, "max_s": found[-1]}


def verdict(lateness: Spread, cores: Sequence[float]) -> str:
    """Why the figures are refused; "" where they count. `cores`: what each process of the generator took."""
    late_s = lateness.quantile_s(0.99)
    if late_s is None:
        return "the generator sent no heartbeat in the window"
    if late_s > GATE_LATE_S:
        return f"generator late: p99 {late_s * 1e3:.0f} ms, allowed are {GATE_LATE_S * 1e3:.0f} ms"
    if cores and max(cores) > GATE_CORES:
        return f"generator full: {max(cores):.2f} of a core in one process, allowed are {GATE_CORES:g}"
    return ""


_LABEL = re.compile(r'(\w+)="([^"]*)"')
Series = tuple[str, tuple[tuple[str, str], ...]]


def read_figures(text: str) -> dict[Series, float]:
    """Prometheus' text format, as far as our own processes write it; a line that is none is left out."""
    found: dict[Series, float] = {}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        head, _, value = line.rpartition(" ")
        name, _, rest = head.partition("{")
        try:
            found[name, tuple(_LABEL.findall(rest))] = float(value)
        except ValueError:
            continue
    return found


def grown(before: Mapping[Series, float], after: Mapping[Series, float]) -> dict[Series, float]:
    """What was counted between two readings of one process; one that began meanwhile counts from zero."""
    known = {key: before.get(key, 0.0) for key in after}
    return {key: value - (known[key] if known[key] <= value else 0.0) for key, value in after.items()}


def of_histogram(grew: Mapping[Series, float], name: str) -> dict[str, Any]:
    """Of a histogram of the server: a quantile is given as the bound of its bucket, which is not below it."""
    bounds: dict[float, float] = {}
    for (series, labels), value in grew.items():
        if series == f"{name}_bucket":
            limit_s = float(dict(labels)["le"])
            bounds[limit_s] = bounds.get(limit_s, 0.0) + value
    number = int(bounds.get(math.inf, 0.0))

    def within_s(q: float) -> float | None:
        limit_s = next((limit_s for limit_s in sorted(bounds) if bounds[limit_s] >= q * number), math.inf)
        return limit_s if number and limit_s < math.inf else None

    return {"n": number, "median_s": within_s(0.5), "p99_s": within_s(0.99) if number >= MIN_FOR_P99 else None}


def by_label(grew: Mapping[Series, float], name: str) -> dict[str, int]:
    """A counter with one label, by its values; those that did not move are left out."""
    found: dict[str, int] = {}
    for (series, labels), value in grew.items():
        if series == name and value > 0:
            key = labels[0][1] if labels else ""
            found[key] = found.get(key, 0) + int(value)
    return found
