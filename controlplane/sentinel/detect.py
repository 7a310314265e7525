"""From the live state to findings. Pure: what is silent, which device is at risk.

Silence is only reported while our own side could have heard; risk has hysteresis, so that
a score that trembles at its limit alarms once.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

from controlplane.changes.risks import RiskState
from controlplane.changes.silence import Silence, silence_of
from controlplane.sentinel.fleetmap import FleetMap, JobLimits
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
        """Moves since the last step, in order of node and device."""
        moves = []
        if len(self.states) > len(live_state.slots):
            self.states = {key: state for key, state in self.states.items() if key in live_state.slots}
        for key in sorted(live_state.slots):
            device = fleet.devices.get(key)
            risk = live_state.risk_of(*key)
            if device is None or risk is None:
                continue
            limits = fleet.limits.get(device.job_id or "", JobLimits())
            state = self.states.setdefault(key, RiskState(alarmed=(device.risk or 0.0) >= limits.risk))
            alarm = state.step(risk, limit=limits.risk, hysteresis_s=limits.hysteresis_s, now_s=now_s)
            if alarm is not None:
                node_id, index = key
                moves.append(
                    RiskMove(
                        node_id=node_id,
                        index=index,
                        job_id=device.job_id,
                        score=risk,
                        limit=limits.risk,
                        alarm=alarm,
                        parts=live_state.parts_of(node_id, index),
                    )
                )
        return moves

    def forget(self, node_id: str, index: int) -> None:
        """A move that could not be stored: the next step begins from the row again."""
        self.states.pop((node_id, index), None)


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
    for node_id in sorted(fleet.jobs_on):
        info = fleet.nodes.get(node_id)
        if info is None or node_id not in live_state.nodes or (info.connected and node_id in excused):
            continue
        silent_s = live_state.silent_s(node_id, now_s)
        for job_id in sorted(fleet.jobs_on[node_id]):
            allowed_s = fleet.limits.get(job_id, JobLimits()).silence_s
            silence = silence_of(
                node_id, job_id, silent_s=silent_s, allowed_s=allowed_s, frame_interval_s=frame_interval_s
            )
            found += [silence] if silence is not None else []
    return found


def mostly_silent(live_state: LiveState, fleet: FleetMap, now_s: float, *, limit_s: float) -> bool:
    """So many nodes are silent at once that the fault is rather ours. Counted are those that
    are connected, and those whose connection one of our own processes took along."""
    expected = [n for n, info in fleet.nodes.items() if (info.connected or info.cut) and n in live_state.nodes]
    silent = sum(live_state.silent_s(node_id, now_s) >= limit_s for node_id in expected)
    if len(expected) < BLIND_MIN_NODES:
        # Of so few, only all at once say more about us than about them; one alone says nothing.
        return len(expected) > 1 and silent == len(expected)
    return silent > BLIND_SHARE * len(expected)
