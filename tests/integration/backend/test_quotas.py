"""Two projects on one fleet, on real rows: one borrows what the other lends, and gives it back when that needs it."""

from datetime import timedelta

import msgspec
import pytest

from controlplane.access.project_models import Project, Visibility
from controlplane.jobs.models import Attempt, Job
from controlplane.jobs.services import submit_job
from controlplane.protocol import spec as specs
from controlplane.recovery import load_queue, queue_view
from controlplane.recovery.models import Decision, Request
from controlplane.recovery.project_use import use_of_projects
from controlplane.recovery.reconcile import reconcile_job
from controlplane.runtime.clock import now
from tests.integration.backend.builders import Fleet, make_fleet
from tests.integration.backend.conftest import job_spec
from tests.integration.backend.test_make_room import asked, state
from tests.integration.backend.test_preemption import job_of, leave, save, train

pytestmark = pytest.mark.django_db(transaction=True)


def project(name: str, **settings: object) -> Project:
    """One that everybody reads, unless it says otherwise."""
    base: dict[str, object] = {"visibility": Visibility.VISIBLE}
    return Project.objects.create(name=name, **base | settings)


def of(name: str, label: str, *, priority: int = 500, nodes: int = 1) -> Job:
    """A job of this project, of whole nodes of two devices."""
    spec = job_spec(
        resources=specs.Resources(nodes=nodes, gpus_per_node=2),
        parallelism=specs.Parallelism(tp=1, pp=2),
        scheduling=specs.Scheduling(priority=priority),
    )
    named = msgspec.structs.replace(spec, metadata=specs.Metadata(name=label, project=name))
    return submit_job(named, owner="ada", actor="ada")


def runs(fleet: Fleet, job: Job) -> Job:
    """It has trained for an hour."""
    reconcile_job(job.id)
    train(fleet, job, 0)
    Attempt.objects.filter(job=job).update(started_at=now() - timedelta(hours=1))
    return job_of(job)


def test_a_project_borrows_what_another_lends_and_gives_it_back_whatever_its_priority() -> None:
    fleet = make_fleet(2)
    project("red", quota_gpus=2)
    project("blue", quota_gpus=2)
    runs(fleet, of("red", "own"))
    lent = runs(fleet, of("red", "lent", priority=900))
    save(fleet, lent, 1)
    used = {share.name: share.used for share in load_queue.load_fleet().projects}
    assert used == {"red": 4, "blue": 0}
    mine = of("blue", "mine", priority=100)
    reconcile_job(mine.id)
    assert asked() in ([("lent", "open")], [("own", "open")]), "one of them, as no more is owed"
    said = Decision.objects.get(job=mine, rule="make_room").sentence
    assert "red, which uses more than its quota" in said
    victim = Request.objects.get(kind="preempt").job
    assert victim is not None
    save(fleet, victim, 1)
    reconcile_job(victim.id)
    leave(fleet, victim)
    for job in (victim, mine):
        reconcile_job(job.id)
    assert (state(victim), state(mine)) == ("preempted", "starting")
    reconcile_job(victim.id)
    sentence = queue_view.job_queue(job_of(victim))["sentence"]
    assert "project red has 2 devices of its own" in sentence and "others lend it 0 more" in sentence
    assert queue_view.job_queue(job_of(victim))["turn"] == "quota"


def test_without_lending_a_job_over_its_quota_waits_and_says_why_though_devices_are_free() -> None:
    fleet = make_fleet(2)
    project("red", quota_gpus=2)
    project("blue", quota_gpus=2, lend_limit_gpus=0)
    runs(fleet, of("red", "own"))
    more = of("red", "more", priority=900)
    reconcile_job(more.id)
    assert state(more) == "pending"
    waits = Decision.objects.filter(job=more, choice="wait").last()
    assert waits is not None and "project red has 2 devices of its own, 2 are in use" in waits.sentence
    mine = of("blue", "mine")
    reconcile_job(mine.id)
    assert state(mine) == "starting", "it keeps nothing from other projects"


def test_a_private_project_that_borrows_is_not_named() -> None:
    fleet = make_fleet(2)
    project("red", quota_gpus=2)
    project("secret", quota_gpus=0, visibility=Visibility.PRIVATE)
    runs(fleet, of("red", "own"))
    Project.objects.filter(name="red").update(quota_gpus=4)
    runs(fleet, of("secret", "hidden"))
    Project.objects.filter(name="red").update(quota_gpus=2)
    more = of("red", "more")
    sentence = queue_view.job_queue(job_of(more))["sentence"]
    assert "borrowed by a private project" in sentence and "secret" not in sentence


def test_a_fleet_without_quotas_reads_no_project() -> None:
    make_fleet(1)
    of("default", "a")
    assert load_queue.load_fleet().projects == ()


def test_what_a_project_is_said_to_use_and_borrow_is_what_the_queue_counts() -> None:
    """A job that keeps one device to spare keeps a whole node of two, of which one counts."""
    fleet = make_fleet(2)
    project("red", quota_gpus=3)
    spec = job_spec(
        resources=specs.Resources(nodes=1, gpus_per_node=2, spares=specs.Spares(gpus=1)),
        parallelism=specs.Parallelism(tp=1, pp=2),
    )
    named = msgspec.structs.replace(spec, metadata=specs.Metadata(name="own", project="red"))
    runs(fleet, submit_job(named, owner="ada", actor="ada"))
    (counted,) = load_queue.load_fleet().projects
    use = use_of_projects()["red"]
    assert counted.used == use.in_use_gpus == 3
    assert use.borrowed_gpus(3) == 0
