"""What this rank's own work takes, by section, summarised and told at a bounded rate.

The engine brackets its work, the loop says when a step is over and sends what is due. The
numbers are the straggler scores' input (`controlplane.policy.stragglers`): `compute` and
`data` are this rank's own, of one micro-batch, so that ranks with unequal shares compare;
`exchange` contains the wait for the slowest and is told, never scored.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from statistics import median
from typing import Any, Protocol, TypeVar

from controlplane.protocol.rank import SectionTime, TimingReport

T = TypeVar("T")
REPORTS_PER_INTERVAL = 2
"""A rank that turns slow in the middle of a window fills the whole next one, so with two
windows an interval it is found within one interval."""
MIN_STEPS = 3
"""A window lasts at least so many: with fewer a median says nothing."""
MAX_SAMPLES = 10_000


class Watch(Protocol):
    """The part of `trainer.stopwatch.Stopwatch` that is used here."""

    def forward(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the forward-step function."""

    def schedule(self) -> AbstractContextManager[None]:
        """Bracket the schedule."""

    def pause(self) -> AbstractContextManager[None]:
        """Bracket what is not part of it."""

    def passes(self) -> list[float]:
        """Seconds of each forward pass since the last call, as far as they are known."""

    def take(self) -> float | None:
        """Seconds since the last call; None: not known yet."""

    def waited(self, host_s: float) -> float:
        """How much of the wait for input the work stood still for."""


class Timings:
    """One rank's; used by its training thread only. `interval_s` 0: nothing is kept."""

    def __init__(
        self, *, interval_s: float = 0.0, watch: Watch | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._window_s = interval_s / REPORTS_PER_INTERVAL
        self._watch = watch if interval_s > 0 else None
        self._clock = clock
        self._data_s = 0.0
        self._micro_batches = 0
        self._began_s = clock()
        self._first_step: int | None = None
        self._samples: dict[str, list[float]] = {name: [] for name in _SECTIONS}
        self._passes: list[float] = []

    def forward(self, step: Callable[..., T]) -> Callable[..., T]:
        """The forward-step function to hand to Megatron's schedule."""
        return self._watch.forward(step) if self._watch is not None else step

    @contextmanager
    def compute(self, micro_batches: int) -> Iterator[None]:
        """Around one run of the forward-backward schedule."""
        if self._watch is None:
            yield
            return
        with self._watch.schedule():
            yield
        self._micro_batches += micro_batches

    def data(self, batches: Iterator[T]) -> Iterator[T]:
        """The same batches; the time each takes to come counts as data, not as compute."""
        if self._watch is None:
            return batches
        return self._timed(batches, self._watch)

    @contextmanager
    def optimizer(self) -> Iterator[None]:
        """Around the optimizer's step: processor time, as clipping waits for the replica."""
        began_s = time.thread_time()
        yield
        self._add("optimizer", time.thread_time() - began_s)

    def step_over(self, step: int, *, step_time_s: float, exchange_s: float, stalled: bool) -> None:
        """`step` is committed. A step with a view change in it is no sample of its length."""
        if self._watch is None:
            return
        if self._micro_batches:
            worked_s = self._watch.take()
            if worked_s is not None:
                self._add("compute", worked_s / self._micro_batches)
                self._add("data", self._watch.waited(self._data_s) / self._micro_batches)
                self._micro_batches, self._data_s = 0, 0.0
            self._passes = (self._passes + self._watch.passes())[-MAX_SAMPLES:]
        if not stalled:
            self._add("step", step_time_s)
            self._add("exchange", exchange_s)
        if self._first_step is None:
            self._first_step = step

    def due(self, step: int, *, epoch: int) -> TimingReport | None:
        """The report of the window that is over, once; None before, and for a rank that did
        no work of its own in it."""
        now_s = self._clock()
        over = now_s - self._began_s >= self._window_s and len(self._samples["compute"]) >= MIN_STEPS
        if self._watch is None or not over:
            return None
        first = self._first_step if self._first_step is not None else step
        sections = {name: summary(self._samples[name]) for name in _SECTIONS}
        report = TimingReport(first, step, epoch, **sections, spread=spread(self._passes))
        self._passes.clear()
        self._began_s, self._first_step = now_s, None
        for samples in self._samples.values():
            samples.clear()
        return report

    def _timed(self, batches: Iterator[T], watch: Watch) -> Iterator[T]:
        while True:
            began_s = self._clock()
            with watch.pause():
                batch = next(batches, _NOTHING)
            self._data_s += self._clock() - began_s
            if batch is _NOTHING:
                return
            yield batch

    def _add(self, section: str, seconds: float) -> None:
        samples = self._samples[section]
        if len(samples) < MAX_SAMPLES:
            samples.append(max(0.0, seconds))


def summary(samples: Sequence[float]) -> SectionTime:
    """Of any number of samples, none included."""
    if not samples:
        return SectionTime(0, 0.0, 0.0, 0.0)
    return SectionTime(len(samples), sum(samples), median(samples), max(samples))


def spread(passes: Sequence[float]) -> float:
    """Ninth decile less first, over the median: how much single micro-batches differ. 0 of fewer
    than MIN_STEPS, which say nothing."""
    middle = median(passes) if len(passes) >= MIN_STEPS else 0.0
    if middle <= 0.0:
        return 0.0
    ordered = sorted(passes)
    tenth = (len(ordered) - 1) // 10
    return (ordered[-1 - tenth] - ordered[tenth]) / middle


_SECTIONS = ("compute", "data", "exchange", "optimizer", "step")
_NOTHING: Any = object()
