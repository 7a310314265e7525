"""What is recorded of an object that the API changes: what its ETag stands for, and what If-Match compares (`etags`).

A record holds what people and decisions set and what decides whether an act still is the right one; no readings, ages
or progress, which move all the time. Each costs a query or two, whatever belongs to the object. The functions named
`held_...` lock the row first, in the order of `runtime.locks`, so that nothing comes between comparing and changing.
"""

from controlplane.access import projects
from controlplane.access.project_models import Project
from controlplane.api.etags import Record
from controlplane.fleet.models import KnownEnd, Node, Reservation
from controlplane.jobs.models import Job, Rank
from controlplane.policies import selectors as policies
from controlplane.policies.whose import Whose
from controlplane.recovery.models import Decision, Incident, Request
from controlplane.runtime.clock import iso
from controlplane.runtime.errors import NotFound
from controlplane.runtime.locks import lock_fleet, lock_row, lock_rows


def newest_attempt(job: Job) -> int:
    """Its number; 0 before the first one."""
    return job.attempts.order_by("-number").values_list("number", flat=True).first() or 0


def job(row: Job) -> Record:
    """`epoch` moves with each change of its members."""
    return Record(
        f"The job {row.name}",
        {
            "state": row.state,
            "state_since": iso(row.state_since),
            "attempt": newest_attempt(row),
            "epoch": row.epoch,
            "cancel_requested": row.cancel_requested,
            "parked_by": row.parked_by,
            "priority": row.priority,
        },
    )


def node(row: Node) -> Record:
    """Whether it is connected is none of it."""
    devices = row.devices.order_by("index").values_list("index", "uuid", "present", "healthy")
    return Record(
        f"The node {row.name}",
        {
            "state": row.state,
            "state_since": iso(row.state_since),
            "state_reason": row.state_reason,
            "held": row.held,
            "doubt": row.doubt,
            "revoked_at": iso(row.revoked_at),
            "removed_at": iso(row.removed_at),
            "key_since": iso(row.key_since),
            "devices": [list(device) for device in devices],
        },
    )


def held_node(node_id: str) -> Record:
    """Jobs with ranks there come first, as everywhere. Raises NotFound."""
    ranks = Rank.objects.filter(node_id=node_id, released_at=None)
    lock_rows(Job, set(ranks.values_list("replica__attempt__job_id", flat=True)))
    row = lock_row(Node, node_id)
    if row is None:
        raise NotFound(f"no node {node_id!r}")
    return node(row)


def project(row: Project) -> Record:
    """Its settings, and who is in it."""
    members = projects.members(row).values_list("account__username", "role")
    return Record(
        f"The project {row.name}", projects.settings_of(row) | {"members": [list(member) for member in members]}
    )


def held_project(name: str) -> Record:
    """Raises NotFound."""
    row = lock_row(Project, name)
    if row is None:
        raise NotFound(f"no project {name!r}")
    return project(row)


def policy(whose: Whose) -> Record:
    """The document, and what is in force by it and by those above it. Storing compares the number once more."""
    newest = policies.newest(whose.scope)
    number = newest.number if newest is not None else 0
    return Record(whose.words[:1].upper() + whose.words[1:], {"number": number, "version": policies.of(whose).version})


def incident(row: Incident) -> Record:
    """How far it is, and who has it."""
    return Record(
        f"The incident {row.pk}",
        {
            "state": row.state,
            "outcome": row.outcome,
            "acknowledged_at": iso(row.acknowledged_at),
            "needs_hardware": row.needs_hardware,
        },
    )


def held_incident(incident_id: str) -> Record:
    """Raises NotFound."""
    row = lock_row(Incident, incident_id)
    if row is None:
        raise NotFound(f"no incident {incident_id!r}")
    return incident(row)


def decision(row: Decision) -> Record:
    """What people said of it, and whether it was carried out."""
    words = [[word["who"], word["verdict"], word["at"]] for word in row.verdicts]
    return Record(f"The decision {row.pk}", {"mode": row.mode, "applied": row.applied, "verdicts": words})


def held_decision(row: Decision) -> Record:
    """Its job first, or the fleet, as where a word about it is stored."""
    if row.job_id is None:
        lock_fleet()
    else:
        lock_row(Job, row.job_id)
    row.refresh_from_db(fields=["mode", "applied", "verdicts"])
    return decision(row)


def request(row: Request) -> Record:
    """How far it is, and who takes it back."""
    return Record(f"The request {row.pk}", {"state": row.state, "answer": row.answer, "withdrawn_by": row.withdrawn_by})


def held_request(row: Request) -> Record:
    """Its job first, as everywhere. Raises NotFound."""
    if row.job_id is not None:
        lock_row(Job, row.job_id)
    held = lock_row(Request, row.pk)
    if held is None:
        raise NotFound(f"no request {row.pk!r}")
    return request(held)


def window(row: KnownEnd) -> Record:
    """It does not change but by its end, for which cancelling asks again."""
    times = {"leaves_at": iso(row.leaves_at), "back_at": iso(row.back_at), "over_at": iso(row.over_at)}
    return Record(f"The window {row.pk}", times)


def reservation(row: Reservation) -> Record:
    """As a window."""
    times = {"starts_at": iso(row.starts_at), "ends_at": iso(row.ends_at), "over_at": iso(row.over_at)}
    return Record(f"The reservation {row.pk}", times)
