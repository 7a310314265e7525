"""What is kept for a job that waits, and who may start before it all the same: whoever can never delay it.

`Claim`: of devices, for one that is planned to start or is the head of the queue. `Kept`: of its project's quota, for
the first job of a project that waits for that. A job whose time limit has ended it by the moment at which the one that
waits is expected to start takes nothing from it. Any other is counted as never ending: it may take what the one that
waits leaves at that moment. Called by `policy.queue.schedule`. Pure.
"""

from controlplane.policy.queue.room import Spare
from controlplane.policy.queue.rows import Pending


class Claim:
    """What a job ahead keeps for itself: nothing may start that leaves it less than it needs. `by_s`: it needs nothing
    of it before (server seconds); None: from now on."""

    def __init__(self, job: Pending, spare: Spare, by_s: float | None = None) -> None:
        # Where it is expected to fit only if those ahead of it go where they are forecast, nobody is let past.
        self.job, self.spare, self.by_s = job, spare, by_s if spare.allows(0, 0) else None

    def binds(self, over_s: float | None) -> bool:
        """A job that has ended by then takes something of it."""
        return self.by_s is None or over_s is None or over_s > self.by_s


class Kept:
    """The first job of a project that waits for its quota. `by_s`: when that is expected to suffice, and where it is
    known also devices; None: nobody knows. `left`: so much of the quota it leaves from then on, and `spare` of the
    devices; None: of these nobody knows enough."""

    def __init__(self, job: Pending, by_s: float | None, left: int = 0, spare: Spare | None = None) -> None:
        self.job, self.by_s, self.left, self.spare = job, by_s, left, spare

    @property
    def expected_s(self) -> float | None:
        """When it is expected to start; None: that is not known."""
        return self.by_s if self.spare is not None else None

    def lets(self, over_s: float | None) -> bool:
        """A job that has ended by then delays it in nothing."""
        return over_s is not None and self.by_s is not None and over_s <= self.by_s

    def leaves(self, cost: tuple[int, int] | None) -> int:
        """So many devices of the quota are left to a job that has no end and takes so many (nodes, devices) at most of
        what this one could use (None: nothing)."""
        if self.spare is None or not (cost is None or self.spare.allows(*cost)):
            return 0
        return self.left

    def give(self, cost: tuple[int, int] | None, counted: int) -> None:
        """Somebody starts who has no end, and takes so much of what this one could use, and of its project's quota."""
        self.left -= counted
        if self.spare is not None and cost is not None:
            self.spare.give(*cost)
