"""What every kind of finding has: where it is about, and what follows from that alone.

A kind is a frozen dataclass. Its fields are what a detector knows; key, evidence, value and
sentence are derived from them, so that two detectors of one kind cannot tell it in two ways. Pure.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, ClassVar


class Severity(StrEnum):
    """`critical`: something is over or must not be used; `warning`: it costs or may come; `notice`: for people."""

    CRITICAL = "critical"
    WARNING = "warning"
    NOTICE = "notice"


class Trait(StrEnum):
    """What is done with every kind that has it; lists of kinds are derived from these alone."""

    HARDWARE = "judged by device_fault, whether or not a job is on the device"
    ENDS = "may prove that what runs on its device is over"
    SUSPECT = "its devices count as suspect for the disruption budget"
    DEVICE = "reported beside a slow rank of the same device"
    ATTEMPT = "settled when its attempt ends"
    INCARNATION = "stale once its replica has a newer incarnation"
    STAYS = "not settled by an eviction: it ends by itself"
    LASTS = "lasts for hours, so no pass is due for it alone"
    PEOPLE = "for people: no rule sees it, settled when it was not repeated for an hour"


@dataclass(frozen=True, kw_only=True)
class Finding(ABC):
    """Of one kind. `KEY`: fields that tell one finding from the next, after `PREFIX` or the kind;
    `UNKEPT`: fields that are no evidence, because key, value or sentence alone need them. `FAILURE`: what a
    decision about it is called, where that is another word; `TITLE`: such a decision's title, from the
    failure's evidence. `READER`: the module that reads it, where no rule does. `BEGAN`: what says how many
    seconds before the finding its fault began, evidence or "threshold". `more`: evidence besides."""

    KIND: ClassVar[str]
    MEANS: ClassVar[str]
    SEVERITY: ClassVar[Severity]
    KEY: ClassVar[tuple[str, ...]]
    TRAITS: ClassVar[frozenset[Trait]] = frozenset()
    PREFIX: ClassVar[str] = ""
    UNKEPT: ClassVar[tuple[str, ...]] = ()
    FAILURE: ClassVar[str] = ""
    TITLE: ClassVar[str] = ""
    READER: ClassVar[str] = ""
    BEGAN: ClassVar[str] = ""

    job_id: str | None = None
    node_id: str | None = None
    replica: int | None = None
    incarnation: int | None = None
    rank: int | None = None
    device_index: int | None = None
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Equal for the same finding told twice."""
        return self.key_of(*(getattr(self, name) for name in self.KEY))

    @classmethod
    def key_of(cls, *parts: object) -> str:
        """The key with these values of `KEY`, to find what was raised before."""
        if len(parts) != len(cls.KEY):
            raise ValueError(f"a key of {cls.KIND} has {', '.join(cls.KEY)}")
        return ":".join((cls.PREFIX or cls.KIND, *map(str, parts)))

    @property
    def evidence(self) -> dict[str, Any]:
        """Every field of the kind's own, by its name, and `more`."""
        own = (each.name for each in fields(self) if each.name not in PLACE and each.name not in self.UNKEPT)
        return {**{name: getattr(self, name) for name in own}, **self.more}

    @property
    def value(self) -> float:
        """In the kind's own unit; 0 where it has none."""
        return 0.0

    @property
    def threshold(self) -> float:
        """The limit that `value` has passed; 0 where it needs none."""
        return 0.0

    @property
    @abstractmethod
    def sentence(self) -> str:
        """For people."""

    @property
    def place(self) -> dict[str, Any]:
        """The fields that every kind has, but `more`."""
        return {name: getattr(self, name) for name in PLACE if name != "more"}


PLACE = tuple(each.name for each in fields(Finding))
