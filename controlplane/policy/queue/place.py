"""Where a pending job stands in the queue: what its own snapshot holds of the queue's plan."""

import enum

import msgspec

FRONT = 4
"""So many at the front of the queue are woken when devices are freed or a job leaves the queue; those behind them when
the queue's plan lets them start."""


class Turn(enum.StrEnum):
    """Where a pending job stands with the devices that it needs. A member's value is stable: it is the API's word."""

    FIRST = "first"
    """There is room, and nothing ahead of it could use the same devices."""
    BESIDE = "beside"
    """There is room, and what is ahead of it keeps enough devices whatever it takes."""
    BACKFILL = "backfill"
    """There is room, and the job ahead of it that has none, or none in its project's quota, is expected to start no
    later for it."""
    NEXT = "next"
    """There is room, and jobs ahead of it are placed first."""
    BEHIND = "behind"
    """There is room, and a job ahead of it that has none could use the same devices."""
    NO_ROOM = "no_room"
    """Too few devices are free."""
    TOO_LARGE = "too_large"
    """The nodes that take work could not hold it if every job ended: it keeps nothing from those behind it."""
    QUOTA = "quota"
    """Its project may use no more devices now: it keeps none from other projects, but while others of its own yield to
    it."""
    HELD = "held"
    """It waits for something that is no device: it keeps nothing from those behind it."""


HAS_ROOM = frozenset({Turn.FIRST, Turn.BESIDE, Turn.BACKFILL})


class Victim(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A running job that is to yield its `devices` in this attempt. `lost_gpu_s`: what that is expected to cost, in
    GPU-seconds; `at_risk_s` of training are not saved, `save_s`: what a save takes (None: not measured). `asked`: how
    often it was asked before. `gives`: index and incarnation of the replicas that leave while its others train on, of
    `trains` now; (): the whole job yields. `borrows`: its project, where that has more than its quota and whoever is
    within its own takes devices back; "": it is of lower priority."""

    id: str
    name: str
    priority: int
    attempt: int
    asked: int
    devices: int
    at_risk_s: float
    save_s: float | None
    lost_gpu_s: float
    gives: tuple[tuple[int, int], ...] = ()
    trains: int = 0
    borrows: str = ""


class QueuePlace(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`place` from 1 of `waiting` pending jobs. `may_start`: if it can be placed, it is; else it waits for the job
    `behind`, as `sentence` says in words ("" where it may start). `expected_s`: server time at which it is expected
    to start; None: not known. `victims`: who is to yield to it, of the head alone. `at_most`: it starts with so many
    devices at most, as its project's quota has no more for it; None: with as many as it asks for. `alone`: it starts on
    nodes that are reserved for its project, and nowhere else."""

    place: int
    waiting: int
    turn: Turn
    may_start: bool = True
    sentence: str = ""
    behind: str = ""
    expected_s: float | None = None
    victims: tuple[Victim, ...] = ()
    at_most: int | None = None
    alone: bool = False

    @property
    def seeks(self) -> bool:
        """It looks for devices by its own timer."""
        return self.place == 1 or bool(self.victims) or (self.may_start and self.turn in HAS_ROOM)
