"""A decision's work grows with the job and no faster (N20): counted in calls, at three sizes.

The worlds are those of `python -m benchmarks decide`.
"""

import gc
import sys
from typing import Any

import pytest

from benchmarks.decide_worlds import MOMENTS, Size
from controlplane.policy.config import PolicyConfig
from controlplane.policy.decide import decide

SLACK = 1.6
"""Sorting, and what is decided more when more is lost."""
SMALL, MIDDLE, LARGE = Size(6, 8), Size(100, 8), Size(1_000, 8)
DEEP, DEEPER = Size(12, 64), Size(12, 640)


def calls(moment: str, size: Size) -> int:
    """Calls of functions in Python and in C that one decision makes; C's own loops count by what
    they call."""
    snapshot, counted = MOMENTS[moment](size), 0

    def count(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal counted
        counted += event in ("call", "c_call")

    config = PolicyConfig()
    sys.setprofile(count)
    try:
        decide(snapshot, config)
    finally:
        sys.setprofile(None)
    return counted


@pytest.mark.parametrize("moment", MOMENTS)
def test_ten_times_the_replicas_are_ten_times_the_work(moment: str) -> None:
    middle = calls(moment, MIDDLE)
    assert middle < SLACK * calls(moment, SMALL) * MIDDLE.replicas / SMALL.replicas
    assert calls(moment, LARGE) < SLACK * middle * LARGE.replicas / MIDDLE.replicas


@pytest.mark.parametrize("moment", MOMENTS)
def test_ten_times_the_ranks_of_a_replica_are_ten_times_the_work_at_most(moment: str) -> None:
    assert calls(moment, DEEPER) < SLACK * calls(moment, DEEP) * DEEPER.gpus / DEEP.gpus


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_snapshot_that_was_decided_needs_no_garbage_collector(moment: str) -> None:
    snapshot = MOMENTS[moment](SMALL)
    decide(snapshot, PolicyConfig())
    gc.collect()
    gc.disable()
    try:
        again = MOMENTS[moment](SMALL)
        decide(again, PolicyConfig())
        del again
        left = gc.collect()
    finally:
        gc.enable()
    assert left < SMALL.replicas, "a cycle keeps it: its replicas alone are more"


@pytest.mark.parametrize(
    ("moment", "choice"),
    [
        ("one rank exited", "evict_and_replace"),
        ("a tenth of the replicas lost a rank", "evict_and_replace"),
        ("a node is silent beyond its lease", "evict_and_replace"),
        ("all have flushed", "install"),
    ],
)
def test_the_worlds_are_those_moments(moment: str, choice: str) -> None:
    for size in (MIDDLE, DEEP):
        assert [d.choice for d in decide(MOMENTS[moment](size), PolicyConfig()).decisions][:1] == [choice]
