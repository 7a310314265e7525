"""The live state: what every node and rank said last, in arrays.

Frames come in waves: the k-th frame of every node is taken as one vector, so a stall is
worked off at the speed of the arrays (feasibility 3.7). Repeats are dropped by (session,
seq). Holds no clock: times come with the calls.

A frame says nothing about what exists: nodes, devices and ranks that `expect` did not name
are dropped and counted, so what one node sends cannot make the live state grow; what is not
named any more gives its place back.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from itertools import chain

import msgspec
import numpy as np
import numpy.typing as npt

from controlplane.protocol.frames import RankStatus
from controlplane.protocol.launch import RankRef
from controlplane.protocol.samples import DeviceSample
from controlplane.protocol.states import Section
from controlplane.sentinel.columns import WIDTH, Floats, Slots, table
from controlplane.sentinel.heard import NOWHERE, Heard, LiveNode, LiveRank, waves
from controlplane.sentinel.scoring import Scoring
from controlplane.sentinel.watching import FleetWatch

GROW = 64
# A rank may run before the tables that were read a moment ago name it: counted as unknown after this.
STRANGE_S = 5.0
UNKNOWN_NODE = "?"
Key = tuple[str, int]


class LiveState:
    """Arrays grow by doubling; a row is a node, or (a slot) a device. `jobs`: the ranks of each. `names`: the node of
    each row, "" of a free one;
    `keys`: the device of each slot. `dropped`: entries of frames by (node id, reason), taken out by whoever reports
    them. `changed`: nodes that said something since their picture was taken, the longest waiting first. `calm`: slots
    whose score is under every limit and whose alarm is off (kept by `detect.RiskLatch`)."""

    def __init__(self) -> None:
        self.nodes: dict[str, LiveNode] = {}
        self.ranks: dict[RankRef, LiveRank] = {}
        self.jobs: dict[str, dict[RankRef, LiveRank]] = {}
        self.last_seen_s: Floats = np.zeros(GROW)
        self.names: list[str] = []
        self.slots: dict[Key, int] = {}
        self.keys: list[Key | None] = []
        self.scoring = Scoring(GROW)
        self.calm: npt.NDArray[np.bool_] = np.zeros(GROW, dtype=bool)
        self.duplicates = 0
        self.dropped: Counter[tuple[str, str]] = Counter()
        self.changed: dict[str, None] = {}
        self.watch = FleetWatch()
        self._expected: Collection[str] = ()
        self._devices: Collection[Key] = ()
        self._placed: Mapping[RankRef, str] = {}
        self._error_s: Mapping[Key, float] = {}
        self._free_rows: list[int] = []
        self._free_slots: list[int] = []

    @property
    def risk(self) -> Floats:
        """The newest score of each slot; NaN before the first."""
        return self.scoring.risk

    def expect(
        self,
        nodes: Collection[str],
        devices: Collection[Key],
        placed: Mapping[RankRef, str],
        error_s: Mapping[Key, float] | None = None,
        *,
        touched: Collection[str] | None = None,
    ) -> None:
        """What there is by the tables: nodes, (node, device index), each rank's node, and when a
        device was last accused of an error (Unix seconds). What is not named any more is forgotten
        and its rows are free. `touched`: the only nodes of which any of it has changed."""
        self._expected, self._devices, self._placed = nodes, devices, placed
        self._error_s = error_s or {}
        for node_id in list(self.nodes) if touched is None else [each for each in touched if each in self.nodes]:
            self._expect_of(node_id)
        self.scoring.accused_s[:] = -np.inf
        for key, at_s in self._error_s.items():
            if key in self.slots:
                self.scoring.accused_s[self.slots[key]] = at_s

    def _expect_of(self, node_id: str) -> None:
        node, gone = self.nodes[node_id], node_id not in self._expected
        for index in [each for each in node.slots if gone or (node_id, each) not in self._devices]:
            self._free_slot(node, (node_id, index))
        node.said, node.ranks = (), ()
        for ref in [each for each in node.refs if gone or self._placed.get(each) != node_id]:
            node.refs.discard(ref)
            if ref in self.ranks and self.ranks[ref].node_id == node_id:
                del self.ranks[ref], self.jobs[ref.job_id][ref]
                if not self.jobs[ref.job_id]:
                    del self.jobs[ref.job_id]
        if gone:
            del self.nodes[node_id]
            self.changed.pop(node_id, None)
            self.names[node.row], self.last_seen_s[node.row] = "", 0.0
            self._free_rows.append(node.row)

    def know(self, node_id: str, at_s: float) -> None:
        """A node that should be heard from `at_s` on."""
        if node_id in self.nodes:
            return
        row = self._free_rows.pop() if self._free_rows else len(self.names)
        if row >= len(self.last_seen_s):
            self.last_seen_s = np.concatenate([self.last_seen_s, np.zeros(len(self.last_seen_s))])
        if row == len(self.names):
            self.names.append("")
        self.nodes[node_id] = LiveNode(row=row)
        self.names[row], self.last_seen_s[row] = node_id, at_s
        self.changed[node_id] = None

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

    def silent_for(self, limit_s: float, now_s: float) -> list[str]:
        """Nodes not heard for at least so long."""
        silent = now_s - self.last_seen_s[: len(self.names)] >= limit_s
        return [name for row in np.flatnonzero(silent).tolist() if (name := self.names[row])]

    def risk_of(self, node_id: str, index: int) -> float | None:
        """Newest score; None before the first sample."""
        slot = self.slots.get((node_id, index))
        return None if slot is None or np.isnan(self.risk[slot]) else float(self.risk[slot])

    def parts_of(self, node_id: str, index: int) -> dict[str, float]:
        """What the score is made of: each part's share of it; empty before the first one."""
        slot = self.slots.get((node_id, index))
        return {} if slot is None else self.scoring.shares(slot)

    @property
    def expects_devices(self) -> bool:
        """There are some by the tables, heard or not."""
        return bool(self._devices)

    def reachable_risk(self) -> float | None:
        """The highest score that any device can get, of the readings that it gives; None before
        the first score."""
        return self.scoring.reachable()

    def _wave(self, wave: list[Heard]) -> list[Heard]:
        taken: list[Heard] = []
        for heard in wave:
            try:
                clean = self._one(heard)
            except Exception:
                # Whatever is wrong with it, the frames of the others in this wave are taken.
                self.dropped[heard.node_id, "failed_frame"] += 1
                continue
            if clean is not None:
                taken.append(clean)
        failed = self._samples([heard for heard in taken if heard.frame.devices])
        for heard in taken:
            self.changed.setdefault(heard.node_id)
        return [heard for heard in taken if heard.node_id not in failed] if failed else taken

    def _one(self, heard: Heard) -> Heard | None:
        """What is taken of a frame, its ranks with it; None: nothing."""
        node = self._accept(heard)
        if node is None:
            return None
        clean = self._only_known(heard, node)
        statuses, at_s = clean.frame.ranks, clean.at_s
        said = tuple([status.ref for status in statuses])
        if said != node.said:
            node.said = said
            node.ranks = tuple([self._rank(node, clean.node_id, status, at_s) for status in statuses])
        for rank, status in zip(node.ranks, statuses, strict=True):
            rank.status, rank.at_s = status, at_s
        return clean

    def _rank(self, node: LiveNode, node_id: str, status: RankStatus, at_s: float) -> LiveRank:
        ref = status.ref
        rank = self.ranks.get(ref)
        if rank is None or rank.node_id != node_id:
            field = f"{ref.replica}.{ref.incarnation}.{ref.rank}"
            rank = LiveRank(node_id=node_id, status=status, at_s=at_s, field=field)
            self.ranks[ref] = self.jobs.setdefault(ref.job_id, {})[ref] = rank
            node.refs.add(ref)
        return rank

    def _samples(self, frames: list[Heard]) -> set[str]:
        """The devices of a wave, as one vector; returns nodes whose samples cannot be read."""
        failed = self._tabled(frames)
        frames = [heard for heard in frames if heard.node_id not in failed] if failed else frames
        if not frames:
            return failed
        slots = np.concatenate([self._layout(heard) for heard in frames])
        whole = np.concatenate([_table_of(heard) for heard in frames]) if len(frames) > 1 else _table_of(frames[0])
        sizes = [len(heard.frame.devices) for heard in frames]
        at_s = np.repeat([heard.at_s for heard in frames], sizes)
        uptime_s = np.repeat([heard.frame.uptime_s for heard in frames], sizes)
        training = np.fromiter(chain.from_iterable(map(_training, frames)), dtype=float, count=len(slots))
        self.scoring.add(slots, whole, uptime_s=uptime_s, at_s=at_s, training=training)
        samples = list(chain.from_iterable(heard.frame.devices for heard in frames))
        for node_id in self.watch.take_all(slots, self.keys, samples, whole, at_s):
            self.dropped[node_id, "failed_frame"] += 1
        for heard in frames:
            node = self.nodes[heard.node_id]
            node.samples.update(zip(node.layout[0], heard.frame.devices, strict=True))
            node.shown = b""
        return failed

    def _tabled(self, frames: list[Heard]) -> set[str]:
        """Each frame with its readings as numbers; returns the nodes whose are none."""
        try:
            whole = table([sample for heard in frames for sample in heard.frame.devices])
        except (TypeError, ValueError):
            if len(frames) == 1:
                self.dropped[frames[0].node_id, "failed_frame"] += 1
                return {frames[0].node_id}
            return set().union(*(self._tabled([heard]) for heard in frames))
        place = 0
        for heard in frames:
            heard.table = whole[place : place + len(heard.frame.devices)]
            place += len(heard.frame.devices)
        return set()

    def _layout(self, heard: Heard) -> Slots:
        """The slots of a frame's devices: most frames have the devices of the one before."""
        node, indexes = self.nodes[heard.node_id], tuple([sample.index for sample in heard.frame.devices])
        if node.layout[0] != indexes:
            slots = [self._slot(node, (heard.node_id, index)) for index in indexes]
            node.layout = (indexes, np.array(slots, dtype=np.intp))
        heard.slots = node.layout[1]
        return heard.slots

    def _only_known(self, heard: Heard, node: LiveNode) -> Heard:
        """The frame without devices and ranks that are none of this node's, each device once. One that names what the
        one before named is not held against the tables: what has changed in them since is forgotten (`expect`)."""
        node_id, frame = heard.node_id, heard.frame
        same = not frame.devices or tuple([sample.index for sample in frame.devices]) == node.layout[0]
        if same and tuple([status.ref for status in frame.ranks]) == node.said:
            node.strange_since_s = None
            return heard
        ranks = tuple([status for status in frame.ranks if self._placed.get(status.ref) == node_id])
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

    def _slot(self, node: LiveNode, key: Key) -> int:
        if key in self.slots:
            return self.slots[key]
        slot = self._free_slots.pop() if self._free_slots else len(self.keys)
        if slot >= len(self.risk):
            self.scoring.grow()
            self.calm = np.concatenate([self.calm, np.zeros(len(self.calm), dtype=bool)])
        if slot == len(self.keys):
            self.keys.append(None)
        self.slots[key], self.keys[slot], node.slots[key[1]] = slot, key, slot
        self.scoring.accused_s[slot] = self._error_s.get(key, -np.inf)
        return slot

    def _free_slot(self, node: LiveNode, key: Key) -> None:
        slot = self.slots.pop(key)
        self.scoring.clear(slot)
        self.keys[slot], self.calm[slot] = None, False
        self._free_slots.append(slot)
        self.watch.forget(*key)
        node.slots.pop(key[1])
        node.samples.pop(key[1], None)
        node.layout, node.shown = ((), NOWHERE), b""


def _table_of(heard: Heard) -> Floats:
    return np.empty((0, WIDTH)) if heard.table is None else heard.table


def _training(heard: Heard) -> list[bool]:
    """Of each device of a frame: a rank on it is in a step."""
    in_step = {status.device_index for status in heard.frame.ranks if status.section is Section.STEP}
    return [sample.index in in_step for sample in heard.frame.devices]
