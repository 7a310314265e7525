"""When a device's risk is an alarm, and when not any more: a score that trembles at its limit alarms once."""

from collections.abc import Iterator
from dataclasses import dataclass

from controlplane.changes.kinds import Change, Raise, Settle, Wake
from controlplane.changes.rows import Rows
from controlplane.policy.signals.devices import DeviceAtRisk


@dataclass(slots=True)
class RiskState:
    """One device's latch. `below_since_s`: since when the score is under the limit."""

    alarmed: bool = False
    below_since_s: float | None = None

    def step(self, score: float, *, limit: float, hysteresis_s: float, now_s: float) -> bool | None:
        """True: alarm now; False: all clear now; None: nothing new."""
        if score >= limit:
            self.below_since_s = None
            if self.alarmed:
                return None
            self.alarmed = True
            return True
        if not self.alarmed:
            return None
        if self.below_since_s is None:
            self.below_since_s = now_s
        if now_s - self.below_since_s < hysteresis_s:
            return None
        self.alarmed, self.below_since_s = False, None
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Risk:
    """A device's score, and `parts`, each one's share of it. `device_id`: as its rows call it."""

    node_id: str
    index: int
    device_id: str
    uuid: str
    score: float
    limit: float
    parts: dict[str, float]


def risk_moved(rows: Rows, risk: Risk, *, alarm: bool) -> Iterator[Change]:
    """Its score has reached the limit, or was below for long enough."""
    known = rows.finding(DeviceAtRisk.key_of(risk.device_id))
    if alarm:
        yield Raise(
            DeviceAtRisk(
                job_id=rows.job_id or None,
                node_id=risk.node_id,
                device_index=risk.index,
                device_id=risk.device_id,
                node=rows.node_name(risk.node_id),
                score=risk.score,
                limit=risk.limit,
                parts=risk.parts,
                uuid=risk.uuid,
            )
        )
    elif known is not None:
        yield Settle((known.id,), "the score is below its limit again")
    if rows.job_id:
        yield Wake()
