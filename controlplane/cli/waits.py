"""Why a job waits, as lines for people."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from controlplane.cli.output import ABSENT

if TYPE_CHECKING:
    from controlplane.protocol.rest import JobQueue, QueuedJob, QueuedPreemption, QueuedSpared


def lines(queue: "JobQueue") -> Iterator[str]:
    """One for each thing that is known; the sentence alone where the job is not in the queue."""
    yield f"    {queue.sentence}"
    if queue.place is None:
        return
    yield from (f"    {name:<15}{value}" for name, value in _parts(queue))


def _parts(queue: "JobQueue") -> Iterator[tuple[str, str]]:
    nodes = "" if queue.nodes_free is None else f"; nodes with as many as it takes of each: {queue.nodes_free}"
    yield "priority", str(queue.priority)
    yield "needs", queue.needs
    yield "free now", f"devices: {queue.devices_free}{nodes}"
    more = queue.ahead_count - len(queue.ahead)
    yield "ahead", (_named(queue.ahead) + (f" and {more} more" if more else "")) or "nobody"
    if queue.makes_room:
        ends = (f"{_one(job)} is expected to end {job.expected_end_at or ABSENT}" for job in queue.makes_room)
        yield "makes room", ", ".join(ends)
    yield "expected", queue.expected_at or "not known"
    if queue.preempts:
        yield "preempts", ", ".join(map(_preemption, queue.preempts))
    elif queue.outranks:
        yield "outranks", _named(queue.outranks)
        yield "no preemption", queue.no_preemption
        yield from (("left alone", _spared(job)) for job in queue.spared)


def _preemption(job: "QueuedPreemption") -> str:
    price = "" if job.lost_gpu_s is None else f", {job.lost_gpu_s:.0f} GPU-seconds are expected to be lost"
    return f"{job.name} (priority {job.priority}; {'saves now' if job.asked else 'is asked next'}{price})"


def _spared(job: "QueuedSpared") -> str:
    until = f", until {job.until_at}" if job.until_at else ""
    return f"{job.name} (priority {job.priority}) {job.why}{until}"


def _named(jobs: "Iterable[QueuedJob]") -> str:
    return ", ".join(map(_one, jobs))


def _one(job: "QueuedJob") -> str:
    return f"{job.name} (priority {job.priority})"
