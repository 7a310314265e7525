"""Two deaths close to each other: each is told in an incident, by its own end, in whatever order it is heard."""

import pytest

from controlplane.dispatch.models import Command
from controlplane.jobs.models import Job, Rank
from controlplane.protocol import frames
from controlplane.protocol.rank import OuterError
from controlplane.protocol.samples import XidEvent
from controlplane.protocol.states import EXIT_PEER_LOST, Phase, Section
from controlplane.recovery import counts, health_gate
from controlplane.recovery.incidents import slots_of
from controlplane.recovery.models import Decision, Incident, Signal
from controlplane.recovery.reconcile import reconcile_job
from tests.integration.backend.builders import (
    Fleet,
    flush_all,
    install_all,
    job_that_lost_a_rank,
    join_all,
    kill_rank,
    live_ranks,
    make_fleet,
    ref_of,
    run_job,
)

pytestmark = pytest.mark.django_db


def rank_of(job: Job, replica: int, rank: int) -> Rank:
    return next(row for row in live_ranks(job) if (row.replica.index, row.rank) == (replica, rank))


def titles() -> list[str]:
    return list(Incident.objects.order_by("opened_at", "id").values_list("title", flat=True))


def test_a_second_death_in_the_recovery_has_its_own_incident_though_a_survivor_told_of_a_broken_exchange() -> None:
    fleet, job = job_that_lost_a_rank()
    flush_all(fleet, job, committed=2)
    reconcile_job(job.id)
    install_all(fleet, job)
    survivor = rank_of(job, 2, 0)
    epoch = Job.objects.get(pk=job.pk).epoch
    fleet.tell(survivor.node.name, frames.RankSaid(ref_of(survivor), OuterError(epoch, 2, "connection reset by peer")))
    kill_rank(fleet, rank_of(job, 1, 0))
    reconcile_job(job.id)
    assert Signal.objects.filter(kind="outer_error").exists(), "both were told before it was decided"
    assert not Signal.objects.filter(kind="rank_exit", incident=None).exists()
    found = Signal.objects.filter(kind="rank_exit").order_by("replica").values_list("replica", "incident__title")
    assert [(replica, title.partition(" was killed")[0]) for replica, title in found] == [
        (0, "Rank 0 of replica 0 on n1"), (1, "Rank 0 of replica 1 on n2"),
    ]  # fmt: skip


def test_a_joiner_and_another_replica_that_die_at_once_are_each_told_in_the_incident_of_their_slot() -> None:
    fleet, job = job_that_lost_a_rank()
    join_all(fleet, job)
    kill_rank(fleet, rank_of(job, 0, 0))
    kill_rank(fleet, rank_of(job, 1, 0))
    reconcile_job(job.id)
    told = Decision.objects.filter(job=job, rule="replica_failure").order_by("at", "id")
    assert [row.reason_code for row in told] == ["rank_exit"] * 3
    found = Signal.objects.filter(kind="rank_exit").order_by("replica", "incarnation")
    assert [(row.replica, row.incarnation) for row in found] == [(0, 1), (0, 2), (1, 1)]
    first, again, other = (row.incident_id for row in found)
    assert first == again != other
    assert other is not None


def test_two_that_die_at_once_for_themselves_are_two_incidents_with_one_view_between_them() -> None:
    fleet = make_fleet(6)
    job = run_job(fleet)
    for index in (0, 1):
        kill_rank(fleet, rank_of(job, index, 0))
    reconcile_job(job.id)
    rows = list(Incident.objects.filter(job=job).order_by("title"))
    assert [row.title for row in rows] == [
        "Rank 0 of replica 0 on n1 was killed (SIGKILL)", "Rank 0 of replica 1 on n2 was killed (SIGKILL)",
    ]  # fmt: skip
    assert [slots_of(row) for row in rows] == [{0}, {1}]
    assert [row.node.name for row in rows if row.node] == ["n1", "n2"]
    told = [list(row.decisions.filter(routine=False)) for row in rows]
    assert [len(decisions) for decisions in told] == [1, 1]
    assert {row.replica for row in Signal.objects.filter(incident=rows[0])} == {0}
    views = [d for (d,) in told if any(a["action"] == "announce_view" for a in d.actions)]
    assert len(views) == 1, "one view serves both"
    assert Job.objects.get(pk=job.pk).epoch == views[0].epoch_after


