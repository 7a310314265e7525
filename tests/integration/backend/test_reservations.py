"""Nodes that are reserved for a project, on real rows: who is placed there, what is said of it, and who may see it."""

from datetime import timedelta

import msgspec
import pytest

from controlplane.access.models import AuditEntry, Scope
from controlplane.access.project_models import Project, Visibility
from controlplane.access.rights import EVERYTHING, Rights
from controlplane.fleet import reservations as rows
from controlplane.fleet.models import Node, Reservation
from controlplane.jobs.models import Job, Rank
from controlplane.jobs.services import submit_job
from controlplane.protocol import spec as specs
from controlplane.protocol.states import JobState
from controlplane.recovery import load_queue, reservations
from controlplane.recovery.capacity_view import capacity
from controlplane.recovery.load import load_snapshot
from controlplane.recovery.models import Decision
from controlplane.recovery.queue_view import job_queue
from controlplane.recovery.reconcile import reconcile_job
from controlplane.runtime.clock import now
from controlplane.runtime.errors import Conflict, Invalid, NotFound
from controlplane.runtime.models import Event
from controlplane.scheduling.models import SpareReservation
from tests.integration.backend.builders import Fleet, make_fleet
from tests.integration.backend.conftest import job_spec
from tests.integration.backend.test_preemption import train

pytestmark = pytest.mark.django_db(transaction=True)
ADA = "user:ada"
STRANGER = Rights(fleet=Scope.OPERATE, projects={"default": Scope.OPERATE})


def project(name: str, visibility: str = Visibility.OPEN) -> Project:
    return Project.objects.create(name=name, visibility=visibility, created_by="ada")


def reserve(fleet: Fleet, name: str, *nodes: str, starts_s: float = -60.0, lasts_s: float = 3600.0) -> Reservation:
    begins = now() + timedelta(seconds=starts_s)
    ids, times = [fleet.nodes[node].id for node in nodes], (begins, begins + timedelta(seconds=lasts_s))
    return reservations.reserve(name, ids, times, reason="a deadline", actor=ADA)


def make(label: str, of: str = "default", nodes: int = 1, **fields: object) -> Job:
    """Submitted to this project, of whole nodes of two devices."""
    asked = {"resources": specs.Resources(nodes=nodes, gpus_per_node=2, min_replicas=1), **fields}
    document = msgspec.structs.replace(job_spec(**asked), metadata=specs.Metadata(name=label, project=of))
    return submit_job(document, owner="ada", actor="ada")


def looked_at(job: Job) -> str:
    reconcile_job(job.id)
    return Job.objects.get(pk=job.pk).state


def homes(job: Job) -> set[str]:
    ranks = Rank.objects.filter(replica__attempt__job=job, released_at=None)
    return set(ranks.values_list("node__name", flat=True))


def said(job: Job) -> str:
    return Decision.objects.filter(job=job).order_by("-at").values_list("sentence", flat=True)[0]


def test_while_it_runs_jobs_of_its_project_alone_start_there() -> None:
    fleet = make_fleet(2)
    project("vision")
    row = reserve(fleet, "vision", "n1")
    other = make("other", nodes=2)
    assert looked_at(other) == JobState.PENDING
    assert "Reserved: 2 free devices for project vision until " in said(other)
    mine = make("mine", "vision")
    assert looked_at(mine) == JobState.STARTING
    assert homes(mine) == {"n1"}, "of its own nodes first, so that what others can use is left to them"
    Reservation.objects.filter(pk=row.pk).update(ends_at=now())
    smaller = make("smaller")
    assert looked_at(smaller) == JobState.PENDING, "the larger one is ahead of it"


def test_it_starts_on_its_own_nodes_whoever_is_ahead_and_takes_none_of_what_that_one_waits_for() -> None:
    fleet = make_fleet(3)
    project("vision")
    reserve(fleet, "vision", "n1")
    assert looked_at(holder := make("holder")) == JobState.STARTING
    assert homes(holder) <= {"n2", "n3"}
    head = make("head", nodes=2, scheduling=specs.Scheduling(priority=900))
    assert looked_at(head) == JobState.PENDING
    plain = make("plain")
    assert looked_at(plain) == JobState.PENDING, "what is free is kept for the head"
    mine = make("mine", "vision")
    place = load_queue.place_of(mine)
    assert place is not None and place.alone and place.may_start
    assert looked_at(mine) == JobState.STARTING
    assert homes(mine) == {"n1"}
    assert looked_at(make("second", "vision")) == JobState.PENDING, "of its own there is nothing left"


@pytest.mark.parametrize(("limit_s", "state"), [(0.0, JobState.PENDING), (300.0, JobState.STARTING)])
def test_before_it_begins_only_who_is_over_by_then_starts_there(limit_s: float, state: JobState) -> None:
    fleet = make_fleet(2)
    project("vision")
    reserve(fleet, "vision", "n1", starts_s=600.0)
    assert looked_at(make("other", nodes=2, scheduling=specs.Scheduling(time_limit_s=limit_s))) == state
    if state == JobState.PENDING:
        assert looked_at(make("mine", "vision", nodes=2)) == JobState.STARTING, "that one is too large for the others"


