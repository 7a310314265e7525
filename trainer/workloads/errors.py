"""Errors of the workloads.

InvalidArguments      a call that cannot be dispatched; the text says why and how to mend it
UnknownDispatchType   no dispatch type of that name
NoRanksLeft           the dead have no replacements and no replica is whole
CallFailed            ranks that are alive refused or failed a call
RanksLost             rank processes died, or did not answer in time and were ended
WorldLost             every process lives, but they gave up on one another
"""

from collections.abc import Mapping


class InvalidArguments(ValueError):
    """Nothing was sent. The caller's fault."""


class UnknownDispatchType(LookupError):
    """The text names the types there are."""


class NoRanksLeft(RuntimeError):
    """Only a new start from the newest checkpoint helps."""


class CallFailed(RuntimeError):
    """Every process lives. A retry does not help; the text has each rank's own words."""


class RanksLost(RuntimeError):
    """`lost`: process number -> how it ended. Recovery helps."""

    def __init__(self, lost: Mapping[int, str]) -> None:
        self.lost = dict(sorted(lost.items()))
        super().__init__("; ".join(f"process {number}: {how}" for number, how in self.lost.items()))


class WorldLost(RanksLost):
    """Nobody is dead: some rank was slower than the others' patience. Each has left the world; a new one helps."""

    def __init__(self, words: Mapping[int, str]) -> None:
        super().__init__({})
        self.args = ("; ".join(f"process {number}: {error}" for number, error in sorted(words.items())),)
