"""The stopwatch of a GPU, with a simulated stream: a slow input is no slow device, and both passes count."""

from collections.abc import Callable, Iterator

import pytest
from megatron.core.pipeline_parallel import schedules

from trainer.control.timings import MIN_STEPS, Timings
from trainer.stopwatch import CudaEvents


class Stream:
    """What is asked of it is done in order, beside the host; seconds of both clocks."""

    def __init__(self) -> None:
        self.host_s = self.free_s = 0.0

    def work(self, seconds: float) -> None:
        """The host asks and goes on."""
        self.free_s = max(self.free_s, self.host_s) + seconds

    def event(self) -> "Event":
        return Event(self)

    def drained(self) -> None:
        self.host_s = max(self.host_s, self.free_s)


class Event:
    def __init__(self, stream: Stream) -> None:
        self.stream, self.at_s = stream, 0.0

    def record(self) -> None:
        self.at_s = max(self.stream.free_s, self.stream.host_s)

    def query(self) -> bool:
        return self.stream.host_s >= self.at_s

    def elapsed_time(self, end_event: "Event") -> float:
        return (end_event.at_s - self.at_s) * 1000.0


def told(*, work_s: float, input_s: float, whole: bool = True, backward_s: float = 0.0) -> tuple[float, float, float]:
    """Medians a micro-batch of compute and data, and the spread, of a rank whose input takes so long."""
    stream = Stream()
    timings = Timings(interval_s=1.0, watch=CudaEvents(whole=whole, event=stream.event), clock=lambda: stream.host_s)

    def slow() -> Iterator[int]:
        while True:
            stream.host_s += input_s
            yield 1

    def forward_pass(batches: Iterator[int]) -> None:
        next(batches)
        stream.work(work_s)

    report = None
    for step in range(MIN_STEPS + 2):
        batches, forward = timings.data(slow()), timings.forward(forward_pass)
        with timings.compute(4):
            for _ in range(4):
                forward(batches)
                if not whole:
                    # A neighbour is waited for here.
                    stream.work(7.0)
                    schedules.backward_step(stream, backward_s)
        stream.drained()
        timings.step_over(step, step_time_s=1.0, exchange_s=0.1, stalled=False)
        report = timings.due(step, epoch=1) or report
    assert report is not None
    return report.compute.median_s, report.data.median_s, report.spread


@pytest.mark.parametrize("whole", [True, False], ids=["one stage", "several"])
def test_a_slow_input_is_told_as_input_and_not_as_a_slow_device(whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedules, "backward_step", lambda stream, seconds: stream.work(seconds))
    usual, _, _ = told(work_s=1.0, input_s=0.0, whole=whole)
    slow, waited_s, _ = told(work_s=1.0, input_s=20.0, whole=whole)
    assert usual == pytest.approx(1.0)
    assert slow == pytest.approx(1.0)
    assert waited_s > 10.0


def test_a_slow_device_is_told_as_one() -> None:
    compute_s, waited_s, _ = told(work_s=5.0, input_s=0.5)
    assert compute_s == pytest.approx(5.0)
    assert waited_s == pytest.approx(0.5 / 4), "only the first: the others come while the device works"


def test_with_several_stages_both_passes_count_and_the_wait_between_them_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain: Callable[..., None] = lambda stream, seconds: stream.work(seconds)  # noqa: E731
    monkeypatch.setattr(schedules, "backward_step", plain)
    compute_s, _, spread = told(work_s=1.0, input_s=0.0, whole=False, backward_s=2.0)
    assert compute_s == pytest.approx(3.0)
    assert spread == pytest.approx(0.0)
    assert schedules.backward_step is plain


def test_laps_that_the_device_has_not_done_are_told_a_step_later() -> None:
    stream = Stream()
    watch = CudaEvents(whole=True, event=stream.event)
    with watch.schedule():
        stream.work(3.0)
    assert watch.take() is None
    stream.drained()
    assert watch.take() == pytest.approx(3.0)
    assert watch.take() is None
