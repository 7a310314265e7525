"""The disruption budget: what automation may do at most, and the breaker that stops it (ADR 0048).

Three things hold an act that does not rest on positive proof: too much of the fleet looks bad at once, a cap on acts
is met, or a breaker is open because one of these was. What a cap holds a person lets go again: `policy.breaker` opens
a breaker for it, which only a person closes. A failure domain has caps and a breaker of its own, which hold what
touches it and nothing else. Asked by the rules, by `policy.fleet` and, under the fleet's lock, by whoever carries a
decision out (`exceeds`). Pure.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from controlplane.policy.config import PolicyConfig
from controlplane.policy.disruption_counts import Act, ActKind, DisruptionCounts
from controlplane.policy.facts import Governed, correlated_failure_of

CORRELATED, BURST = "correlated", "burst"
"""Codes of a hold beside those of the caps, which are called as the kind of act that they cap."""
CAPS: Mapping[ActKind, str] = {
    ActKind.EVICT: "max_evictions",
    ActKind.RESTART: "max_restarts",
    ActKind.CORDON: "max_cordons",
    ActKind.SAVE: "max_emergency_saves",
}
CAPS_OF_SEGMENT: Mapping[ActKind, str] = {
    ActKind.EVICT: "max_evictions_of_segment",
    ActKind.CORDON: "max_cordons_of_segment",
}
"""A restart concerns a whole job, which lies in many failure domains; a save lies in none."""
_DONE = {
    ActKind.EVICT: "replicas were ended",
    ActKind.RESTART: "attempts were ended",
    ActKind.CORDON: "nodes were taken out of service",
    ActKind.SAVE: "emergency saves were requested",
}


class Hold(NamedTuple):
    """What holds acts, of the fleet (`segment` "") or of a failure domain, and why, as a sentence without its stop.
    `code`: `CORRELATED`, `BURST` or a kind of act."""

    code: str
    segment: str
    sentence: str


def why_held(snapshot: Governed, config: PolicyConfig, node_ids: Iterable[str] = ()) -> Hold | None:
    """What holds an act without positive proof that touches these nodes; None: nothing does."""
    found = tripped(snapshot, config) or _open(snapshot, "")
    if found is not None:
        return found
    for name in segments_of(snapshot, node_ids):
        found = tripped_in(snapshot, config, name) or _open(snapshot, name)
        if found is not None:
            return found
    return None


def is_held(snapshot: Governed, config: PolicyConfig, node_ids: Iterable[str] = ()) -> bool:
    """An act without positive proof that touches these nodes waits."""
    return why_held(snapshot, config, node_ids) is not None


def tripped(snapshot: Governed, config: PolicyConfig) -> Hold | None:
    """What trips the fleet's breaker now, the weightiest first; None: nothing does."""
    if snapshot.acts_last_window >= config.max_acts:
        return Hold(BURST, "", f"{snapshot.acts_last_window} destructive acts within the window")
    if correlated_failure_of(snapshot, config):
        return Hold(CORRELATED, "", f"{snapshot.suspect_devices} of {snapshot.fleet_devices} devices look bad at once")
    return _met(CAPS, snapshot.disruption.acts, config, "")


def tripped_in(snapshot: Governed, config: PolicyConfig, segment: str) -> Hold | None:
    """The same of one failure domain."""
    return _met(CAPS_OF_SEGMENT, snapshot.disruption.of_segments.get(segment, {}), config, segment)


def _met(caps: Mapping[ActKind, str], done: Mapping[str, int], config: PolicyConfig, segment: str) -> Hold | None:
    where = f" of {segment}" if segment else ""
    for kind, field in caps.items():
        if (number := done.get(kind, 0)) >= getattr(config, field):
            return Hold(kind, segment, f"{number} {_DONE[kind]}{where} within an hour, as many as `{field}` allows")
    return None


def _open(snapshot: Governed, segment: str) -> Hold | None:
    found = next((each for each in snapshot.disruption.breakers if each.segment == segment), None)
    return None if found is None else Hold(found.code, segment, f"the breaker is open: {found.sentence}")


def saves_held(snapshot: Governed, config: PolicyConfig) -> str:
    """Why no emergency save is requested by automation; "": it may be. A save destroys nothing, so that of the open
    breakers only one for too many saves holds it."""
    found = _open(snapshot, "")
    if found is not None and found.code == ActKind.SAVE:
        return found.sentence
    met = _met({ActKind.SAVE: CAPS[ActKind.SAVE]}, snapshot.disruption.acts, config, "")
    return met.sentence if met is not None else ""


def segments_of(snapshot: Governed, node_ids: Iterable[str]) -> list[str]:
    """The named failure domains of these nodes, sorted."""
    return sorted({snapshot.segments.get(node_id, "") for node_id in node_ids} - {""})


class Allowance:
    """What the caps leave to one pass, which may want several acts. Positive proof is charged and not held."""

    def __init__(self, snapshot: Governed, config: PolicyConfig) -> None:
        self._snapshot, self._config = snapshot, config
        self._taken: Counter[tuple[ActKind, str]] = Counter()
        self._burst = config.max_acts - snapshot.acts_last_window

    def takes(self, kind: ActKind, node_ids: Iterable[str], *, proved: bool = False) -> bool:
        """Whether one more is allowed; it is charged where it is."""
        names = segments_of(self._snapshot, node_ids)
        room = self._left(kind, "") > 0 and all(self._left(kind, name) > 0 for name in names)
        if not proved and (not room or is_held(self._snapshot, self._config, node_ids)):
            return False
        for name in ("", *names):
            self._taken[kind, name] += 1
        return True

    def _left(self, kind: ActKind, segment: str) -> float:
        caps, counts = (CAPS_OF_SEGMENT if segment else CAPS), self._snapshot.disruption
        if kind not in caps:
            return 1.0
        done = (counts.of_segments.get(segment, {}) if segment else counts.acts).get(kind, 0)
        left: int = getattr(self._config, caps[kind]) - done
        if kind is ActKind.EVICT and not segment:
            left = min(left, self._burst)
        return left - self._taken[kind, segment]


def exceeds(acts: Iterable[Act], counts: DisruptionCounts, config: PolicyConfig) -> str:
    """The cap that these acts would exceed beside those that are counted (`counts`), in words; "": none. What rests on
    positive proof is charged with the others, and alone exceeds nothing."""
    mine: Counter[tuple[str, ActKind]] = Counter()
    bound: set[tuple[str, ActKind]] = set()
    for act in acts:
        for name in ("", *act.segments):
            mine[name, act.kind] += 1
            if not act.proved:
                bound.add((name, act.kind))
    for name, kind in sorted(bound):
        field = (CAPS_OF_SEGMENT if name else CAPS).get(kind)
        done = (counts.of_segments.get(name, {}) if name else counts.acts).get(kind, 0)
        if field is not None and done + mine[name, kind] > getattr(config, field):
            return f"{done} {_DONE[kind]}{f' of {name}' if name else ''} within an hour: `{field}`"
    return ""
