"""The live state: what every node and rank said last, in arrays.

Frames come in waves: the k-th frame of every node is taken as one vector, so a stall is
worked off at the speed of the arrays (feasibility 3.7). Repeats are dropped by (session,
seq). Holds no clock: times come with the calls.

Readings come once a second; the score is of `risk.SAMPLE_S` at a time, for which they are
collected (means, and errors counted) and scored when that time is over.

A frame says nothing about what exists: nodes, devices and ranks that `expect` did not name
are dropped and counted, so what one node sends cannot make the live state grow; what is not
named any more gives its place back.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from controlplane.policy import risk
from controlplane.protocol.frames import AgentFrame, RankStatus
from controlplane.protocol.launch import RankRef
from controlplane.protocol.samples import DeviceSample
from controlplane.protocol.states import Section
from controlplane.runtime.clock import from_s, iso
from controlplane.sentinel.readings import Watch
from controlplane.sentinel.scores import COLUMNS, ERRORS, PARTS, PAST, SOURCES, TRAINING, WEIGHTS, WINDOW, Floats, parts

GROW = 64
# A rank may run before the tables that were read a moment ago name it: counted as unknown after this.
STRANGE_S = 5.0
UNKNOWN_NODE = "?"


@dataclass(slots=True, kw_only=True)
class Heard:
    """A frame as the stream brought it. `at_s`: when the web process received it."""

    node_id: str
    session_id: str
    at_s: float
    frame: AgentFrame


@dataclass(slots=True, kw_only=True)
class LiveNode:
    """The newest of one node. `samples` by device index; `errors`: its ECC errors so far,
    corrected and uncorrectable; `error_s`: when one of them last rose. `strange_since_s`: since when its
    frames name ranks that are not placed on it."""

    row: int
    session_id: str = ""
    seq: int = 0
    agent: dict[str, Any] = field(default_factory=dict)
    samples: dict[int, DeviceSample] = field(default_factory=dict)
    errors: dict[int, tuple[int, int]] = field(default_factory=dict)
    error_s: dict[int, float] = field(default_factory=dict)
    strange_since_s: float | None = None


@dataclass(slots=True, kw_only=True)
class LiveRank:
    """The newest of one rank, and when it came."""

    node_id: str
    status: RankStatus
    at_s: float


class LiveState:
    """Arrays grow by doubling; a row is a node, or a (node, device). `dropped`: entries of
    frames by (node id, reason), taken out by whoever reports them."""

    def __init__(self) -> None:
        self.nodes: dict[str, LiveNode] = {}
        self.ranks: dict[RankRef, LiveRank] = {}
        self.last_seen_s: Floats = np.zeros(GROW)
        self.slots: dict[tuple[str, int], int] = {}
        self.window: Floats = np.full((GROW, WINDOW, len(COLUMNS)), np.nan)
        self.risk: Floats = np.full(GROW, np.nan)
        self.parts: Floats = np.full((GROW, len(PARTS)), np.nan)
        self._sums: Floats = np.zeros((GROW, len(COLUMNS)))
        self._counts: Floats = np.zeros((GROW, len(COLUMNS)))
        self._interval: Floats = np.full(GROW, np.nan)
        self._error_s: Mapping[tuple[str, int], float] = {}
        self.duplicates = 0
        self.dropped: Counter[tuple[str, str]] = Counter()
        self.watch = Watch()
        self._expected: Collection[str] = ()
        self._devices: Collection[tuple[str, int]] = ()
        self._placed: Mapping[RankRef, str] = {}
        self._free_rows: list[int] = []
        self._free_slots: list[int] = []

    def expect(
        self,
        nodes: Collection[str],
        devices: Collection[tuple[str, int]],
        placed: Mapping[RankRef, str],
        error_s: Mapping[tuple[str, int], float] | None = None,
    ) -> None:
        """What there is by the tables: nodes, (node, device index), each rank's node, and when a
        device was last accused of an error (Unix seconds). What is not named any more is forgotten
        and its rows are free."""
        self._expected, self._devices, self._placed = nodes, devices, placed
        self._error_s = error_s or {}
        for node_id in [known for known in self.nodes if known not in nodes]:
            self._free_rows.append(self.nodes.pop(node_id).row)
        for key in [known for known in self.slots if known not in devices or known[0] not in nodes]:
            slot = self.slots.pop(key)
            self.window[slot], self.risk[slot], self.parts[slot] = np.nan, np.nan, np.nan
            self._sums[slot], self._counts[slot], self._interval[slot] = 0.0, 0.0, np.nan
            self._free_slots.append(slot)
            self.watch.forget(*key)
            if key[0] in self.nodes:
                self.nodes[key[0]].samples.pop(key[1], None)
                self.nodes[key[0]].errors.pop(key[1], None)
                self.nodes[key[0]].error_s.pop(key[1], None)
        for ref in [ref for ref, rank in self.ranks.items() if placed.get(ref) != rank.node_id]:
            del self.ranks[ref]

    def know(self, node_id: str, at_s: float) -> None:
        """A node that should be heard from `at_s` on."""
        if node_id not in self.nodes:
            row = self._free_rows.pop() if self._free_rows else len(self.nodes)
            if row >= len(self.last_seen_s):
                self.last_seen_s = np.concatenate([self.last_seen_s, np.zeros(len(self.last_seen_s))])
            self.nodes[node_id] = LiveNode(row=row)
            self.last_seen_s[row] = at_s

    def clock_set(self, step_s: float) -> None:
        """The server's clock was set by so many seconds: what was heard before is moved with it."""
        self.last_seen_s += step_s
        for rank in self.ranks.values():
            rank.at_s += step_s
        for node in self.nodes.values():
            if node.strange_since_s is not None:
                node.strange_since_s += step_s

    def take(self, heard: Iterable[Heard]) -> list[Heard]:
        """Work a batch off, wave by wave; returns what was taken, without what was dropped."""
        taken: list[Heard] = []
        for wave in waves(heard):
            taken += self._wave(wave)
        return taken

    def silent_s(self, node_id: str, now_s: float) -> float:
        """Seconds since the node was last heard."""
        return max(0.0, now_s - float(self.last_seen_s[self.nodes[node_id].row]))

    def risk_of(self, node_id: str, index: int) -> float | None:
        """Newest score; None before the first sample."""
        slot = self.slots.get((node_id, index))
        return None if slot is None or np.isnan(self.risk[slot]) else float(self.risk[slot])

    def parts_of(self, node_id: str, index: int) -> dict[str, float]:
        """What the score is made of: each part's share of it; empty before the first one."""
        slot = self.slots.get((node_id, index))
        if slot is None or np.isnan(self.risk[slot]):
            return {}
        return {name: round(float(share), 4) for name, share in zip(PARTS, self.parts[slot] * WEIGHTS, strict=True)}

    def reachable_risk(self) -> float | None:
        """The highest score that any device can get, of the readings that it gives; None before
        the first score."""
        told = ~np.isnan(self.window[:, -1, :])[:, [COLUMNS.index(SOURCES[name]) for name in PARTS]]
        scored = ~np.isnan(self.risk)
        return round(float((told[scored] @ WEIGHTS).max()), 6) if scored.any() else None

    def _wave(self, wave: list[Heard]) -> list[Heard]:
        slots: list[int] = []
        samples: list[list[float]] = []
        taken: list[Heard] = []
        for heard in wave:
            try:
                clean, rows = self._one(heard)
            except Exception:
                # Whatever is wrong with it, the frames of the others in this wave are taken.
                self.dropped[heard.node_id, "failed_frame"] += 1
                continue
            if clean is not None:
                taken.append(clean)
                slots += rows
                samples += rows.values()
        if slots:
            self._append(np.array(slots), np.array(samples))
        return taken

    def _one(self, heard: Heard) -> tuple[Heard | None, dict[int, list[float]]]:
        """What is taken of a frame (None: nothing), and its readings by slot."""
        node = self._accept(heard)
        if node is None:
            return None, {}
        clean = self._only_known(heard, node)
        training = {s.device_index for s in clean.frame.ranks if s.section is Section.STEP}
        rows: dict[int, list[float]] = {}
        for sample in clean.frame.devices:
            row = _reading(node, sample, clean, sample.index in training)
            self.watch.take(clean.node_id, sample, clean.at_s)
            self._add_past(row, (clean.node_id, sample.index), clean.at_s)
            rows[self._slot(clean.node_id, sample.index)] = row
            node.samples[sample.index] = sample
        for status in clean.frame.ranks:
            self.ranks[status.ref] = LiveRank(node_id=clean.node_id, status=status, at_s=clean.at_s)
        return clean, rows

    def _only_known(self, heard: Heard, node: LiveNode) -> Heard:
        """The frame without devices and ranks that are none of this node's, each device once."""
        node_id, frame = heard.node_id, heard.frame
        ranks = tuple(status for status in frame.ranks if self._placed.get(status.ref) == node_id)
        samples: dict[int, DeviceSample] = {}
        for sample in frame.devices:
            if (node_id, sample.index) in self._devices:
                samples.setdefault(sample.index, sample)
        self._note_strangers(heard, node, len(frame.ranks) - len(ranks))
        if len(samples) == len(frame.devices) and len(ranks) == len(frame.ranks):
            return heard
        if len(samples) != len(frame.devices):
            self.dropped[node_id, "unknown_device"] += len(frame.devices) - len(samples)
        frame = msgspec.structs.replace(frame, devices=tuple(samples.values()), ranks=ranks)
        return Heard(node_id=node_id, session_id=heard.session_id, at_s=heard.at_s, frame=frame)

    def _note_strangers(self, heard: Heard, node: LiveNode, unplaced: int) -> None:
        if not unplaced:
            node.strange_since_s = None
        elif node.strange_since_s is None:
            node.strange_since_s = heard.at_s
        elif heard.at_s - node.strange_since_s > STRANGE_S:
            self.dropped[heard.node_id, "unknown_rank"] += unplaced

    def _accept(self, heard: Heard) -> LiveNode | None:
        """None for a repeat of what was taken, and for a node that is not in the tables."""
        if heard.node_id not in self._expected:
            self.dropped[UNKNOWN_NODE, "unknown_node"] += 1
            return None
        self.know(heard.node_id, heard.at_s)
        node = self.nodes[heard.node_id]
        if node.session_id == heard.session_id and heard.frame.seq <= node.seq:
            self.duplicates += 1
            return None
        node.session_id, node.seq = heard.session_id, heard.frame.seq
        # A frame that does not measure its agent leaves what the last one said; an agent of
        # revision 2 says 0 bytes for that, which no process has.
        if heard.frame.rss_bytes:
            node.agent = {"cpu_ratio": heard.frame.cpu_ratio, "rss_bytes": heard.frame.rss_bytes}
        self.last_seen_s[node.row] = max(self.last_seen_s[node.row], heard.at_s)
        return node

    def _slot(self, node_id: str, index: int) -> int:
        key = (node_id, index)
        if key not in self.slots:
            slot = self._free_slots.pop() if self._free_slots else len(self.slots)
            if slot >= len(self.risk):
                self._grow()
            self.slots[key] = slot
        return self.slots[key]

    def _grow(self) -> None:
        """Twice as many rows; new ones have read nothing."""
        for name, empty in (("window", np.nan), ("risk", np.nan), ("parts", np.nan), ("_interval", np.nan),
                            ("_sums", 0.0), ("_counts", 0.0)):  # fmt: skip
            old = getattr(self, name)
            setattr(self, name, np.concatenate([old, np.full_like(old, empty)]))

    def _add_past(self, row: list[float], key: tuple[str, int], at_s: float) -> None:
        """What is known of its errors beside the counters' last step: XIDs, by the tables, and
        what came earlier in the day."""
        accused_s = self._error_s.get(key, -np.inf)
        if at_s - accused_s < risk.SAMPLE_S:
            row[ERRORS] = np.nansum([row[ERRORS], 1.0])
        last_s = max(accused_s, self.nodes[key[0]].error_s.get(key[1], -np.inf))
        if at_s - last_s < risk.PAST_ERRORS_S:
            row[PAST] = 1.0

    def _append(self, slots: Any, samples: Any) -> None:
        """Every slot occurs once in a wave (`_only_known`), so one vector does it. A reading of
        another interval than the one that is open closes that one."""
        interval = np.floor(samples[:, 0] / risk.SAMPLE_S)
        open_ = self._interval[slots]
        self._close(slots[~np.isnan(open_) & (open_ != interval)])
        self._interval[slots] = interval
        self._sums[slots] += np.nan_to_num(samples, nan=0.0)
        self._counts[slots] += ~np.isnan(samples)

    def _close(self, slots: Any) -> None:
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
        self._sums[slots], self._counts[slots] = 0.0, 0.0


