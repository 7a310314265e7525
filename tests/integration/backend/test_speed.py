"""A slow rank's finding says what the newest windows say (P4), and the fleet's goodput keeps who waits."""

from dataclasses import replace

import pytest
from django.db.models import F, Q

from controlplane.api.overview import _goodput
from controlplane.jobs.models import Attempt, Job, JobPace, RankSpeed
from controlplane.jobs.several import Goodput
from controlplane.policy.signals.ranks import SlowRank
from controlplane.protocol.states import JobState
from controlplane.recovery import signals, speed
from controlplane.recovery.models import Decision, Signal
from controlplane.recovery.reconcile import reconcile_job
from controlplane.runtime.clock import ago
from tests.integration.backend.builders import commit_step, live_ranks, make_fleet, run_job
from tests.integration.backend.test_pace import sees, tell_all  # noqa: F401

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("sees")]


def slow(job: Job, **changes: object) -> SlowRank:
    """As two windows have confirmed it."""
    rank = live_ranks(job)[0]
    found = SlowRank(
        **signals.place_of(rank), attempt=1, node=rank.node.name, limit_ratio=0.8, score="relative", relative=0.5,
        individual=None, cause="compute", late_s=3.2, compute_s=4.0, data_s=0.1, step_s=5.0, stage=0, spread=None,
        epoch=job.epoch, more={},
    )  # fmt: skip
    return replace(found, **changes)  # type: ignore[arg-type]


def test_a_cause_that_later_windows_refute_is_told_no_more_and_the_new_one_begins_anew() -> None:
    job = run_job(make_fleet())
    row = signals.raise_signal(slow(job))
    assert row is not None
    Signal.objects.filter(pk=row.pk).update(seen_at=ago(400.0))
    assert speed._amend(slow(job, cause="data", late_s=0.56), 300.0)
    row.refresh_from_db()
    assert (row.evidence["cause"], row.evidence["late_s"]) == ("data", 0.56)
    assert row.seen_at > ago(60.0), "nothing was seen of it sooner"


def test_the_same_cause_keeps_its_beginning_and_has_the_newest_numbers() -> None:
    job = run_job(make_fleet())
    row = signals.raise_signal(slow(job))
    assert row is not None
    Signal.objects.filter(pk=row.pk).update(seen_at=ago(400.0), renewed_at=ago(150.0))
    assert not speed._amend(slow(job, late_s=2.0, relative=0.6), 300.0)
    row.refresh_from_db()
    assert row.evidence["late_s"] == 2.0 and row.value == pytest.approx(0.6)
    assert row.seen_at < ago(300.0) and row.renewed_at is not None and row.renewed_at > ago(60.0)
    Signal.objects.filter(pk=row.pk).update(renewed_at=ago(400.0))
    assert speed._amend(slow(job), 300.0), "what waited for another measurement is decided now"


def test_windows_of_two_views_are_not_two_in_a_row_and_a_finding_says_in_which_it_was_found() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    tell_all(fleet, job, slow_s=0.4)
    Job.objects.filter(pk=job.pk).update(epoch=F("epoch") + 1)
    tell_all(fleet, job, slow_s=0.4, epoch=3)
    assert not Signal.objects.filter(kind="straggler").exists()
    tell_all(fleet, job, slow_s=0.4, epoch=3)
    assert Signal.objects.get(kind="straggler").evidence["epoch"] == job.epoch + 1 == 3


def test_a_window_that_ended_before_the_newest_view_is_none_of_it() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    Job.objects.filter(pk=job.pk).update(epoch=F("epoch") + 1)
    for _ in range(2):
        tell_all(fleet, job, slow_s=0.4)
    assert Signal.objects.get(kind="straggler").evidence["epoch"] == job.epoch


def test_what_was_found_stays_found_and_is_not_confirmed_by_the_first_window_of_a_view() -> None:
    """Who leaves meanwhile leaves a device that is slow."""
    fleet = make_fleet()
    job = run_job(fleet)
    for _ in range(2):
        tell_all(fleet, job, slow_s=0.4)
    Signal.objects.update(seen_at=ago(500.0))
    tell_all(fleet, job, slow_s=0.4, epoch=3)
    found = Signal.objects.get(kind="straggler")
    assert (found.evidence["epoch"], found.settled_at) == (2, None)
    assert found.renewed_at is not None and found.renewed_at > ago(60.0)
    assert RankSpeed.objects.get(rank__replica__index=1, rank__rank=0).straggler == "relative"
    tell_all(fleet, job, slow_s=0.1, epoch=3)
    assert not Signal.objects.filter(settled_at=None).exists()
    assert RankSpeed.objects.get(rank__replica__index=1, rank__rank=0).straggler == ""


def test_a_speed_that_an_older_release_has_scored_counts_for_no_view_and_its_finding_is_measured_again() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    for _ in range(2):
        tell_all(fleet, job, slow_s=0.4)
    row = Signal.objects.get(kind="straggler")
    older = {name: value for name, value in row.evidence.items() if name != "epoch"}
    Signal.objects.update(evidence=older, renewed_at=None)
    RankSpeed.objects.update(scored_epoch=0, slow_before=0)
    reconcile_job(job.id)
    assert Decision.objects.get(rule="straggler").choice == "tell"
    tell_all(fleet, job, slow_s=0.4)
    reconcile_job(job.id)
    assert not Decision.objects.filter(rule="straggler", choice="move").exists()
    tell_all(fleet, job, slow_s=0.4)
    reconcile_job(job.id)
    assert Decision.objects.filter(rule="straggler", choice="move").exists()


def test_a_finding_that_is_found_again_in_a_newer_view_keeps_its_beginning_and_rings() -> None:
    job = run_job(make_fleet())
    row = signals.raise_signal(slow(job))
    assert row is not None
    Signal.objects.filter(pk=row.pk).update(seen_at=ago(400.0))
    assert speed._amend(slow(job, epoch=job.epoch + 1), 300.0)
    row.refresh_from_db()
    assert row.seen_at < ago(300.0) and row.evidence["epoch"] == job.epoch + 1


def test_a_job_that_trained_and_waits_for_devices_still_counts_in_the_fleets_goodput() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    for step in range(2, 16):
        commit_step(fleet, job, step, step_s=0.0001)  # longer than it takes here, and it would be no step's time
    shown = _goodput(Q()).ratio
    Job.objects.filter(pk=job.pk).update(state=JobState.PENDING)
    assert shown is not None
    assert _goodput(Q()).ratio == pytest.approx(shown, rel=0.2)


def test_a_job_that_began_and_kept_no_step_counts_with_all_its_time() -> None:
    fleet = make_fleet(8)
    trains = run_job(fleet, steps=0)
    Job.objects.update(name="another")
    idle = run_job(fleet, steps=0)
    for step in range(16):
        commit_step(fleet, trains, step, step_s=0.0001)
    began = ago(1000.0)
    Attempt.objects.update(started_at=began)
    JobPace.objects.update(spent=None)
    alone = _goodput(Q(pk=trains.pk)).ratio
    assert alone is not None and _goodput(Q(pk=idle.pk)) == Goodput(0.0, estimated=False, unjudged=0)
    assert _goodput(Q()).ratio == pytest.approx(alone / 2, rel=0.05)
    Job.objects.filter(pk=idle.pk).update(committed_step=5)
    found = _goodput(Q())
    assert (found.ratio, found.unjudged) == (pytest.approx(alone, rel=0.05), 1), "how long its steps take is not known"
