"""Changes to what the disruption budget has counted, and to its breakers (ADR 0048)."""

from dataclasses import dataclass

from controlplane.policy.disruption_counts import Act


@dataclass(frozen=True, slots=True)
class CountActs:
    """The decision that is carried out has done these; they count for an hour."""

    acts: tuple[Act, ...]


@dataclass(frozen=True, slots=True)
class OpenBreaker:
    """Of the fleet, or of one failure domain: nothing where one is open. See `plan.OpenBreaker`."""

    code: str
    segment: str
    sentence: str


@dataclass(frozen=True, slots=True)
class CloseBreaker:
    """What opened it is over: nothing where a person has closed it already."""

    breaker: str
    reason: str


BreakerChange = CountActs | OpenBreaker | CloseBreaker
