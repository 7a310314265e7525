"""What a job of one project is told of jobs of others: not the names of those whose project is private.

A plan of the queue, a decision and a request of a job name other jobs in sentences that are kept, and that everybody
reads who sees this job. So they are named when that is written, as its project may know them. Reads alone.
"""

from collections.abc import Collection, Iterable

import msgspec

from controlplane.access.project_models import Project, Visibility
from controlplane.access.rights import Rights
from controlplane.fleet.reservations import shown
from controlplane.jobs.models import Job
from controlplane.jobs.seen import projects_of
from controlplane.policy.queue.rows import Pending, QueueFleet, Share

PRIVATE = "a private job"
PRIVATE_PROJECT = "a private project"


def as_seen_from(project: str, queue: Iterable[Pending], fleet: QueueFleet) -> tuple[list[Pending], QueueFleet]:
    """The same queue and fleet; jobs of other private projects are all called `PRIVATE`, these `PRIVATE_PROJECT`."""
    private = _private_beside(project)
    return _without(private, list(queue), fleet) if private else (list(queue), fleet)


def as_seen_by(rights: Rights, queue: Iterable[Pending], fleet: QueueFleet) -> tuple[list[Pending], QueueFleet]:
    """The same for a reader: what lies in a project that he does not see is called so."""
    if rights.everything or rights.whole:
        return list(queue), fleet
    names = Project.objects.exclude(pk__in=list(rights.projects)).values_list("name", flat=True)
    return _without(frozenset(names), list(queue), fleet)


def _without(private: Collection[str], waiting: list[Pending], fleet: QueueFleet) -> tuple[list[Pending], QueueFleet]:
    projects = projects_of({job.id for job in [*waiting, *fleet.holders]})
    hidden = {job_id for job_id, of in projects.items() if of in private}
    replace = msgspec.structs.replace
    holders = tuple(replace(job, name=PRIVATE) if job.id in hidden else job for job in fleet.holders)
    nodes = tuple(
        replace(node, reservations=shown(node.reservations, private)) if node.reservations else node
        for node in fleet.nodes
    )
    shares = tuple(_shown(share, private) for share in fleet.projects)
    return (
        [replace(job, name=PRIVATE) if job.id in hidden else job for job in waiting],
        replace(fleet, nodes=nodes, holders=holders, projects=shares),
    )


def _shown(share: Share, private: Collection[str]) -> Share:
    return msgspec.structs.replace(share, shown=PRIVATE_PROJECT) if share.name in private else share


def name_for(reader: Job | None, other: Job) -> str:
    """What those who see `reader` (None: the fleet's) are told that `other` is called."""
    if reader is not None and reader.project == other.project:
        return other.name
    return PRIVATE if other.project in _private_beside("") else other.name


def _private_beside(project: str) -> Collection[str]:
    rows = Project.objects.filter(visibility=Visibility.PRIVATE).exclude(name=project)
    return frozenset(rows.values_list("name", flat=True))
