"""The plan in words, for people and for a job's own snapshot."""

from controlplane.policy.queue.place import QueuePlace, Turn
from controlplane.policy.queue.rows import Demand, Entry, Pending, QueuePlan
from controlplane.policy.titles import number_of

_REASONS = {
    Turn.NEXT: "there is room for it, and jobs ahead of it are placed first: {ahead}",
    Turn.BEHIND: "what is free is kept for {ahead}, which is ahead of it and lacks devices",
    Turn.NO_ROOM: "too few devices are free, and {ahead} is ahead of it",
    Turn.TOO_LARGE: "the nodes that take work could not hold it if every job ended, and {ahead} is ahead of it",
}


def place_of(plan: QueuePlan, job_id: str) -> QueuePlace | None:
    """Where the job stands; None: it is not in the queue."""
    entry = next((each for each in plan.entries if each.job.id == job_id), None)
    if entry is None:
        return None
    return QueuePlace(
        place=entry.place,
        waiting=len(plan.entries),
        turn=entry.turn,
        may_start=entry.may_start,
        sentence="" if entry.may_start else f"Waits in the queue: {reason(entry, plan)}.",
        behind=entry.behind,
        expected_s=entry.expected_s,
        victims=plan.victims if plan.head == job_id else (),
        at_most=entry.at_most,
        alone=entry.alone,
    )


def reason(entry: Entry, plan: QueuePlan) -> str:
    """Why the job does not start now. Its place is not in it: that changes with every job that leaves the queue."""
    if entry.turn is Turn.HELD:
        return entry.job.held
    if entry.turn is Turn.QUOTA:
        return entry.why
    ahead = next((each.job for each in plan.entries if each.job.id == entry.behind), None)
    return _REASONS[entry.turn].format(ahead=named(ahead) if ahead is not None else "another job")


def named(job: Pending) -> str:
    """A job as people know it."""
    return f"{job.name} (priority {job.priority})"


def needs(demand: Demand) -> str:
    """What a start takes."""
    kind = f" of type {demand.gpu_type}" if demand.gpu_type else ""
    if not demand.nodes:
        return f"at least {number_of(demand.devices, 'free device')}{kind}"
    spares = f", and {number_of(demand.spares, 'spare device')} on other nodes" if demand.spares else ""
    return f"{number_of(demand.nodes, 'node')} with {number_of(demand.of_each, 'free device')}{kind} each{spares}"
