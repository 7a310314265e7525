"""What a loader hands over: rows as they were read. Times are server Unix seconds."""

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypedDict

import msgspec

from controlplane.policy.known_end import KnownEnd
from controlplane.policy.reserved import Reservation
from controlplane.policy.snapshot import Placement
from controlplane.protocol.states import NodeState, ReplicaState


class Reading(TypedDict):
    """The newest of one rank: a `Phase` of a `Section`, which began at `phase_since_s`; it has said nothing to its
    agent, or that nothing to us, for `silent_s`. `at`: when its agent's word of it came,
    as ISO-8601 or as Unix seconds."""

    phase: str
    section: str
    silent_s: float
    phase_since_s: float
    at: str | float


@dataclass(frozen=True, slots=True, kw_only=True)
class Incarnation:
    """One incarnation of a slot. `role`: in which its last catch-up ended ("": none that still counts)."""

    index: int
    incarnation: int
    state: ReplicaState
    state_since_s: float
    contributing: bool
    contributed: bool
    role: str
    committed_step: int
    times_out: int
    out_s: float | None
    asked_out: str
    asked_s: float | None
    refused: bool
    relieved: str


class Ranks(NamedTuple):
    """Of a life's ranks: how many there are, are up, are gone, and hold no device any more."""

    world_size: int = 0
    joined: int = 0
    exited: int = 0
    released: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One slot of an attempt. `lives` newest first; `ranks`, `placements` and `readings` (by rank; None: nothing
    was heard of it; empty: nothing is known of the whole job) of the newest; which of its ranks are `released`, where
    others are not."""

    lives: Sequence[Incarnation]
    ranks: Ranks
    placements: tuple[Placement, ...]
    readings: Sequence[Reading | None]
    released: tuple[int, ...] = ()


Device = tuple[str, Hashable, int, str, bool, bool, float | None, int | None, str, object]
"""(node id, its own id, index, uuid, healthy, present, risk, bytes of memory, model, whatever else the loader
has read). A plain tuple, as a job has a hundred thousand of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InUse:
    """Ids of devices: on which a process is that is not proved gone, which wait as spares, and since when
    others wait for a reset."""

    held: Collection[Hashable]
    reserved: Collection[Hashable]
    resets: Mapping[Hashable, float]


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the fleet. `unheard_s`: age of its last frame (None: not known); `closed_s`: how long its connection
    is closed (None: it is open, or not known). `misses_events`: it was quarantined because events of it are missing.
    `end`: the first known one that is not over; `reservations` for projects that are not over."""

    id: str
    name: str
    state: NodeState
    connected: bool
    unheard_s: float | None
    closed_s: float | None
    misses_events: bool
    segment: str
    end: KnownEnd | None = None
    reservations: tuple[Reservation, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosts:
    """Of a job's rank hosts, by node id: where ranks of it are, or were within `nodes.HOST_KEPT_S`; where a start of
    its ranks succeeded; when one was last warmed as a spare, and last asked for."""

    used: Collection[str] = ()
    started: Collection[str] = ()
    warmed: Mapping[str, float] = field(default_factory=dict)
    asked: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known of nodes beside their rows, by id: of the job's rank hosts, whose spare a node is, and which of
    its checks fail."""

    hosts: Hosts
    reserved: Mapping[str, str]
    unhealthy: Mapping[str, str]
