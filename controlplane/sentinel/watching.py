"""The watches of `sentinel.readings` over the whole fleet: only of devices with news is one asked.

Theory of operation. A sample is quiet when it changes nothing in its device's watch but the moments of the newest
readings: counters, flags and the power limit are what they were, nothing slows it, its memory is not hot, and no state
or growth is being waited for. Those are most of all samples, and are recognised as one vector. Every other one goes to
the device's `DeviceWatch`, which alone judges. Arrays hold a row for each slot of the live state.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from controlplane.policy.readings import MEMORY_HOT_C
from controlplane.protocol.samples import DeviceSample
from controlplane.sentinel.columns import COLUMN, SLOWED, Floats, Slots
from controlplane.sentinel.readings import COUNTERS, Total, Watch

_COUNTED = [COLUMN[source] for source in COUNTERS.values()]
_NAMES = tuple(COUNTERS)
_STATES = [COLUMN[name] for name in ("row_remap_failure", "row_remap_pending", "retired_pages_total", "power_limit_w")]
_LASTING = ("throttled", "memory_temperature", "power_limit")
_PRESENT, _MEMORY, _POWER = COLUMN["present"], COLUMN["memory_temperature_c"], COLUMN["power_limit_w"]
_SAME = _COUNTED + _STATES
"""What is quiet while it is what it was."""
EXACT = float(2**53)
"""Above it numbers of a table are rounded, and two that differ may look the same."""


class FleetWatch(Watch):
    """`take` of many samples at once. A row that was not asked yet is `loud`: its first sample goes to its watch."""

    def __init__(self) -> None:
        super().__init__()
        self._last: Floats = np.empty((0, len(_SAME)))
        self._read_s: Floats = np.empty((0, len(_COUNTED) + len(_LASTING)))
        self._loud: npt.NDArray[np.bool_] = np.empty(0, dtype=bool)
        self._slot_of: dict[tuple[str, int], int] = {}

    def take_all(
        self,
        slots: Slots,
        keys: Sequence[tuple[str, int] | None],
        samples: Sequence[DeviceSample],
        table: Floats,
        at_s: Floats,
    ) -> list[str]:
        """A wave: each slot once; `samples`, rows of `table` and moments in the same arrangement. `keys`: the device
        of each slot there is. Returns the nodes of which a sample could not be judged."""
        self._grow(int(slots.max(initial=-1)) + 1)
        now = table[:, _SAME]
        missing = np.isnan(now)
        read = self._reads(table)
        quiet = (missing | ((now == self._last[slots]) & (now < EXACT))).all(axis=1) & ~self._loud[slots]
        quiet &= ~((table[:, SLOWED] > 0) & (table[:, _PRESENT] > 0)) & ~(table[:, _MEMORY] >= MEMORY_HOT_C)
        quiet &= ~(read & np.isnan(self._read_s[slots])).any(axis=1)
        self._read_s[slots] = np.where(read & quiet[:, None], at_s[:, None], self._read_s[slots])
        failed: list[str] = []
        for row in np.flatnonzero(~quiet).tolist():
            slot = int(slots[row])
            key = keys[slot]
            if key is None:
                continue
            try:
                self._ask(slot, key, samples[row], table[row], float(at_s[row]))
            except Exception:
                # Whatever is wrong with it, the samples of the others are judged.
                failed.append(key[0])
        return failed

    def _reads(self, table: Floats) -> npt.NDArray[np.bool_]:
        """Which counters and lasting states each sample reads."""
        throttled = ~np.isnan(table[:, SLOWED]) & (table[:, _PRESENT] > 0)
        lasting = np.stack([throttled, ~np.isnan(table[:, _MEMORY]), ~np.isnan(table[:, _POWER])], axis=1)
        return np.concatenate([~np.isnan(table[:, _COUNTED]), lasting], axis=1)

    def _ask(self, slot: int, key: tuple[str, int], sample: DeviceSample, row: Floats, at_s: float) -> None:
        self._slot_of[key] = slot
        self._bring_up(slot, key)
        # Until it has answered: what fails is asked again with the next sample.
        self._loud[slot] = True
        self.take(key[0], sample, at_s)
        now = row[_SAME]
        self._last[slot] = np.where(np.isnan(now), self._last[slot], now)
        read = self._reads(row[None, :])[0]
        self._read_s[slot] = np.where(read, at_s, self._read_s[slot])
        self._judge(key)

    def _bring_up(self, slot: int, key: tuple[str, int]) -> None:
        """The watch of a device, with the moments of what was quiet since it was asked."""
        watch = self.devices.get(key)
        if watch is None:
            return
        moments = self._read_s[slot].tolist()
        for name, read_s in zip(_NAMES, moments, strict=False):
            if name in watch.counters:
                watch.counters[name] = (watch.counters[name][0], read_s)
        for name, read_s in zip(_LASTING, moments[len(_NAMES) :], strict=True):
            if name in watch.read_s:
                watch.read_s[name] = read_s

    def _judge(self, key: tuple[str, int]) -> None:
        """Whether the next sample must go to its watch, however quiet."""
        slot, watch = self._slot_of.get(key), self.devices.get(key)
        if slot is not None:
            self._loud[slot] = watch is None or bool(watch.since_s) or any(watch.steps.values())

    def seed(self, node_id: str, sample: DeviceSample, before: Mapping[str, Total]) -> None:
        """As `Watch.seed`; growth that it found is waited for."""
        super().seed(node_id, sample, before)
        self._judge((node_id, sample.index))

    def name(self, node_id: str, index: int, uuid: str) -> None:
        """As `Watch.name`; another device is asked anew."""
        before = self.devices.get((node_id, index))
        super().name(node_id, index, uuid)
        if self.devices.get((node_id, index)) is not before:
            self._empty((node_id, index))

    def forget(self, node_id: str, index: int) -> None:
        """As `Watch.forget`; its slot may be another device's next."""
        super().forget(node_id, index)
        self._empty((node_id, index))
        self._slot_of.pop((node_id, index), None)

    def _empty(self, key: tuple[str, int]) -> None:
        slot = self._slot_of.get(key)
        if slot is not None:
            self._last[slot], self._read_s[slot], self._loud[slot] = np.nan, np.nan, True

    def _grow(self, size: int) -> None:
        more = max(size, 2 * len(self._loud)) - len(self._loud)
        if size > len(self._loud):
            self._last = np.concatenate([self._last, np.full((more, len(_SAME)), np.nan)])
            self._read_s = np.concatenate([self._read_s, np.full((more, self._read_s.shape[1]), np.nan)])
            self._loud = np.concatenate([self._loud, np.ones(more, dtype=bool)])
