"""When each step was first committed: a world's own fact, for those who measure it.

Used by `effective` and `rollout`. It hears of commits from the trainer and decides nothing.
"""

from controlplane.simulator.kernel import Kernel


class Meter:
    """`moments`: (kernel's seconds, committed steps) of each step's first commit; `newest` of them."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.newest = 0
        self.moments: list[tuple[float, int]] = []

    def commit(self, committed: int) -> None:
        """A replica has committed; what an attempt redoes counts once."""
        if committed > self.newest:
            self.newest = committed
            self.moments.append((self._kernel.now_s, committed))

    def step_s(self) -> float:
        """Mean seconds of a step so far."""
        (first_s, first), (last_s, last) = self.moments[0], self.moments[-1]
        return (last_s - first_s) / (last - first)

    def reached_s(self, step: int) -> float | None:
        """When so many steps were committed; None: they are not yet."""
        return next((at_s for at_s, committed in self.moments if committed >= step), None)
