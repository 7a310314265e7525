"""The hot picture: what every node and rank said last, in arrays.

Frames come in waves: the k-th frame of every node is taken as one vector, so a stall is
worked off at the speed of the arrays (feasibility 3.7). Repeats are dropped by (session,
seq). Holds no clock: times come with the calls.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from controlplane.protocol.frames import AgentFrame, RankStatus
from controlplane.protocol.launch import RankRef
from controlplane.protocol.samples import DeviceSample
from controlplane.protocol.states import Section
from controlplane.runtime.clock import from_s, iso
from controlplane.sentinel.scores import COLUMNS, WINDOW, Floats, score

GROW = 64


@dataclass(slots=True, kw_only=True)
class Heard:
    """A frame as the stream brought it. `at_s`: when the web process received it."""

    node_id: str
    session_id: str
    at_s: float
    frame: AgentFrame


@dataclass(slots=True, kw_only=True)
class NodePicture:
    """The newest of one node. `samples` by device index."""

    row: int
    session_id: str = ""
    seq: int = 0
    agent: dict[str, Any] = field(default_factory=dict)
    samples: dict[int, DeviceSample] = field(default_factory=dict)
    errors: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class RankPicture:
    """The newest of one rank, and when it came."""

    node_id: str
    status: RankStatus
    at_s: float


class Picture:
    """Arrays grow by doubling; a row is a node, or a (node, device)."""

    def __init__(self) -> None:
        self.nodes: dict[str, NodePicture] = {}
        self.ranks: dict[RankRef, RankPicture] = {}
        self.last_seen_s: Floats = np.zeros(GROW)
        self.slots: dict[tuple[str, int], int] = {}
        self.window: Floats = np.full((GROW, WINDOW, len(COLUMNS)), np.nan)
        self.risk: Floats = np.full(GROW, np.nan)
        self.duplicates = 0

    def know(self, node_id: str, at_s: float) -> None:
        """A node that should be heard from `at_s` on."""
        if node_id not in self.nodes:
            row = len(self.nodes)
            if row >= len(self.last_seen_s):
                self.last_seen_s = np.concatenate([self.last_seen_s, np.zeros(len(self.last_seen_s))])
            self.nodes[node_id] = NodePicture(row=row)
            self.last_seen_s[row] = at_s

    def take(self, heard: Iterable[Heard]) -> None:
        """Work a batch off, wave by wave."""
        for wave in waves(heard):
            self._wave(wave)

    def silent_s(self, node_id: str, now_s: float) -> float:
        """Seconds since the node was last heard."""
        return max(0.0, now_s - float(self.last_seen_s[self.nodes[node_id].row]))

    def risk_of(self, node_id: str, index: int) -> float | None:
        """Newest score; None before the first sample."""
        slot = self.slots.get((node_id, index))
        return None if slot is None or np.isnan(self.risk[slot]) else float(self.risk[slot])

    def _wave(self, wave: list[Heard]) -> None:
        slots: list[int] = []
        samples: list[list[float]] = []
        for heard in wave:
            node = self._accept(heard)
            if node is None:
                continue
            training = {s.device_index for s in heard.frame.ranks if s.section is Section.STEP}
            for sample in heard.frame.devices:
                slots.append(self._slot(heard.node_id, sample.index))
                samples.append(_reading(node, sample, heard.frame.uptime_s, sample.index in training))
                node.samples[sample.index] = sample
            for status in heard.frame.ranks:
                self.ranks[status.ref] = RankPicture(node_id=heard.node_id, status=status, at_s=heard.at_s)
        if slots:
            self._append(np.array(slots), np.array(samples))

    def _accept(self, heard: Heard) -> NodePicture | None:
        """None for a repeat of what was taken."""
        self.know(heard.node_id, heard.at_s)
        node = self.nodes[heard.node_id]
        if node.session_id == heard.session_id and heard.frame.seq <= node.seq:
            self.duplicates += 1
            return None
        node.session_id, node.seq = heard.session_id, heard.frame.seq
        node.agent = {"cpu_ratio": heard.frame.cpu_ratio, "rss_bytes": heard.frame.rss_bytes}
        self.last_seen_s[node.row] = max(self.last_seen_s[node.row], heard.at_s)
        return node

    def _slot(self, node_id: str, index: int) -> int:
        key = (node_id, index)
        if key not in self.slots:
            slot = len(self.slots)
            if slot >= len(self.risk):
                self.window = np.concatenate([self.window, np.full_like(self.window, np.nan)])
                self.risk = np.concatenate([self.risk, np.full_like(self.risk, np.nan)])
            self.slots[key] = slot
        return self.slots[key]

    def _append(self, slots: Any, samples: Any) -> None:
        """Every slot occurs once in a wave (a frame lists a device once), so one vector does it."""
        slots, first = np.unique(slots, return_index=True)
        moved = np.concatenate([self.window[slots, 1:], samples[first][:, None, :]], axis=1)
        self.window[slots] = moved
        self.risk[slots] = score(moved)


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


def _reading(node: NodePicture, sample: DeviceSample, uptime_s: float, training: bool) -> list[float]:
    """One row of the window; a missing reading is NaN."""
    return [
        uptime_s,
        _nan(sample.temperature_c),
        _nan(sample.memory_utilization_ratio),
        _new_errors(node, sample),
        _nan(sample.power_w),
        _nan(sample.utilization_ratio),
        float(training),
    ]


def _new_errors(node: NodePicture, sample: DeviceSample) -> float:
    """Errors since the sample before; NaN where the device does not count them."""
    counters = (sample.ecc_corrected_total, sample.ecc_uncorrected_total)
    if all(value is None for value in counters):
        return float("nan")
    total = sum(value or 0 for value in counters)
    before = node.errors.get(sample.index, total)
    node.errors[sample.index] = total
    return float(max(0, total - before))


def _nan(value: float | None) -> float:
    return float("nan") if value is None else float(value)


def live_of(rank: RankPicture, now_s: float) -> dict[str, Any]:
    """A rank's picture as the API shows it; ages go on while nothing is heard."""
    since_s = max(0.0, now_s - rank.at_s)
    status = rank.status
    return {
        "section": str(status.section),
        "phase": str(status.phase),
        "step": status.step,
        "phase_age_s": round(status.phase_age_s + since_s, 3),
        "silent_s": round(status.silent_s + since_s, 3),
        "at": iso(from_s(rank.at_s)),
    }


def sample_fields(sample: DeviceSample, risk: float | None) -> dict[str, Any]:
    """A device's newest reading with its score."""
    return {**msgspec.to_builtins(sample), "risk": risk}
