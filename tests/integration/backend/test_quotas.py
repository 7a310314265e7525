"""Two projects on one fleet, on real rows: one borrows what the other lends, and gives it back when that needs it."""

from datetime import timedelta

import msgspec
import pytest

from controlplane.access.project_models import Project, Visibility
from controlplane.jobs.models import Attempt, Job
from controlplane.jobs.services import submit_job
from controlplane.policy.asked import Again
from controlplane.policy.queue.ends import FREED_S
from controlplane.policy.queue.place import Turn
from controlplane.policy.snapshot import JobSnapshot
from controlplane.protocol import spec as specs
from controlplane.recovery import load_queue, queue_view, stakes
from controlplane.recovery.models import Decision, Request
from controlplane.recovery.project_use import use_of_projects
from controlplane.recovery.reconcile import reconcile_job
from controlplane.recovery.snapshots import unpacked
from controlplane.runtime.clock import now
from tests.integration.backend.builders import Fleet, kill_rank, live_ranks, make_fleet
from tests.integration.backend.conftest import job_spec
from tests.integration.backend.test_consent import put
from tests.integration.backend.test_make_room import asked, state
from tests.integration.backend.test_preemption import job_of, leave, save, train

pytestmark = pytest.mark.django_db(transaction=True)


def project(name: str, **settings: object) -> Project:
    """One that everybody reads, unless it says otherwise."""
    base: dict[str, object] = {"visibility": Visibility.VISIBLE}
    return Project.objects.create(name=name, **base | settings)