def test_a_hang_that_is_found_with_a_kill_elsewhere_has_its_stacks_in_its_own_incident(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(health_gate, "is_blind", lambda: False)
    fleet = make_fleet(6)
    job = run_job(fleet)
    late = [rank_of(job, 1, rank) for rank in (0, 1)]
    for row in late:
        fleet.tell(row.node.name, frames.RankOverdue(ref_of(row), Section.STEP, Phase.COMPUTE, 1, 30.0, 20.0, 0.1))
    kill_rank(fleet, rank_of(job, 0, 0))
    reconcile_job(job.id)
    hang = Incident.objects.get(job=job, signals__kind="rank_overdue", signals__rank=0)
    kill = Incident.objects.get(job=job, signals__kind="rank_exit")
    assert hang.pk != kill.pk
    assert "hang" in hang.title
    asked = list(Command.objects.filter(kind="collect_stacks", decision_id__in=hang.decisions.values("id")))
    assert {row.body["replica"] for row in asked} >= {1}
    assert not Command.objects.filter(kind="collect_stacks", decision_id__in=kill.decisions.values("id")).exists()
    views = Command.objects.filter(job=job, epoch=Job.objects.get(pk=job.pk).epoch).exclude(kind="collect_stacks")
    assert counts.acts().count() == 2, "what ends nothing brings automation no nearer to its stop"
    assert max(row.id for row in asked) < min(row.id for row in views), "sent before the view that ends it"


def lost_its_peer() -> tuple[Fleet, Job, Rank]:
    """Rank 0 of replica 1 ended as one that lost its peer, which is not told of yet; that was decided."""
    fleet = make_fleet(5)
    job = run_job(fleet)
    peer, culprit = rank_of(job, 1, 0), rank_of(job, 1, 1)
    fleet.tell(peer.node.name, frames.RankExited(ref_of(peer), EXIT_PEER_LOST, None, False))
    reconcile_job(job.id)
    assert titles() == ["Rank 0 of replica 1 on n2 ended with code 71"]
    return fleet, job, culprit


def test_the_one_that_was_killed_names_the_incident_though_it_is_told_after_the_decision() -> None:
    fleet, job, culprit = lost_its_peer()
    decided = Decision.objects.filter(job=job).count()
    fleet.tell(culprit.node.name, frames.RankExited(ref_of(culprit), None, 9, False))
    assert titles() == ["Rank 1 of replica 1 on n2 was killed (SIGKILL)"]
    assert Incident.objects.get().signals.filter(kind="rank_exit").count() == 2
    assert not Signal.objects.filter(settled_at=None).exists()
    reconcile_job(job.id)
    assert Decision.objects.filter(job=job).count() == decided, "nothing new is to be done for it"


def test_one_that_was_ended_by_what_others_saw_is_named_by_its_own_end_when_its_node_tells_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Killed while its storage stood still: it is gone, and told, when that moves again."""
    monkeypatch.setattr(health_gate, "is_blind", lambda: False)
    fleet = make_fleet(5)
    job = run_job(fleet)
    rank = rank_of(job, 1, 0)
    late = frames.RankOverdue(ref_of(rank), Section.STEP, Phase.COMPUTE, 2, 9.0, 5.0, 0.2)
    fleet.tell(rank.node.name, late)
    survivor = rank_of(job, 2, 0)
    epoch = Job.objects.get(pk=job.pk).epoch
    fleet.tell(survivor.node.name, frames.RankSaid(ref_of(survivor), OuterError(epoch, 2, "connection reset by peer")))
    reconcile_job(job.id)
    assert titles() == ["Replica 1 hangs, rank 0 overdue first"]
    fleet.tell(rank.node.name, frames.RankExited(ref_of(rank), None, 9, False))
    assert titles() == ["Rank 0 of replica 1 on n2 was killed (SIGKILL)"]
    assert not Signal.objects.filter(kind="rank_exit", incident=None).exists()
    assert not Signal.objects.filter(kind="rank_exit", settled_at=None).exists()


def test_what_a_device_or_a_node_did_to_it_names_it_still() -> None:
    fleet = make_fleet(5)
    job = run_job(fleet)
    rank = rank_of(job, 1, 0)
    fleet.tell(rank.node.name, frames.XidSeen(XidEvent(index=0, xid=79)))
    reconcile_job(job.id)
    (title,) = titles()
    assert "XID 79" in title
    fleet.tell(rank.node.name, frames.RankExited(ref_of(rank), None, 9, False))
    assert titles() == [title]
    assert not Signal.objects.filter(kind="rank_exit", incident=None).exists(), "and is told there"


def test_one_that_ended_as_ordered_or_lost_its_peer_too_names_nothing() -> None:
    fleet, _, other = lost_its_peer()
    fleet.tell(other.node.name, frames.RankExited(ref_of(other), EXIT_PEER_LOST, None, False))
    assert titles() == ["Rank 0 of replica 1 on n2 ended with code 71"]


def test_a_name_that_says_something_else_stays() -> None:
    fleet, _, culprit = lost_its_peer()
    Incident.objects.update(title="Rack 7 lost power")
    fleet.tell(culprit.node.name, frames.RankExited(ref_of(culprit), None, 9, False))
    assert titles() == ["Rack 7 lost power"]
    assert Incident.objects.get().signals.filter(kind="rank_exit").count() == 2
