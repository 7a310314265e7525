"""Samples against the limits of `policy.readings`: what a device has just passed, or left again.

Called by the live state for each sample and by the scanner, which makes signals of it. Holds no
clock. A counter is compared with what it was within the limit's window, and what it first showed with what
was stored of it before (`sentinel.seeds`); a state with since when it lasts. Each finding is told once,
until it has ended or its counter has grown by as much again.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from controlplane.policy.readings import HARDWARE_SLOWS, MEMORY_HOT_C, POWER_LIMIT_SHARE, READINGS
from controlplane.protocol.samples import DeviceSample

COUNTERS = {name: limit.reads for name, limit in READINGS.items() if limit.window_s}
LASTING = tuple(name for name, limit in READINGS.items() if limit.lasts)
FLAGS = frozenset(READINGS) - set(COUNTERS) - set(LASTING)
"""What a device has from then on, until it is reset or replaced."""
GAP_S = 15.0
"""Of a state that was not read for longer nobody knows that it lasted; samples come once a second."""
MAX_STEPS = 128
"""Changes of one counter that are remembered; where there are more, the oldest stand for all."""


Total = tuple[int, float]
"""A counter's value, and when it was read (Unix seconds)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`over`: the state has ended, and with it the finding. `first`: it was so in the first sample of this watch."""

    node_id: str
    index: int
    reading: str
    value: float
    over: bool
    sample: DeviceSample
    first: bool = False


@dataclass(slots=True)
class DeviceWatch:
    """One device: each counter's newest value, and when it was read; the first one, until it was compared with
    what was before the watch; its steps (at_s, growth) within the window; since when a state lasts, and when it
    was last read; what was told; the highest power limit it ever had. `uuid`: "" until it is known."""

    uuid: str = ""
    counters: dict[str, Total] = field(default_factory=dict)
    first: dict[str, Total] = field(default_factory=dict)
    steps: dict[str, deque[tuple[float, int]]] = field(default_factory=dict)
    since_s: dict[str, float] = field(default_factory=dict)
    read_s: dict[str, float] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)
    power_limit_w: float = 0.0

    def take(self, sample: DeviceSample, at_s: float, gap_s: float = GAP_S) -> Iterator[tuple[str, float, bool]]:
        """(reading, value, over) of what is news. What the device does not answer leaves a state as it is."""
        for name, source in COUNTERS.items():
            total = getattr(sample, source)
            if total is not None and (grown := self._grown(name, total, at_s)) >= READINGS[name].value:
                self.steps[name].clear()
                yield name, float(grown), False
        yield from self._flag("row_remap_failure", sample.row_remap_failure)
        yield from self._flag("row_remap_pending", sample.row_remap_pending)
        pages = sample.retired_pages_total
        if pages is not None:
            yield from self._flag("retired_pages", pages >= READINGS["retired_pages"].value, float(pages))
        if sample.throttle_reasons is not None and sample.present:
            slowed = bool(HARDWARE_SLOWS.intersection(sample.throttle_reasons))
            yield from self._lasting("throttled", slowed, at_s, gap_s)
        if sample.memory_temperature_c is not None:
            yield from self._lasting("memory_temperature", sample.memory_temperature_c >= MEMORY_HOT_C, at_s, gap_s)
        if sample.power_limit_w is not None:
            raised = 0.0 < self.power_limit_w < sample.power_limit_w
            self.power_limit_w = max(self.power_limit_w, sample.power_limit_w)
            capped = sample.power_limit_w < POWER_LIMIT_SHARE * self.power_limit_w
            if raised and "power_limit" not in self.told:
                # It was lowered before this watch began.
                yield "power_limit", 0.0, True
            yield from self._lasting("power_limit", capped, at_s, gap_s)

    def _grown(self, name: str, total: int, at_s: float) -> int:
        """Growth within the window. The first value is where it begins; one that fell began anew."""
        before = self.counters.get(name)
        self.counters[name] = (total, at_s)
        steps = self.steps.setdefault(name, deque(maxlen=MAX_STEPS))
        if before is None:
            self.first[name] = (total, at_s)
        elif growth := _in_window(name, before, (total, at_s)):
            steps.append((at_s, growth))
        while steps and steps[0][0] < at_s - READINGS[name].window_s:
            steps.popleft()
        return sum(growth for _, growth in steps)

    def seed(self, before: Mapping[str, Total]) -> Iterator[tuple[str, float, bool]]:
        """What the counters were before this watch began, by the sample's fields: what they first showed is
        compared with it, once."""
        for name, source in COUNTERS.items():
            first, was = self.first.pop(name, None), before.get(source)
            growth = _in_window(name, was, first) if first is not None and was is not None else 0
            if growth >= READINGS[name].value:
                yield name, float(growth), False
            elif growth and first is not None:
                self.steps[name].appendleft((first[1], growth))

    def _flag(self, name: str, raised: bool | None, value: float = 1.0) -> Iterator[tuple[str, float, bool]]:
        if raised and name not in self.told:
            self.told.add(name)
            yield name, value, False
        elif raised is False:
            self.told.discard(name)

    def _lasting(self, name: str, holds: bool, at_s: float, gap_s: float) -> Iterator[tuple[str, float, bool]]:
        if at_s - self.read_s.get(name, at_s) > gap_s:
            # It may have ended and begun again: nobody saw.
            self.since_s.pop(name, None)
        self.read_s[name] = at_s
        if not holds:
            self.since_s.pop(name, None)
            if name in self.told:
                self.told.discard(name)
                yield name, 0.0, True
            return
        lasts_s = at_s - self.since_s.setdefault(name, at_s)
        if lasts_s >= READINGS[name].value and name not in self.told:
            self.told.add(name)
            yield name, lasts_s, False


