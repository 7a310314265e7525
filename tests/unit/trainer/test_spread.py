"""How much single micro-batches differ is measured on each forward pass and told with the window."""

import pytest
import torch

from trainer.control.timings import MIN_STEPS, Timings, spread
from trainer.stopwatch import stopwatch_for


@pytest.mark.parametrize(
    ("passes", "told"),
    [
        ([], 0.0),
        ([1.0] * (MIN_STEPS - 1), 0.0),
        ([1.0] * 20, 0.0),
        ([1.0] * 10 + [2.0] * 10, 1.0 / 1.5),
        # One hiccup in twenty is no spread.
        ([1.0] * 19 + [50.0], 0.0),
    ],
)
def test_the_spread_is_of_the_deciles_so_that_one_hiccup_says_nothing(passes: list[float], told: float) -> None:
    assert spread(passes) == pytest.approx(told)


def test_each_forward_pass_is_one_sample_and_a_window_begins_anew() -> None:
    clock = iter(float(second) for second in range(1_000))
    timings = Timings(
        interval_s=1.0, watch=stopwatch_for(torch.device("cpu"), pipeline_stages=2), clock=lambda: next(clock)
    )
    sizes = iter([1, 200_000] * 2 * MIN_STEPS)

    def work() -> int:
        return sum(range(next(sizes)))

    forward = timings.forward(work)
    report = None
    for step in range(MIN_STEPS):
        with timings.compute(4):
            for _ in range(4):
                forward()
        timings.step_over(step, step_time_s=1.0, exchange_s=0.1, stalled=False)
        report = timings.due(step, epoch=1) or report
    assert report is not None
    assert report.compute.count == MIN_STEPS
    assert report.spread > 1.0