def waves(heard: Iterable[Heard]) -> Iterator[list[Heard]]:
    """Lists in which every node occurs at most once, each node's frames in order."""
    rounds: list[list[Heard]] = []
    count: dict[str, int] = {}
    for item in heard:
        number = count.get(item.node_id, 0)
        count[item.node_id] = number + 1
        if number == len(rounds):
            rounds.append([])
        rounds[number].append(item)
    yield from rounds


def _reading(node: LiveNode, sample: DeviceSample, heard: Heard, training: bool) -> list[float]:
    """One second of the window; a missing reading is NaN."""
    return [
        heard.frame.uptime_s,
        _nan(sample.temperature_c),
        _nan(sample.memory_utilization_ratio),
        _new_errors(node, sample, heard.at_s),
        0.0,
        _nan(sample.power_w),
        _nan(sample.utilization_ratio),
        float(training),
    ]


def _new_errors(node: LiveNode, sample: DeviceSample, at_s: float) -> float:
    """New uncorrectable errors since the sample before; NaN where the device does not count them.
    Corrected ones are no symptom of now, only part of its history. A counter that fell began anew:
    with the driver, or with a reset."""
    now = (sample.ecc_corrected_total or 0, sample.ecc_uncorrected_total or 0)
    before = node.errors.get(sample.index, now)
    node.errors[sample.index] = now
    if now[0] > before[0] or now[1] > before[1]:
        node.error_s[sample.index] = at_s
    return float("nan") if sample.ecc_uncorrected_total is None else float(max(0, now[1] - before[1]))


def _nan(value: float | None) -> float:
    return float("nan") if value is None else float(value)


def live_of(rank: LiveRank, now_s: float) -> dict[str, Any]:
    """A rank's live state as the API shows it; ages go on while nothing is heard."""
    since_s = max(0.0, now_s - rank.at_s)
    status = rank.status
    return {
        "section": str(status.section),
        "phase": str(status.phase),
        "step": status.step,
        "phase_age_s": round(status.phase_age_s + since_s, 3),
        "silent_s": round(status.silent_s + since_s, 3),
        "phase_since_s": round(rank.at_s - status.phase_age_s, 3),
        "at": iso(from_s(rank.at_s)),
    }


def sample_fields(live_state: LiveState, node_id: str, sample: DeviceSample) -> dict[str, Any]:
    """A device's newest reading with its score, and each part's share of that."""
    score, shares = live_state.risk_of(node_id, sample.index), live_state.parts_of(node_id, sample.index)
    return {**msgspec.to_builtins(sample), "risk": score, "risk_parts": shares}
