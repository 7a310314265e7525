"""The disruption budget of a simulated fleet: acts, breakers, and the person who closes one after a while; and what
its jobs' restarts are charged."""

from collections import Counter
from dataclasses import dataclass, field

from controlplane.changes.assembly.counted import WINDOW_S
from controlplane.changes.disruption_kinds import BreakerChange, CloseBreaker, CountActs, OpenBreaker
from controlplane.policy.budget import Rung
from controlplane.policy.config import PolicyConfig
from controlplane.policy.disruption import CAPS, CAPS_OF_SEGMENT, exceeds
from controlplane.policy.disruption_counts import Act, DisruptionCounts, OpenedBreaker
from controlplane.policy.plan import Decision
from controlplane.protocol.states import Mode

HOUR_S = 3600.0
CLOSED_AFTER_S = 60.0
"""A person looks at an open breaker and closes it so much later."""


@dataclass(frozen=True, slots=True)
class Charge:
    """A restart that is charged, at `at_s` (kernel's time)."""

    at_s: float
    attempt: int
    rung: Rung
    program: bool


@dataclass(slots=True)
class Budget:
    """As `recovery.disruption` has it in rows. `acts_s`: when a destructive decision was carried out; `acts`: each
    act, with its second; `closings`: when a person closed a breaker, by segment; `opened`: how many were."""

    acts_s: list[float] = field(default_factory=list)
    acts: list[tuple[float, Act]] = field(default_factory=list)
    open: dict[str, OpenedBreaker] = field(default_factory=dict)
    opened: Counter[str] = field(default_factory=Counter)
    closings: dict[str, list[float]] = field(default_factory=dict)

    def since_s(self, now_s: float, within_s: float, segment: str = "") -> float:
        """From when on acts and findings count."""
        closings = (*self.closings.get("", ()), *self.closings.get(segment, ()))
        since_s: float = max(now_s - within_s, *closings, 0.0)
        return since_s

    def recent(self, now_s: float) -> int:
        """Destructive decisions of the budget's window."""
        since_s = self.since_s(now_s, WINDOW_S)
        return sum(at_s >= since_s for at_s in self.acts_s)

    def counted(self, now_s: float, still: set[tuple[str, int]] | None = None) -> DisruptionCounts:
        """What a pass is told; `still`: devices that are suspected since the fleet's breaker opened."""
        fleet, parts = Counter[str](), dict[str, Counter[str]]()
        since_s = self.since_s(now_s, HOUR_S)
        for at_s, act in self.acts:
            fleet[act.kind] += at_s >= since_s
            for name in act.segments:
                parts.setdefault(name, Counter())[act.kind] += at_s >= self.since_s(now_s, HOUR_S, name)
        return DisruptionCounts(
            acts={kind: number for kind, number in sorted(fleet.items()) if number},
            of_segments={name: dict(sorted(found.items())) for name, found in sorted(parts.items())},
            breakers=tuple(self.open[name] for name in sorted(self.open)),
            opened=dict(sorted(self.opened.items())),
            still_devices=len(still or ()),
            still_nodes=tuple(sorted({node_id for node_id, _ in still or ()})),
        )

    def waits(self, config: PolicyConfig, now_s: float) -> bool:
        """The fleet's pass has a breaker to look at, or may have to open one."""
        if self.open or self.recent(now_s) >= config.max_acts:
            return True
        done = self.counted(now_s)
        fleet = any(done.acts.get(kind, 0) >= getattr(config, name) for kind, name in CAPS.items())
        return fleet or any(
            own.get(kind, 0) >= getattr(config, name)
            for own in done.of_segments.values()
            for kind, name in CAPS_OF_SEGMENT.items()
        )

    def refuses(self, decision: Decision, config: PolicyConfig, now_s: float) -> str:
        """As `recovery.disruption.check`: the cap that it would exceed; "": none."""
        bound = decision.mode is Mode.ENFORCE and any(not act.proved for act in decision.acts)
        return exceeds(decision.acts, self.counted(now_s), config) if bound else ""

    def take(self, change: BreakerChange, now_s: float) -> OpenedBreaker | None:
        """As `recovery.commit`; the breaker that it opens."""
        match change:
            case CountActs(acts=acts):
                self.acts += [(now_s, act) for act in acts]
            case CloseBreaker(breaker=breaker):
                self.close(breaker, now_s, by_person=False)
            case OpenBreaker(code=code, segment=segment, sentence=why) if segment not in self.open:
                self.opened[segment] += 1
                name = f"{segment or 'fleet'}-{self.opened[segment]}"
                made = OpenedBreaker(id=name, code=code, segment=segment, opened_s=now_s, sentence=why)
                self.open[segment] = made
                return made
        return None

    def close(self, breaker_id: str, now_s: float, *, by_person: bool) -> bool:
        """False: it is closed."""
        found = next((each for each in self.open.values() if each.id == breaker_id), None)
        if found is None:
            return False
        del self.open[found.segment]
        if by_person:
            self.closings.setdefault(found.segment, []).append(now_s)
        return True
