"""What `schedule` is given and what it answers. Devices are counted by node; nobody's ranks are listed."""

from collections.abc import Mapping

import msgspec

from controlplane.policy.queue.place import Turn


class Demand(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a start takes, whole: `of_each` devices on each of `nodes` nodes and `spares` devices of other whole nodes;
    or, where `nodes` is 0, at least `devices` anywhere. It takes `most` devices at the most besides spares, on at most
    `touches` nodes. `gpu_type`: words of a model, see `placement.is_type`; None: any."""

    devices: int
    most: int
    touches: int
    nodes: int = 0
    of_each: int = 0
    spares: int = 0
    gpu_type: str | None = None


class Pending(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A job that waits to be placed, since `submitted_s` (server seconds). `held`: what it waits for besides devices,
    "" for nothing."""

    id: str
    name: str
    priority: int
    submitted_s: float
    demand: Demand
    held: str = ""


class Holder(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A job that has devices: so many on each node. `ends_s`: server time at which it is expected to end; None: not
    known. `leaves`: it has ended, or is about to be placed again, and its last processes are on their way out."""

    id: str
    name: str
    priority: int
    devices: tuple[tuple[str, int], ...]
    ends_s: float | None = None
    leaves: bool = False


class Lender(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A node that takes work: by model how many of its devices are `usable`, and how many of these are `free`."""

    id: str
    usable: Mapping[str, int]
    free: Mapping[str, int]


class QueueFleet(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Nodes that take work, and nothing of those that drain, are cordoned or out; who holds devices anywhere."""

    nodes: tuple[Lender, ...]
    holders: tuple[Holder, ...] = ()


class QueueConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """So many jobs at most are weighed against each other in one plan: those behind them are for the next one."""

    at_once: int = 64


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The plan for one pending job, see `QueuePlace`."""

    job: Pending
    place: int
    turn: Turn
    may_start: bool
    behind: str = ""
    expected_s: float | None = None


class QueuePlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Every pending job, first in the queue first. `head`: the first job that lacks room, "" for none."""

    entries: tuple[Entry, ...] = ()
    head: str = ""
