"""How long this rank itself worked, without the time it waited for others.

On the CPU that is the training thread's processor time: a rank that waits in a receive of
its pipeline burns none. On a GPU it is the time between two CUDA events: around the whole
forward-backward schedule where the replica has one pipeline stage, else around each
forward pass (the schedule of several stages waits for its neighbours inside; the backward
pass of a stage is in proportion to its forward pass). Events are read a step later, so
that nothing waits for the device.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch


class Stopwatch(Protocol):
    """Laps are in seconds; `take` gives those that are finished and forgets them."""

    def forward(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """The forward-step function to give to the schedule."""

    def schedule(self) -> Any:
        """Context of one run of the schedule."""

    def pause(self) -> Any:
        """Context inside `schedule` whose time belongs to somebody else."""

    def take(self) -> float | None:
        """Seconds of the runs since the last call, None where they are not known yet."""


class ProcessorTime:
    """The training thread's own processor time."""

    def __init__(self) -> None:
        self._total_s: float | None = None

    def forward(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Nothing to add."""
        return step

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

    def take(self) -> float | None:
        """Known at once."""
        taken, self._total_s = self._total_s, None
        return taken

    def _add(self, seconds: float) -> None:
        self._total_s = (self._total_s or 0.0) + seconds


class CudaEvents:
    """Pairs of timing events on the current stream. `whole`: around the schedule."""

    def __init__(self, *, whole: bool) -> None:
        self._whole = whole
        self._pairs: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def forward(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Each forward pass between two events, unless the whole schedule is."""
        if self._whole:
            return step

        def timed(*args: Any, **kwargs: Any) -> Any:
            with self._pair():
                return step(*args, **kwargs)

        return timed

    @contextmanager
    def schedule(self) -> Iterator[None]:
        """Both passes of all micro-batches, where nobody else is waited for inside."""
        if not self._whole:
            yield
            return
        with self._pair():
            yield

    @contextmanager
    def pause(self) -> Iterator[None]:
        """The host's time is not the stream's."""
        yield

    def take(self) -> float | None:
        """None while the newest pair is not over on the device."""
        if not self._pairs or not self._pairs[-1][1].query():
            return None
        total_ms = sum(begin.elapsed_time(end) for begin, end in self._pairs)
        self._pairs.clear()
        return total_ms / 1000.0

    @contextmanager
    def _pair(self) -> Iterator[None]:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        try:
            yield
        finally:
            end.record()
            self._pairs.append((begin, end))


def stopwatch_for(device: torch.device, *, pipeline_stages: int) -> Stopwatch:
    """The kind that fits the device."""
    return CudaEvents(whole=pipeline_stages == 1) if device.type == "cuda" else ProcessorTime()
