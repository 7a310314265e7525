"""Published traces of slow jobs get the published verdicts, in windows of every length."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.cli.commands.imports import read
from controlplane.policy.straggler_trace import MAX_WINDOW, TraceRow, judge
from controlplane.policy.stragglers import MIN_SAMPLES
from controlplane.protocol.spec import Stragglers

EXCERPTS = Path(__file__).parent / "traces" / "bytedance"
WISH = Stragglers(individual=False)
WINDOWS = range(MIN_SAMPLES, MAX_WINDOW + 1)


@pytest.fixture(scope="module", params=["AR", "ST"])
def trace(request: pytest.FixtureRequest) -> tuple[str, list[TraceRow]]:
    return request.param, list(read(EXCERPTS / f"{request.param}.csv"))


@pytest.mark.parametrize("window", WINDOWS)
def test_the_verdict_is_the_published_one(trace: tuple[str, list[TraceRow]], window: int) -> None:
    name, rows = trace
    found = judge(rows, window=window, settings=WISH)
    if name == "AR":
        assert (found.verdict, [(rank.replica, rank.stage) for rank in found.slow]) == ("worker", [(0, 0)])
        assert found.slow[0].cause == "compute"
        assert 1 / found.slow[0].relative == pytest.approx(2.27, abs=0.15)
    else:
        assert (found.verdict, found.slow) == ("stage", ())
        assert "stage 3" in found.advice
    assert found.windows == found.steps // window


def made(*, slow_step: int = -1, steps: int = 12) -> Iterator[TraceRow]:
    """Four even replicas of one stage; replica 2 is slow in one step, or in none."""
    for step in range(steps):
        for replica in range(4):
            slow = replica == 2 and slow_step <= step < slow_step + 3 and slow_step >= 0
            for operation in ("forward-compute", "backward-compute", "forward-recv"):
                yield TraceRow(replica, 0, replica, step, operation, 3.0 if slow or "recv" in operation else 1.0)


def test_an_even_job_has_nobody_to_blame_and_one_slow_window_proves_nothing() -> None:
    for rows in (made(), made(slow_step=3)):
        found = judge(rows, window=3, settings=WISH)
        assert (found.verdict, found.slow, found.sentence) == ("none", (), "No rank and no stage is slow.")


@pytest.mark.parametrize("window", [2, 17])
def test_a_window_of_another_length_is_refused(window: int) -> None:
    with pytest.raises(ValueError, match="3 to 16 steps"):
        judge(made(), window=window, settings=WISH)


def test_a_trace_too_short_for_two_windows_is_refused() -> None:
    with pytest.raises(ValueError, match="no two windows of 8"):
        judge(made(), window=8, settings=WISH)
