"""What the disruption budget has counted, and the breakers that stand open: facts of a snapshot (ADR 0048)."""

from enum import StrEnum

import msgspec


class ActKind(StrEnum):
    """An act of automation that the budget counts. A preemption is not among them: it has a cap of its own
    (`max_preemptions`), as it rests on what people submitted and on no evidence of a failure."""

    EVICT = "evict"
    RESTART = "restart"
    CORDON = "cordon"
    SAVE = "save"


class Act(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One. `segments`: the named failure domains that it touched, sorted. `proved`: it rests on positive proof, so it
    counts and nothing holds it."""

    kind: ActKind
    segments: tuple[str, ...] = ()
    proved: bool = False


class OpenedBreaker(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One that is open since `opened_s` (server Unix seconds), of the fleet (`segment` "") or of one failure domain.
    `code`: see `disruption.Hold`."""

    id: str
    code: str
    segment: str
    opened_s: float
    sentence: str


class DisruptionCounts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`acts` of the fleet within an hour, by kind, `of_segments` those of each failure domain; both since the breaker
    was last closed. `opened`: breakers ever opened, by segment. Only of the fleet's own pass: `still_devices` that are
    named by findings which opened since a minute before the fleet's breaker did, and are open now, on `still_nodes`."""

    acts: dict[str, int] = {}
    of_segments: dict[str, dict[str, int]] = {}
    breakers: tuple[OpenedBreaker, ...] = ()
    opened: dict[str, int] = {}
    still_devices: int = 0
    still_nodes: tuple[str, ...] = ()