def test_what_runs_there_when_it_begins_is_left_alone_and_nothing_of_it_starts_there_again() -> None:
    fleet = make_fleet(2)
    project("vision")
    job = make("runs", nodes=2)
    looked_at(job)
    train(fleet, job, 0)
    reserve(fleet, "vision", "n1")
    assert looked_at(job) == JobState.RUNNING
    assert homes(job) == {"n1", "n2"} and not Decision.objects.filter(job=job, choice="preempt").exists()
    facts = {node.name: [each.project for each in node.reservations] for node in load_snapshot(job).nodes}
    assert facts == {"n1": ["vision"], "n2": []}


def test_a_spare_on_a_node_that_is_reserved_for_others_is_given_up() -> None:
    fleet = make_fleet(2)
    project("vision")
    job = make("spared", resources=specs.Resources(nodes=1, gpus_per_node=2, spares=specs.Spares(gpus=2)))
    looked_at(job)
    train(fleet, job, 0)
    (name,) = {row.device.node.name for row in SpareReservation.objects.select_related("device__node")}
    reserve(fleet, "vision", name)
    looked_at(job)
    assert not SpareReservation.objects.exists()
    mine = make("mine", "vision")
    assert looked_at(mine) == JobState.STARTING
    assert homes(mine) == {name}


def test_it_is_set_audited_told_and_cancelled_once() -> None:
    fleet = make_fleet(2)
    project("vision")
    row = reserve(fleet, "vision", "n1", "n2")
    assert sorted(rows.by_node()) == ["node_1", "node_2"]
    assert Event.objects.filter(kind="node.reserved", sentence__contains="project vision").count() == 2
    with pytest.raises(Conflict, match="already"):
        reserve(fleet, "vision", "n2", starts_s=600.0)
    reservations.cancel(row.pk, reason="not needed", actor=ADA)
    with pytest.raises(Conflict, match="not needed"):
        reservations.cancel(row.pk, reason="again", actor=ADA)
    assert not rows.by_node() and looked_at(make("other", nodes=2)) == JobState.STARTING
    actions = AuditEntry.objects.filter(action__startswith="reservation").order_by("pk")
    assert list(actions.values_list("action", flat=True)) == ["reservation.set", "reservation.cancel"]


def test_times_projects_and_nodes_that_are_none_are_refused() -> None:
    fleet = make_fleet(1)
    project("vision")
    for starts_s, lasts_s in ((60.0, -1.0), (-3600.0, 1800.0), (60.0, 40 * 86400.0), (400 * 86400.0, 60.0)):
        with pytest.raises(Invalid):
            reserve(fleet, "vision", "n1", starts_s=starts_s, lasts_s=lasts_s)
    with pytest.raises(Invalid):
        reserve(fleet, "vision")
    with pytest.raises(NotFound):
        reserve(fleet, "none", "n1")
    fleet.nodes["gone"] = Node(id="node_404")
    with pytest.raises(NotFound):
        reserve(fleet, "vision", "n1", "gone")
    assert not Reservation.objects.exists(), "all or none"


def test_capacity_tells_reserved_devices_apart_and_counts_each_once() -> None:
    fleet = make_fleet(3)
    project("secret", Visibility.PRIVATE)
    row = reserve(fleet, "secret", "n1", "n2")
    looked_at(make("mine", "secret"))
    found = capacity(EVERYTHING)
    counts = found["counts"]
    assert (counts["devices"], counts["in_use"], counts["reserved"], counts["free"]) == (6, 2, 2, 2)
    (kept,) = found["reserved"]
    assert (kept["id"], kept["project"], kept["devices"]) == (row.pk, "secret", 2)
    assert capacity(STRANGER)["reserved"][0]["project"] == "another project"
    Reservation.objects.update(starts_at=now() + timedelta(hours=1), ends_at=now() + timedelta(hours=2))
    assert capacity(EVERYTHING)["counts"]["reserved"] == 0, "it has not begun"


def test_a_private_project_is_named_to_nobody_who_does_not_see_it() -> None:
    fleet = make_fleet(1)
    project("secret", Visibility.PRIVATE)
    row = reserve(fleet, "secret", "n1")
    job = make("other")
    looked_at(job)
    make("second")
    answer = job_queue(job)
    assert "2 free devices for another project until " in answer["sentence"]
    assert [each["project"] for each in answer["reserved"]] == ["another project"]
    assert "for another project until" in said(job)
    hidden = rows.view(row, STRANGER)
    assert (hidden["project"], hidden["reason"], hidden["who"], hidden["capabilities"]) == (
        "another project",
        "",
        "",
        {},
    )
    assert not Event.objects.filter(sentence__contains="secret").exists()
