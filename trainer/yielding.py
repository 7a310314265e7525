"""Work beside training steps back where cores are short.

A transfer must not slow the donor's own step down, so its threads run at a lower priority
than the training thread beside them. Linux counts a priority per thread.
"""

import os

TRANSFER_NICENESS = 5


def yield_core() -> None:
    """Lower the calling thread's priority for the rest of its life."""
    os.nice(TRANSFER_NICENESS)
