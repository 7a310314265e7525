"""How long this rank itself worked, without the time it waited for others.

On the CPU that is the training thread's processor time: a rank that waits in a receive of
its pipeline burns none. On a GPU it is the time between two CUDA events: around the whole
forward-backward schedule where the replica has one pipeline stage, else around each
forward and each backward pass (the schedule of several stages waits for its neighbours
between them), less the time for which the stream stood still because the input was late: so a
slow input is no slow device. Events are read a step later, so that nothing waits for the device.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import torch
from megatron.core.pipeline_parallel import schedules


class Stopwatch(Protocol):
    """Laps are in seconds; `take` gives those that are finished and forgets them."""

    def forward(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """The forward-step function to give to the schedule."""

    def schedule(self) -> Any:
        """Context of one run of the schedule."""

    def pause(self) -> Any:
        """Context inside `schedule` whose time belongs to somebody else."""

    def passes(self) -> list[float]:
        """Seconds of each forward pass since the last call, as far as they are known."""

    def take(self) -> float | None:
        """Seconds of the runs since the last call, None where they are not known yet."""

    def waited(self, host_s: float) -> float:
        """Of the `host_s` seconds of pauses of the runs that `take` told, those that the work stood still for."""


class ProcessorTime:
    """The training thread's own processor time."""

    def __init__(self) -> None:
        self._total_s: float | None = None
        self._passes: list[float] = []

    def forward(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Each is timed, to know how much they differ."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            began_s = time.thread_time()
            try:
                return step(*args, **kwargs)
            finally:
                self._passes.append(time.thread_time() - began_s)

        return timed

    @contextmanager
    def schedule(self) -> Iterator[None]:
        """Both passes of all micro-batches."""
        began_s = time.thread_time()
        try:
            yield
        finally:
            self._add(time.thread_time() - began_s)

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Taken off again."""
        began_s = time.thread_time()
        try:
            yield
        finally:
            self._add(began_s - time.thread_time())

    def passes(self) -> list[float]:
        """Known at once."""
        taken, self._passes = self._passes, []
        return taken

    def take(self) -> float | None:
        """Known at once."""
        taken, self._total_s = self._total_s, None
        return taken

    def waited(self, host_s: float) -> float:
        """The thread that works is the one that waits."""
        return host_s

    def _add(self, seconds: float) -> None:
        self._total_s = (self._total_s or 0.0) + seconds


class Event(Protocol):
    """The part of `torch.cuda.Event` that is used here."""

    def record(self) -> None:
        """The stream passes it once what was asked of it before is done."""

    def query(self) -> bool:
        """It was passed."""

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds from it to the other one, both passed."""


_Pair = tuple[Event, Event]


class CudaEvents:
    """Pairs of timing events on the current stream. `whole`: around the schedule, else around each
    forward and each backward pass, as the schedule of several stages waits for its neighbours between
    them. While the host waits for its input the stream stands still as soon as it has done what was asked
    of it: that time is taken off, and told as the wait for input that the work felt."""

    def __init__(self, *, whole: bool, event: Callable[[], Event]) -> None:
        self._whole, self._event = whole, event
        self._schedules: list[_Pair] = []
        self._forwards: list[tuple[_Pair, list[_Pair]]] = []
        self._backwards: list[_Pair] = []
        self._pauses: list[_Pair] = []
        self._passes: list[float] = []
        self._waited_s = 0.0

    def forward(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Each forward pass between two events, less the pauses in it."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            pairs: list[_Pair] = []
            before = len(self._pauses)
            with self._pair_into(pairs):
                found = step(*args, **kwargs)
            self._forwards.append((pairs[0], self._pauses[before:]))
            return found

        return timed

    @contextmanager
    def schedule(self) -> Iterator[None]:
        """Both passes of all micro-batches."""
        if self._whole:
            with self._pair_into(self._schedules):
                yield
            return
        backward = schedules.backward_step

        def timed(*args: Any, **kwargs: Any) -> Any:
            with self._pair_into(self._backwards):
                return backward(*args, **kwargs)

        schedules.backward_step = timed
        try:
            yield
        finally:
            schedules.backward_step = backward

    @contextmanager
    def pause(self) -> Iterator[None]:
        """From when the stream has nothing to do to when the host goes on."""
        with self._pair_into(self._pauses):
            yield

    def passes(self) -> list[float]:
        """Those of the runs that `take` has told."""
        taken, self._passes = self._passes, []
        return taken

    def take(self) -> float | None:
        """None while the newest pair is not over on the device."""
        pairs = self._schedules if self._whole else [*(pair for pair, _ in self._forwards), *self._backwards]
        if not pairs or not all(end.query() for _, end in pairs):
            return None
        self._waited_s += sum(map(_seconds, self._pauses))
        self._passes.extend(max(0.0, _seconds(pair) - sum(map(_seconds, pauses))) for pair, pauses in self._forwards)
        total_s = max(0.0, sum(map(_seconds, pairs)) - sum(map(_seconds, self._pauses)))
        for done in (self._schedules, self._forwards, self._backwards, self._pauses):
            done.clear()
        return total_s

    def waited(self, host_s: float) -> float:
        """How long the device stood still, which may be less than the host waited."""
        taken, self._waited_s = min(self._waited_s, host_s), 0.0
        return taken

    @contextmanager
    def _pair_into(self, pairs: list[_Pair]) -> Iterator[None]:
        begin, end = self._event(), self._event()
        begin.record()
        try:
            yield
        finally:
            end.record()
            pairs.append((begin, end))


def _seconds(pair: _Pair) -> float:
    return pair[0].elapsed_time(pair[1]) / 1000.0


def stopwatch_for(device: torch.device, *, pipeline_stages: int) -> Stopwatch:
    """The kind that fits the device."""
    if device.type != "cuda":
        return ProcessorTime()
    return CudaEvents(whole=pipeline_stages == 1, event=partial(torch.cuda.Event, enable_timing=True))
