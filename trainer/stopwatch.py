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

    def passes(self) -> list[float]:
        """Seconds of each forward pass since the last call, as far as they are known."""

    def take(self) -> float | None:
        """Seconds of the runs since the last call, None where they are not known yet."""


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

    def _add(self, seconds: float) -> None:
        self._total_s = (self._total_s or 0.0) + seconds


class CudaEvents:
    """Pairs of timing events on the current stream. `whole`: around the schedule."""

    def __init__(self, *, whole: bool) -> None:
        self._whole = whole
        self._schedules: list[_Pair] = []
        self._forwards: list[_Pair] = []
        self._passes: list[float] = []

    def forward(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Each forward pass between two events."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            with _pair_into(self._forwards):
                return step(*args, **kwargs)

        return timed

    @contextmanager
    def schedule(self) -> Iterator[None]:
        """Both passes of all micro-batches, where nobody else is waited for inside."""
        if not self._whole:
            yield
            return
        with _pair_into(self._schedules):
            yield

    @contextmanager
    def pause(self) -> Iterator[None]:
        """The host's time is not the stream's."""
        yield

    def passes(self) -> list[float]:
        """Those of the runs that `take` has told."""
        taken, self._passes = self._passes, []
        return taken

    def take(self) -> float | None:
        """None while the newest pair is not over on the device."""
        pairs = self._schedules if self._whole else self._forwards
        if not pairs or not pairs[-1][1].query():
            return None
        forwards_s = [begin.elapsed_time(end) / 1000.0 for begin, end in self._forwards]
        total_s = sum(begin.elapsed_time(end) / 1000.0 for begin, end in pairs)
        self._passes.extend(forwards_s)
        self._schedules.clear()
        self._forwards.clear()
        return total_s


_Pair = tuple[torch.cuda.Event, torch.cuda.Event]


@contextmanager
def _pair_into(pairs: list[_Pair]) -> Iterator[None]:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    try:
        yield
    finally:
        end.record()
        pairs.append((begin, end))


def stopwatch_for(device: torch.device, *, pipeline_stages: int) -> Stopwatch:
    """The kind that fits the device."""
    return CudaEvents(whole=pipeline_stages == 1) if device.type == "cuda" else ProcessorTime()
