"""What the fleet's devices are in use for, each device once: by model and segment, for answers to people.

The rule of a device, first match wins: a job has it; it is of no use, or its node is; its node is being emptied; its
node is cordoned; its node is kept for a job as its spare; its node is reserved for a project; it is free. What is free,
or is reserved for the project of a job, is what `schedule` counts as free for that.
"""

import enum
from collections.abc import Iterable

import msgspec


class Condition(enum.StrEnum):
    """Whether a node takes work. A member's value is stable: it is the API's word."""

    OPEN = "open"
    SPARE = "spare"
    """It takes only the work of the job whose spare it is."""
    RESERVED = "reserved"
    """It takes only work of the project that it is reserved for."""
    DRAINING = "draining"
    CORDONED = "cordoned"
    DOWN = "down"
    """Disconnected, silent, quarantined, revoked, or it fails a check."""


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """The devices of one `model` on one node: `devices` in all, of which jobs have `in_use`, and `unfit` more are
    unhealthy, absent or accused by an open finding."""

    model: str
    segment: str
    condition: Condition
    devices: int
    in_use: int
    unfit: int = 0


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """Of one model, in one segment or in all: `devices` = in_use + free + reserved + spare + draining +
    cordoned + down.
    `leaving`: so many of those in use are on nodes that take no new work."""

    nodes: int = 0
    devices: int = 0
    in_use: int = 0
    leaving: int = 0
    free: int = 0
    reserved: int = 0
    spare: int = 0
    draining: int = 0
    cordoned: int = 0
    down: int = 0

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(**{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__})


_LEFT = {
    Condition.OPEN: "free",
    Condition.SPARE: "spare",
    Condition.RESERVED: "reserved",
    Condition.DRAINING: "draining",
    Condition.CORDONED: "cordoned",
    Condition.DOWN: "down",
}
CLOSED = frozenset({Condition.DRAINING, Condition.CORDONED, Condition.DOWN})


def tally(share: Share) -> Tally:
    """Of one node."""
    left = share.devices - share.in_use - share.unfit
    assert left >= 0, "a device is in use or unfit, not both"
    counted = {"down": share.unfit}
    counted[_LEFT[share.condition]] = counted.get(_LEFT[share.condition], 0) + left
    leaving = share.in_use if share.condition in CLOSED else 0
    return Tally(nodes=1, devices=share.devices, in_use=share.in_use, leaving=leaving, **counted)


def by_segment(shares: Iterable[Share]) -> dict[str, dict[str, Tally]]:
    """By model, and there by segment ("": nodes that name none), both sorted."""
    found: dict[str, dict[str, Tally]] = {}
    for share in shares:
        segments = found.setdefault(share.model, {})
        segments[share.segment] = segments.get(share.segment, Tally()) + tally(share)
    return {model: dict(sorted(found[model].items())) for model in sorted(found)}


def total(tallies: Iterable[Tally]) -> Tally:
    """Of all of them."""
    found = Tally()
    for each in tallies:
        found = found + each
    return found
