"""A replica that is ordered out trains until another has taken its place, over rows and commands."""

import pytest

from controlplane.dispatch.models import Command
from controlplane.fleet.models import Node
from controlplane.jobs.models import Attempt, Job, Replica
from controlplane.jobs.present import replica_summary
from controlplane.protocol import frames
from controlplane.protocol.commands import DeliverInstall, DeliverView, StartRanks
from controlplane.protocol.membership import MemberRole
from controlplane.protocol.rank import CaughtUp
from controlplane.recovery import incidents
from controlplane.recovery.ledger import job_budget
from controlplane.recovery.load import load_snapshot
from controlplane.recovery.models import Decision, Incident, ViewRow
from controlplane.recovery.reconcile import reconcile_job
from controlplane.recovery.requests import evict
from controlplane.runtime.clock import ago
from tests.integration.backend.builders import (
    Fleet,
    bodies,
    commit_step,
    flush_all,
    install_all,
    join_all,
    kill_rank,
    live_ranks,
    make_fleet,
    ref_of,
    run_job,
)

pytestmark = pytest.mark.django_db(transaction=True)


def newest_view(job: Job) -> DeliverView:
    return [body for _, body in bodies(job, "deliver_view") if isinstance(body, DeliverView)][-1]


def newest_install(job: Job) -> DeliverInstall:
    return [body for _, body in bodies(job, "deliver_install") if isinstance(body, DeliverInstall)][-1]


def stops(job: Job) -> list[tuple[int, int]]:
    return [
        (row.body["replica"], row.body["incarnation"]) for row in Command.objects.filter(job=job, kind="stop_ranks")
    ]


def of(job: Job, index: int) -> Replica:
    """Its newest life."""
    return Replica.objects.filter(attempt__job=job, index=index).latest("incarnation")


def relieved() -> tuple[Fleet, Job]:
    """Replica 1 of three is ordered out while a node is free; its successor has been started there."""
    fleet = make_fleet(4)
    job = run_job(fleet)
    assert evict(job, 1, reason="rack 7", actor="user:ada")[1] is False
    reconcile_job(job.id)
    return fleet, job


def joined() -> tuple[Fleet, Job]:
    """The successor is in the view, and catches up."""
    fleet, job = relieved()
    join_all(fleet, job)
    reconcile_job(job.id)
    flush_all(fleet, job, committed=2)
    reconcile_job(job.id)
    install_all(fleet, job)
    return fleet, job


def caught_up() -> tuple[Fleet, Job]:
    """It stands by, and the view that swaps the two is announced."""
    fleet, job = joined()
    commit_step(fleet, job, 2)
    epoch = Job.objects.get(pk=job.pk).epoch
    for row in [row for row in live_ranks(job) if row.replica.index == 3]:
        said = CaughtUp(epoch, 3, 1, 0.1, 1000, 0, role=MemberRole.STANDBY)
        fleet.tell(row.node.name, frames.RankSaid(ref_of(row), said))
    reconcile_job(job.id)
    return fleet, job


def test_an_order_starts_another_beside_it_and_nothing_of_it_ends() -> None:
    _fleet, job = relieved()
    decision = Decision.objects.get(job=job, rule="ordered_eviction")
    assert (decision.choice, decision.reason_code) == ("start_beside", "ordered")
    assert "It trains on until another has caught up and takes its place: replica 3 starts beside it on n4" in (
        decision.sentence
    )
    start = bodies(job, "start_ranks")[-1][1]
    assert isinstance(start, StartRanks)
    assert (start.launch.replica, start.launch.incarnation, start.launch.config.max_contributors) == (3, 1, 3)
    assert stops(job) == []
    assert (of(job, 1).state, of(job, 1).relieved) == ("active", "user:ada: rack 7")
    assert Job.objects.get(pk=job.pk).state == "running"
    assert Incident.objects.get(job=job).title == "Replica 1 evicted at the request of user:ada"


def test_one_view_swaps_the_two_and_only_then_the_old_one_ends() -> None:
    fleet, job = caught_up()
    view = newest_view(job).view
    assert [m.replica for m in view.members] == [0, 2, 3] and view.waits(1, 1)
    assert stops(job) == []
    flush_all(fleet, job, committed=3)
    reconcile_job(job.id)
    install = newest_install(job).install
    # The strength never fell: as many compute as before, the successor in the old one's place.
    assert (install.contributors, install.standbys) == ((0, 2, 3), ())
    install_all(fleet, job)
    reconcile_job(job.id)
    assert stops(job) == []
    commit_step(fleet, job, 3)
    reconcile_job(job.id)
    assert stops(job) == [(1, 1)]
    assert (of(job, 1).state, of(job, 3).state) == ("evicted", "active")
    assert [c for c in Decision.objects.filter(job=job).values_list("choice", flat=True) if "hold" in c] == []
    assert not replica_summary(of(job, 1))["current"]
    for row in [row for row in live_ranks(job) if row.replica.index == 1]:
        fleet.tell(row.node.name, frames.RankExited(ref_of(row), None, 9, True))
    reconcile_job(job.id)
    # Its slot stays empty: its place is taken.
    assert of(job, 1).incarnation == 1
    assert job_budget(job)["restarts_total"] == 0
    Incident.objects.update(opened_at=ago(20.0))
    reconcile_job(job.id)
    incident = Incident.objects.get(job=job)
    assert (incident.state, incident.outcome) == ("resolved", "recovered")
    incidents.refresh_phases(incident)
    names = [phase["name"] for phase in incident.phases]
    assert names[:1] == ["ordered"] and "caught_up" in names and names[-1] == "full_strength"


