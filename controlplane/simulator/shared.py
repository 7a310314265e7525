"""What the jobs of one simulated fleet share: findings about nodes, drains, numbers of rows.

A world of one job has plain tables; in one of several each job sees a part of the fleet's (`Part`).
"""

from collections import Counter
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import TypeVar

from controlplane.policy.queue.rows import Share
from controlplane.protocol.states import LIVE_REQUEST, RequestState

V = TypeVar("V")


class Part(MutableMapping[str, V]):
    """The rows of a table of the fleet that are about one job (`mine`), and those that are about none; the fleet's own
    (None) is all of them. What a job writes is its own, unless `give` says whose it is."""

    def __init__(self, mine: str | None = None) -> None:
        self._mine = mine
        self._whole: dict[str, V] = {}
        self._owners: dict[str, str] = {}

    def seen_by(self, mine: str) -> "Part[V]":
        """The same table, as this job sees it."""
        part = Part[V](mine)
        part._whole, part._owners = self._whole, self._owners
        return part

    def of_none(self) -> list[V]:
        """Rows about no job."""
        return [row for key, row in self._whole.items() if not self._owners[key]]

    def give(self, key: str, value: V, owner: str) -> None:
        """A new row about the job `owner`, or about none ("")."""
        self._owners[key] = owner
        self._whole[key] = value

    def __getitem__(self, key: str) -> V:
        if not self._sees(key):
            raise KeyError(key)
        return self._whole[key]

    def __setitem__(self, key: str, value: V) -> None:
        self._owners.setdefault(key, self._mine or "")
        self._whole[key] = value

    def __delitem__(self, key: str) -> None:
        del self._whole[key]
        del self._owners[key]

    def __iter__(self) -> Iterator[str]:
        return (key for key in list(self._whole) if self._sees(key))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _sees(self, key: str) -> bool:
        return key in self._whole and (self._mine is None or self._owners[key] in (self._mine, ""))


def put(table: MutableMapping[str, V], key: str, value: V, owner: str) -> None:
    """A new row, about the job `owner` or about none ("")."""
    if isinstance(table, Part):
        table.give(key, value, owner)
    else:
        table[key] = value


@dataclass(frozen=True, slots=True)
class Projects:
    """Quotas, and of which project each job is, by id: of a world whose fleet has some."""

    shares: tuple[Share, ...] = ()
    of: Mapping[str, str] = field(default_factory=dict)


NO_PROJECTS = Projects()


@dataclass(slots=True)
class YieldRow:
    """A job is asked to yield, at `asked_s`: to the job `urgent`, or ("") by a person. `gives`: index and incarnation
    of the replicas that it is to give; (): all it has. It is over since `ended_s`."""

    urgent: str
    asked_s: float
    gives: tuple[tuple[int, int], ...] = ()
    state: RequestState = RequestState.OPEN
    ended_s: float | None = None

    def move(self, to: RequestState, now_s: float) -> None:
        """What a decision makes of it."""
        self.state, self.ended_s = to, self.ended_s if to in LIVE_REQUEST else now_s


@dataclass(slots=True)
class Numbers:
    """How many rows of each kind the server has made: their ids are told apart by these over all jobs."""

    made: Counter[str] = field(default_factory=Counter)

    def next(self, kind: str) -> int:
        """From 1."""
        self.made[kind] += 1
        return self.made[kind]