def _in_window(name: str, before: Total, now: Total) -> int:
    """By how much a counter grew between two readings; where they are further apart than the limit's window, the
    share of one window in it, unless a single one is too many. One that fell began anew: no growth."""
    growth, apart_s = max(0, now[0] - before[0]), now[1] - before[1]
    limit = READINGS[name]
    if limit.value <= 1 or apart_s <= limit.window_s:
        return growth
    return int(growth * limit.window_s / apart_s)


class Watch:
    """All devices; findings wait here until the scanner takes them. `begun`: nodes of which the counters were not
    compared yet with what was before, and since when they are watched (Unix seconds). `nameless`: devices that are
    watched since `seeds.name` last named any."""

    def __init__(self, *, gap_s: float = GAP_S) -> None:
        self.gap_s = gap_s
        self.devices: dict[tuple[str, int], DeviceWatch] = {}
        self.found: list[Finding] = []
        self.begun: dict[str, float] = {}
        self.nameless: set[tuple[str, int]] = set()

    def take(self, node_id: str, sample: DeviceSample, at_s: float) -> None:
        """One sample; `at_s` when it was received."""
        watch = self.devices.get((node_id, sample.index))
        first = watch is None
        if watch is None:
            watch = self.devices[node_id, sample.index] = DeviceWatch()
            self.begun.setdefault(node_id, at_s)
            self.nameless.add((node_id, sample.index))
        for reading, value, over in watch.take(sample, at_s, self.gap_s):
            self.found.append(
                Finding(
                    node_id=node_id,
                    index=sample.index,
                    reading=reading,
                    value=value,
                    over=over,
                    sample=sample,
                    first=first,
                )
            )

    def seed(self, node_id: str, sample: DeviceSample, before: Mapping[str, Total]) -> None:
        """Of one device, its newest `sample`, and what its counters were `before` it was watched."""
        watch = self.devices.get((node_id, sample.index))
        if watch is None:
            return
        for reading, value, over in watch.seed(before):
            self.found.append(
                Finding(node_id=node_id, index=sample.index, reading=reading, value=value, over=over, sample=sample)
            )

    def name(self, node_id: str, index: int, uuid: str) -> None:
        """Which device is there now. Another one than before counts from its own beginning."""
        watch = self.devices.get((node_id, index))
        if watch is None or watch.uuid == uuid:
            return
        if watch.uuid:
            watch = self.devices[node_id, index] = DeviceWatch()
        watch.uuid = uuid

    def ended(self, node_id: str, index: int) -> tuple[str, ...]:
        """States of readings in which the device is not now; () before its first sample. Not that of its power
        limit: one that was lowered before looks like its own, until it is raised."""
        watch = self.devices.get((node_id, index))
        if watch is None:
            return ()
        return tuple(
            name for name in LASTING if name not in watch.since_s and name in watch.read_s and name != "power_limit"
        )

    def forget(self, node_id: str, index: int) -> None:
        """A device that is none any more."""
        self.devices.pop((node_id, index), None)
        self.nameless.discard((node_id, index))

    def news(self) -> list[Finding]:
        """Taken out."""
        found, self.found = self.found, []
        return found