def of(
    name: str,
    label: str,
    *,
    nodes: int = 1,
    spares: int = 0,
    **scheduling: object,
) -> Job:
    """A job of this project, of whole nodes of two devices."""
    spec = job_spec(
        resources=specs.Resources(nodes=nodes, gpus_per_node=2, spares=specs.Spares(gpus=spares)),
        parallelism=specs.Parallelism(tp=1, pp=2),
        scheduling=specs.Scheduling(**scheduling),  # type: ignore[arg-type]
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


def test_what_a_project_uses_is_one_figure_for_its_page_and_for_the_queue() -> None:
    fleet = make_fleet(3)
    project("red", quota_gpus=3)
    runs(fleet, of("red", "own", spares=1))
    runs(fleet, of("default", "other"))
    assert Job.objects.get(name="own").spares.count() == 2, "a whole node is kept for the one that it asks for"
    (red,) = load_queue.load_fleet().projects
    use = use_of_projects()
    assert (red.name, red.used) == ("red", 3)
    assert (use["red"].in_use_gpus, use["red"].borrowed_gpus(3)) == (3, 0)
    assert use["default"].in_use_gpus == 2, "of a project without a quota too"


@pytest.mark.parametrize(("preemptible", "turn"), [(True, Turn.FIRST), (False, Turn.QUOTA)])
def test_a_job_that_nobody_may_preempt_borrows_no_replica_more_either(preemptible: bool, turn: Turn) -> None:
    fleet = make_fleet(2)
    project("red", quota_gpus=2)
    project("blue", quota_gpus=2)
    job = runs(fleet, of("red", "elastic", preemptible=preemptible))
    place = load_queue.place_of(job, yielded=1)
    assert place is not None and place.turn is turn


def test_a_job_of_lower_priority_yields_for_the_quota_of_its_project_alone_and_the_one_that_waited_starts() -> None:
    fleet = make_fleet(2)
    project("red", quota_gpus=2, borrow_limit_gpus=0)
    low = runs(fleet, of("red", "low", priority=300))
    save(fleet, low, 1)
    high = of("red", "high", priority=900)
    reconcile_job(high.id)
    assert asked() == [("low", "open")]
    said = Decision.objects.get(job=high, rule="make_room").sentence
    assert "for which the quota of its project has too few devices left" in said
    told = queue_view.job_queue(job_of(high))
    assert (told["turn"], [each["name"] for each in told["preempts"]]) == ("quota", ["low"])
    save(fleet, low, 1)
    reconcile_job(low.id)
    leave(fleet, low)
    for job in (low, high):
        reconcile_job(job.id)
    assert (state(low), state(high)) == ("preempted", "starting"), "one node was free all the time"


def test_what_the_jobs_of_a_project_suffer_within_an_hour_is_bounded_and_the_explanation_says_by_what() -> None:
    fleet = make_fleet(2)
    put({"max_preemptions_of_project": 1})
    for name in ("red", "blue"):
        project(name)
    for label in ("a", "b"):
        save(fleet, runs(fleet, of("red", label, priority=100)), 1)
    first = of("blue", "first", priority=900)
    reconcile_job(first.id)
    (request,) = Request.objects.filter(kind="preempt")
    victim = request.job
    assert victim is not None
    save(fleet, victim, 1)
    reconcile_job(victim.id)
    leave(fleet, victim)
    for job in (victim, first):
        reconcile_job(job.id)
    assert stakes.preempted() == {"red": 1} and state(first) == "starting"
    second = of("blue", "second", priority=900)
    reconcile_job(second.id)
    assert Request.objects.filter(kind="preempt").count() == 1
    (spared,) = queue_view.job_queue(job_of(second))["spared"]
    assert spared["why"] == "jobs of its project yielded as often within an hour as they may be asked together (1)"
    Request.objects.update(asked_at=now() - timedelta(seconds=3601))
    reconcile_job(second.id)
    assert Request.objects.filter(kind="preempt").count() == 2, "an hour later"


def test_time_limits_are_ends_of_running_jobs_and_let_waiting_ones_pass() -> None:
    fleet = make_fleet(3)
    project("red", quota_gpus=4, borrow_limit_gpus=0)
    runs(fleet, of("red", "limited", time_limit_s=4000.0))
    (holder,) = load_queue.load_fleet().holders
    assert holder.ends_s is not None
    # It began an hour ago; its steps would take longer.
    assert holder.ends_s - now().timestamp() == pytest.approx(400.0 + FREED_S, abs=5.0)
    large = of("red", "large", nodes=2)
    small, endless = of("red", "small", time_limit_s=300.0), of("red", "endless")
    waiting = {job.id: job.limit_s for job in load_queue.waiting()}
    assert waiting == {large.id: None, small.id: 300.0 + FREED_S, endless.id: None}
    turns = {job.name: queue_view.job_queue(job)["turn"] for job in (large, small, endless)}
    assert turns == {"large": "quota", "small": "backfill", "endless": "quota"}
    expected = queue_view.job_queue(large)["expected_at"]
    reconcile_job(small.id)
    assert state(small) == "starting"
    moved = load_queue.load_fleet()
    assert {each.name: each.ends_s is not None for each in moved.holders} == {"limited": True, "small": True}
    assert queue_view.job_queue(large)["expected_at"] is not None and expected is not None
    said = queue_view.job_queue(endless)["sentence"]
    assert "kept for large (priority 500), ahead of it: no time limit ends it before that is expected to start" in said


def test_an_elastic_job_starts_with_what_the_quota_of_its_project_has_left() -> None:
    fleet = make_fleet(3)
    project("red", quota_gpus=4, borrow_limit_gpus=0)
    runs(fleet, of("red", "first"))
    job = of("red", "elastic", nodes=2, elastic=True)
    reconcile_job(job.id)
    attempt = Attempt.objects.get(job=job)
    assert (state(job), attempt.yielded) == ("starting", 1), "two replicas are asked for, and two nodes are free"
    (red,) = load_queue.load_fleet().projects
    assert red.used == 4
    said = Decision.objects.get(job=job, choice="place").sentence
    assert "its project's quota has 2 devices for it" in said


def dies(fleet: Fleet, job: Job) -> Decision:
    """Each of its ranks is killed; what is decided of its attempt."""
    for row in live_ranks(job):
        kill_rank(fleet, row)
    reconcile_job(job.id, sure=True)
    return Decision.objects.get(job=job, rule="restart")


def test_a_job_is_placed_again_with_what_the_quota_of_its_project_has_for_it_and_takes_the_rest_by_the_queue() -> None:
    fleet = make_fleet(3)
    project("red", quota_gpus=4, borrow_limit_gpus=0)
    job = runs(fleet, of("red", "own", nodes=2))
    Project.objects.filter(name="red").update(quota_gpus=3)
    made = dies(fleet, job)
    attempt = Attempt.objects.get(job=job, number=2)
    assert (attempt.replicas, attempt.yielded) == (2, 1), "three nodes are free"
    assert "its project's quota has 3 devices for it" in made.sentence
    assert {share.used for share in load_queue.load_fleet().projects} == {2}
    known = unpacked(made.snapshot, JobSnapshot).elsewhere
    assert known is not None and known.again == Again(at_most=3), "the decision is made again by what it was made on"


def test_where_others_of_its_project_use_the_quota_up_a_job_that_failed_waits_for_it() -> None:
    fleet = make_fleet(3)
    project("red", quota_gpus=4, borrow_limit_gpus=0)
    runs(fleet, of("red", "stays"))
    job = runs(fleet, of("red", "fails"))
    Project.objects.filter(name="red").update(quota_gpus=2)
    made = dies(fleet, job)
    assert (made.choice, state(job)) == ("queue", "pending"), "two nodes are free"
    assert "waits for its project's quota: project red has 2 devices of its own, 2 are in use" in made.sentence
    Project.objects.filter(name="red").update(quota_gpus=4)
    reconcile_job(job.id)
    assert state(job) == "starting"


def test_of_a_project_without_a_quota_no_restart_reads_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = make_fleet(3)
    project("blue", quota_gpus=4)
    job = runs(fleet, of("default", "own", nodes=2))
    monkeypatch.setattr(load_queue, "load_fleet", None)
    dies(fleet, job)
    assert (Attempt.objects.filter(job=job).count(), state(job)) == (2, "starting")


def test_what_a_job_has_itself_is_not_counted_against_it_but_what_others_of_its_project_have_is() -> None:
    fleet = make_fleet(3)
    project("red", quota_gpus=4, borrow_limit_gpus=0)
    job = runs(fleet, of("red", "own", nodes=2))
    assert load_queue.again(job) == Again()
    Project.objects.filter(name="red").update(quota_gpus=6)
    runs(fleet, of("red", "other"))
    assert load_queue.again(job) == Again()
    Project.objects.filter(name="red").update(quota_gpus=5)
    assert load_queue.again(job) == Again(at_most=3)
    Project.objects.filter(name="red").update(quota_gpus=3)
    found = load_queue.again(job)
    assert found is not None and found.why.startswith("project red has 3 devices of its own, 2 are in use")


def test_what_a_restart_takes_of_a_quota_it_takes_behind_the_fleets_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = make_fleet(3)
    project("red", quota_gpus=4)
    job = runs(fleet, of("red", "own", nodes=2))
    locked = list[str]()
    monkeypatch.setattr(load_queue, "lock_fleet", lambda: locked.append(state(job)))
    assert load_queue.again(job) == Again() and not locked, "who only reads it locks nothing"
    dies(fleet, job)
    assert locked == ["running"]
