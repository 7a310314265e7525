"""What a rule asks of the fleet beyond the nodes that a snapshot holds, and what it is told (ADR 0036).

A snapshot holds the nodes that matter to its job. Of all others a rule needs numbers and, where it
places something, the nodes among which the choice falls. It says so by `require`, which raises `Asks` where
the snapshot does not hold the answer yet: whoever decides has it answered and decides again
(`policy.elsewhere`).
"""

from collections.abc import Iterable, Mapping
from typing import Protocol

import msgspec


class Need(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Places for `replicas` of `ranks` each, one after the other, and nodes of `spare_devices` in all beside
    them; neither: numbers alone. `near`: each set of segments in which one of them is preferred. `of_each`: on
    nodes alone that have so many devices free, of which it takes no more (0: on any). `again`: what the quota of the
    job's project has for its next attempt."""

    replicas: int = 0
    ranks: int = 0
    spare_devices: int = 0
    near: tuple[tuple[str, ...], ...] = ()
    of_each: int = 0
    again: bool = False

    def covers(self, other: "Need") -> bool:
        """Who was told this was told the other too."""
        places = other.replicas == 0 or (
            (self.ranks, self.of_each) == (other.ranks, other.of_each)
            and self.replicas >= other.replicas
            and {*other.near} <= {*self.near}
        )
        return places and self.spare_devices >= other.spare_devices and self.again >= other.again


class Again(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the quota of its project has for a job that is placed again at once, when nothing is counted that the job
    has now: `at_most` so many devices, its spares among them (None: as many as it asks for). `why` that is too few for
    it, as a part of a sentence; "" where it is not."""

    at_most: int | None = None
    why: str = ""


class Elsewhere(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The fleet beyond `JobSnapshot.nodes`. `needs`: what was asked; (): nothing was. `free_devices`: what the nodes
    that are not listed would lend the job, by segment ("": nodes of none), the smallest of them with
    `memory_bytes` (None: not known). `segments` of suspect nodes that are not listed; `divided`: the
    nodes of the fleet are not all in one segment. `again`: see `Again` (None: its project has no quota, or nobody
    asked)."""

    needs: tuple[Need, ...] = ()
    free_devices: dict[str, int] = {}
    memory_bytes: int | None = None
    segments: dict[str, str] = {}
    divided: bool = False
    again: Again | None = None


class Asks(Exception):
    """The snapshot does not hold what a rule needs; `needs` are all that have been asked so far.
    `fresh_s`: a node that is silent for longer is preferred to none that speaks."""

    def __init__(self, needs: tuple[Need, ...], fresh_s: float) -> None:
        super().__init__(needs)
        self.needs, self.fresh_s = needs, fresh_s


class _Snapshot(Protocol):
    @property
    def elsewhere(self) -> Elsewhere | None: ...

    @property
    def segments(self) -> Mapping[str, str]: ...


def require(snapshot: _Snapshot, need: Need, fresh_s: float) -> None:
    """Raises Asks unless the snapshot holds the whole fleet, or was told as much."""
    told = snapshot.elsewhere
    if told is not None and not any(known.covers(need) for known in told.needs):
        raise Asks((*told.needs, need), fresh_s)


def near(snapshot: _Snapshot, homes: Iterable[Iterable[str]]) -> tuple[tuple[str, ...], ...]:
    """For each of these sets of node ids the named segments in which they are, each set once."""
    segments = snapshot.segments
    found = {tuple(sorted({segments.get(node_id, "") for node_id in nodes} - {""})) for nodes in homes}
    return tuple(sorted(found - {()}))