def test_ordered_twice_it_leaves_the_view_first_and_ends_when_the_others_have_trained_without_it() -> None:
    fleet = make_fleet(4)
    job = run_job(fleet)
    assert [evict(job, 1, reason="rack 7", actor="user:ada")[1] for _ in range(2)] == [False, True]
    reconcile_job(job.id)
    view = newest_view(job).view
    assert [m.replica for m in view.members] == [0, 2] and view.waits(1, 1)
    assert (stops(job), of(job, 1).state, Job.objects.get(pk=job.pk).state) == ([], "suspect", "recovering")
    flush_all(fleet, job, committed=2)
    reconcile_job(job.id)
    install_all(fleet, job)
    reconcile_job(job.id)
    assert stops(job) == [], "that view has committed nothing yet: it could still come back to it"
    commit_step(fleet, job, 2)
    reconcile_job(job.id)
    assert stops(job) == [(1, 1)]
    assert (of(job, 1).incarnation, of(job, 1).state) == (2, "forming"), "its slot starts again"
    choices = list(Decision.objects.filter(job=job).order_by("at").values_list("rule", "choice"))
    assert [choice for choice in choices if choice[0] in ("ordered_eviction", "replica_failure", "replace")] == [
        ("ordered_eviction", "leave"), ("ordered_eviction", "end"), ("replace", "start"),
    ]  # fmt: skip
    assert Incident.objects.get(job=job).title == "Replica 1 evicted at the request of user:ada"
    assert job_budget(job)["restarts_total"] == 0


def test_every_step_meanwhile_is_trained_by_as_many_as_before() -> None:
    _fleet, job = caught_up()
    for row in ViewRow.objects.filter(job=job, install__isnull=False):
        assert len(row.install["contributors"]) == 3, row.install


def test_an_old_one_that_dies_while_the_new_one_starts_is_a_failure_and_no_second_start() -> None:
    fleet, job = relieved()
    for row in [row for row in live_ranks(job) if row.replica.index == 1]:
        kill_rank(fleet, row)
    reconcile_job(job.id)
    decision = Decision.objects.get(job=job, rule="replica_failure")
    assert (decision.choice, decision.reason_code) == ("evict", "rank_exit")
    assert "its successor is there already" in decision.sentence
    assert Command.objects.filter(job=job, kind="start_ranks").count() == 4


def test_a_successor_that_dies_is_started_again_and_the_old_one_trains_on() -> None:
    fleet, job = joined()
    for row in [row for row in live_ranks(job) if row.replica.index == 3]:
        kill_rank(fleet, row)
    reconcile_job(job.id)
    assert (of(job, 1).state, of(job, 1).contributing) == ("active", True)
    newest = Replica.objects.filter(attempt__job=job, index=3).order_by("-incarnation").first()
    assert newest is not None and newest.incarnation == 2
    assert [m.replica for m in newest_view(job).view.members] == [0, 1, 2]
    assert stops(job) == []


def train_on(fleet: Fleet, job: Job, *, step: int) -> None:
    """The newest view is installed, and commits this step."""
    flush_all(fleet, job, committed=step)
    reconcile_job(job.id)
    install_all(fleet, job)
    commit_step(fleet, job, step)
    reconcile_job(job.id)


def test_ordered_again_while_another_starts_it_leaves_now_and_the_other_takes_its_place() -> None:
    fleet, job = relieved()
    assert evict(job, 1, reason="now", actor="user:ada")[1]
    reconcile_job(job.id)
    assert [m.replica for m in newest_view(job).view.members] == [0, 2] and stops(job) == []
    train_on(fleet, job, step=2)
    assert (stops(job), of(job, 1).state, of(job, 3).state) == ([(1, 1)], "evicted", "forming")
    assert not replica_summary(of(job, 1))["current"], "its slot is shown no more: another has its place"
    for row in [row for row in live_ranks(job) if row.replica.index == 1]:
        fleet.tell(row.node.name, frames.RankExited(ref_of(row), None, 9, True))
    reconcile_job(job.id)
    assert of(job, 1).incarnation == 1, "its place is taken"
    assert job_budget(job)["restarts_total"] == 0


@pytest.mark.parametrize("older", [False, True])
def test_without_a_free_device_or_with_ranks_of_an_older_release_it_leaves_the_view_first(older: bool) -> None:
    fleet = make_fleet(4)
    job = run_job(fleet)
    if older:
        Attempt.objects.update(max_contributors=None)
    else:
        Node.objects.filter(name="n4").update(state="cordoned")
    evict(job, 1, reason="rack 7", actor="user:ada")
    reconcile_job(job.id)
    decision = Decision.objects.get(job=job, rule="ordered_eviction")
    assert decision.choice == "leave"
    assert ("older release" if older else "no device is free") in decision.sentence
    assert stops(job) == []
    train_on(fleet, job, step=2)
    assert stops(job) == [(1, 1)]
    for row in [row for row in live_ranks(job) if row.replica.index == 1]:
        fleet.tell(row.node.name, frames.RankExited(ref_of(row), None, 9, True))
    reconcile_job(job.id)
    assert of(job, 1).incarnation == 2


def test_a_slot_that_an_earlier_attempt_had_goes_on_counting_its_lives() -> None:
    fleet, job = relieved()
    for row in live_ranks(job):
        kill_rank(fleet, row)
    for _ in range(4):
        reconcile_job(job.id)
    assert load_snapshot(Job.objects.get(pk=job.pk)).job.past_lives == {3: 1}
