"""What the stream brought, and what is kept of each node and rank. No arrays, no clock."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from controlplane.protocol.frames import AgentFrame, RankStatus
from controlplane.protocol.launch import RankRef
from controlplane.protocol.samples import DeviceSample
from controlplane.sentinel.columns import Floats, Slots

NOWHERE: Slots = np.empty(0, dtype=np.intp)


@dataclass(slots=True, kw_only=True)
class Heard:
    """A frame as the stream brought it. `at_s`: when the web process received it. Once the live state has taken
    it: the slots of its devices, and their readings as numbers (`columns.table`)."""

    node_id: str
    session_id: str
    at_s: float
    frame: AgentFrame
    slots: Slots = field(default_factory=lambda: NOWHERE)
    table: Floats | None = None


@dataclass(slots=True, kw_only=True)
class LiveNode:
    """The newest of one node. `samples` and `slots` by device index; `layout`: the indexes of its last frame and their
    slots; `refs`: the ranks that it named and that are placed on it; `said`, `ranks`: those of its last frame.
    `strange_since_s`: since when its frames name ranks that are not placed on it. `shown`: its devices as JSON, empty
    when there are newer readings."""

    row: int
    session_id: str = ""
    seq: int = 0
    agent: dict[str, Any] = field(default_factory=dict)
    samples: dict[int, DeviceSample] = field(default_factory=dict)
    slots: dict[int, int] = field(default_factory=dict)
    layout: tuple[tuple[int, ...], Slots] = ((), NOWHERE)
    refs: set[RankRef] = field(default_factory=set)
    said: tuple[RankRef, ...] = ()
    ranks: tuple["LiveRank", ...] = ()
    strange_since_s: float | None = None
    shown: bytes = b""


@dataclass(slots=True, kw_only=True)
class LiveRank:
    """The newest of one rank, and when it came. `field`: its name in the picture of its job."""

    node_id: str
    status: RankStatus
    at_s: float
    field: str = ""


def waves(heard: Iterable[Heard]) -> Iterator[list[Heard]]:
    """Lists in which every node occurs at most once, each node's frames in order."""
    rounds: list[list[Heard]] = []
    count: dict[str, int] = {}
    for item in heard:
        number = count.get(item.node_id, 0)
        count[item.node_id] = number + 1
        if number == len(rounds):
            rounds.append([])
        rounds[number].append(item)
    yield from rounds
