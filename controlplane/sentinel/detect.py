"""From the live state to findings. Pure: what is silent, which device is at risk.

Silence is only reported while our own side could have heard; risk has hysteresis, so that
a score that trembles at its limit alarms once.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

from controlplane.changes.risks import RiskState
from controlplane.changes.silence import MISSED_FRAMES, Silence, silence_of
from controlplane.sentinel.fleetmap import DeviceInfo, FleetMap, JobLimits, NodeInfo
from controlplane.sentinel.live_state import LiveState

# More than this share of the connected nodes silent at once says more about us than about them.
BLIND_SHARE = 0.5
BLIND_MIN_NODES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RiskMove:
    """`alarm`: the score reached its limit; else it was below long enough. `parts`: each one's
    share of the score."""

    node_id: str
    index: int
    job_id: str | None
    score: float
    limit: float
    alarm: bool
    parts: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class RiskLatch:
    """All latches, by (node, device index)."""

    states: dict[tuple[str, int], RiskState] = field(default_factory=dict)

    def step(self, live_state: LiveState, fleet: FleetMap, now_s: float) -> list[RiskMove]:
        """Moves since the last step, in order of node and device. Asked are the latches of devices whose score is at
        the lowest limit at least, or whose alarm is not known to be off: of all others a step changes nothing."""
        moves = []
        if len(self.states) > len(live_state.slots):
            self.states = {key: state for key, state in self.states.items() if key in live_state.slots}
        lowest = min([JobLimits().risk, *(limits.risk for limits in fleet.limits.values())])
        scores = live_state.risk[: len(live_state.keys)]
        asked = np.flatnonzero((scores >= lowest) | (~live_state.calm[: len(scores)] & ~np.isnan(scores))).tolist()
        for key, slot in sorted((key, slot) for slot in asked if (key := live_state.keys[slot]) is not None):
            device = fleet.devices.get(key)
            if device is None:
                continue
            risk = float(scores[slot])
            limits = fleet.limits.get(device.job_id or "", JobLimits())
            state = self.states.setdefault(key, RiskState(alarmed=(device.risk or 0.0) >= limits.risk))
            alarm = state.step(risk, limit=limits.risk, hysteresis_s=limits.hysteresis_s, now_s=now_s)
            live_state.calm[slot] = not state.alarmed
            if alarm is not None:
                # The row may not be written: until then this latch is asked again.
                live_state.calm[slot] = False
                moves.append(_move(live_state, key, device, risk, limits.risk, alarm=alarm))
        return moves

    def forget(self, node_id: str, index: int) -> None:
        """A move that could not be stored: the next step begins from the row again."""
        self.states.pop((node_id, index), None)


def _move(
    live_state: LiveState, key: tuple[str, int], device: DeviceInfo, risk: float, limit: float, *, alarm: bool
) -> RiskMove:
    return RiskMove(
        node_id=key[0],
        index=key[1],
        job_id=device.job_id,
        score=risk,
        limit=limit,
        alarm=alarm,
        parts=live_state.parts_of(*key),
    )


def find_silent(
    live_state: LiveState,
    fleet: FleetMap,
    now_s: float,
    *,
    frame_interval_s: float,
    excused: Collection[str] = frozenset(),
) -> list[Silence]:
    """Nodes with ranks that have not been heard for longer than a job of theirs allows (`changes.silence`),
    by node and job; without those `excused`, whose silence may be
    ours."""
    found = []
    for node_id in sorted(live_state.silent_for(MISSED_FRAMES * frame_interval_s, now_s)):
        info = fleet.nodes.get(node_id)
        if info is None or node_id not in fleet.jobs_on or (info.connected and node_id in excused):
            continue
        silent_s = live_state.silent_s(node_id, now_s)
        for job_id in sorted(fleet.jobs_on[node_id]):
            allowed_s = fleet.limits.get(job_id, JobLimits()).silence_s
            silence = silence_of(
                node_id, job_id, silent_s=silent_s, allowed_s=allowed_s, frame_interval_s=frame_interval_s
            )
            found += [silence] if silence is not None else []
    return found


def mostly_silent(
    live_state: LiveState, fleet: FleetMap, now_s: float, *, limit_s: float, others: tuple[int, int] = (0, 0)
) -> bool:
    """So many nodes are silent at once that the fault is rather ours. Counted are those that are connected, and those
    whose connection one of our own processes took along; `others`: as many are silent, of so many, in shards of which
    other sentinels told."""
    silent = _silent(live_state, fleet, now_s, limit_s) + others[0]
    if silent < 2:
        # One alone says nothing, however few there are.
        return False
    expected = _expected(live_state, fleet) + others[1]
    if expected < BLIND_MIN_NODES:
        # Of so few, only all at once say more about us than about them.
        return silent == expected
    return silent > BLIND_SHARE * expected


def silent_count(live_state: LiveState, fleet: FleetMap, now_s: float, *, limit_s: float) -> tuple[int, int]:
    """(silent nodes, of how many) that count."""
    return _silent(live_state, fleet, now_s, limit_s), _expected(live_state, fleet)


def _silent(live_state: LiveState, fleet: FleetMap, now_s: float, limit_s: float) -> int:
    return sum(_counts(fleet.nodes.get(node_id)) for node_id in live_state.silent_for(limit_s, now_s))


def _expected(live_state: LiveState, fleet: FleetMap) -> int:
    return sum(node_id in live_state.nodes for node_id, info in fleet.nodes.items() if _counts(info))


def _counts(info: NodeInfo | None) -> bool:
    return info is not None and (info.connected or info.cut)
