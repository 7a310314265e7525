"""What the policy chose, in rows: barred places, bad numbers, spares that are kept."""

import msgspec
import pytest

from controlplane.dispatch.models import Command
from controlplane.jobs.models import Job
from controlplane.protocol import frames
from controlplane.protocol.rank import StepReport
from controlplane.recovery.load import load_snapshot
from controlplane.recovery.models import Decision, Signal
from controlplane.recovery.reconcile import reconcile_job
from controlplane.recovery.spikes import is_spike
from controlplane.runtime.clock import ago
from controlplane.scheduling.models import SpareReservation
from tests.integration.backend.builders import (
    Fleet,
    bodies,
    commit_step,
    flush_all,
    install_all,
    join_all,
    live_ranks,
    make_fleet,
    ref_of,
    run_job,
)
from tests.integration.backend.test_checkpoints import commit, kill_all

pytestmark = pytest.mark.django_db(transaction=True)


def trains_again(fleet: Fleet, job: Job) -> None:
    join_all(fleet, job)
    reconcile_job(job.id)
    flush_all(fleet, job)
    reconcile_job(job.id)
    install_all(fleet, job)


def says(fleet: Fleet, job: Job, step: int, loss: float) -> None:
    """The last stage of replica 0 commits a step with this loss."""
    row = next(row for row in live_ranks(job) if row.rank == 1)
    fleet.tell(row.node.name, frames.RankSaid(ref_of(row), StepReport(step, 2, 0.1, 1, (), loss, 1.0, None)))


def last_restart(job: Job, attempt: int) -> str:
    """What the decision says that ended this attempt."""
    return Decision.objects.get(job=job, rule="restart", sentence__startswith=f"Attempt {attempt} ends").sentence


def test_after_an_end_for_want_of_memory_the_replica_goes_to_other_devices_and_stays_away() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    row = live_ranks(job)[0]
    fleet.tell(row.node.name, frames.RankExited(ref_of(row), 247, None, False))
    reconcile_job(job.id)
    started = [body.launch for _, body in bodies(job, "start_ranks") if body.launch.incarnation == 2]
    assert started and all(command.node_id != row.node_id for command, body in bodies(job, "start_ranks")
                           if body.launch.incarnation == 2)  # fmt: skip
    bars = load_snapshot(Job.objects.get(pk=job.id)).bars
    assert {(bar.node_id, bar.code) for bar in bars} == {(row.node_id, 247)}


def test_a_checkpoint_that_leads_to_nan_after_a_restart_is_demoted_and_the_one_before_is_used() -> None:
    fleet = make_fleet()
    job = run_job(fleet, steps=6)
    for step in (2, 4):
        commit(fleet, job, step)
    kill_all(fleet, job, None)
    assert job.attempts.get(number=2).resume_step == 4
    trains_again(fleet, job)
    says(fleet, job, 4, float("nan"))
    reconcile_job(job.id)
    assert job.attempts.get(number=3).resume_step == 2
    demoted = job.checkpoints.get(step=4)
    assert demoted.state == "corrupt"
    assert "its bytes are right, its numbers are not" in demoted.state_reason
    assert job.checkpoints.get(step=2).state == "complete"


def test_a_checkpoint_from_which_two_saves_went_bad_is_not_resumed_from_a_third_time() -> None:
    fleet = make_fleet()
    job = run_job(fleet, steps=12)
    for step in (2, 4):
        commit(fleet, job, step)
    kill_all(fleet, job, None)
    resumed = []
    for saved in (6, None, 5):
        trains_again(fleet, job)
        if saved is not None:
            commit(fleet, job, saved)
        says(fleet, job, 7, float("nan"))
        reconcile_job(job.id)
        kill_all(fleet, job, None)
        resumed.append(job.attempts.order_by("-number")[0].resume_step)
        if saved is None:
            assert job.checkpoints.get(step=4).suspect_step == 6
            assert {fact.step: fact.suspect_step for fact in load_snapshot(job).checkpoints} == {2: 0, 4: 6, 6: 0}
    assert resumed == [6, 4, 2]
    states = {row.step: row.state for row in job.checkpoints.all()}
    assert states == {2: "complete", 4: "corrupt", 5: "corrupt", 6: "corrupt"}
    assert "That of step 4, from which that was trained, is suspect now" in last_restart(job, 3)
    assert "The checkpoints of steps 4 and 5 are not resumed from again" in last_restart(job, 4)


def test_a_loss_well_above_what_it_was_before_the_checkpoint_is_a_finding_and_a_way_back() -> None:
    fleet = make_fleet()
    job = run_job(fleet, steps=6)
    for step in range(6):
        says(fleet, job, step, 2.0 + 0.1 * step)
    for step in (2, 5):
        commit(fleet, job, step)
    kill_all(fleet, job, None)
    trains_again(fleet, job)
    for step in (5, 6, 7):
        says(fleet, job, step, 9.0)
    found = Signal.objects.get(kind="loss_spike")
    assert (found.value, found.threshold) == (9.0, pytest.approx(2.4))
    reconcile_job(job.id)
    assert job.attempts.get(number=3).resume_step == 2
    assert Decision.objects.filter(job=job, reason_code="loss_spike").count() == 1


@pytest.mark.parametrize(("kind", "loss"), [("nan_loss", float("nan")), ("loss_spike", 9.0)])
def test_a_loss_that_was_well_again_before_anybody_decided_costs_no_progress(kind: str, loss: float) -> None:
    """The agent kept the reports while the server was away, and hands all of them over at once."""
    fleet = make_fleet()
    job = run_job(fleet, steps=6)
    for step in range(6):
        says(fleet, job, step, 2.0 + 0.1 * step)
    for step in (2, 5):
        commit(fleet, job, step)
    kill_all(fleet, job, None)
    trains_again(fleet, job)
    for step in range(5, 8):
        says(fleet, job, step, loss)
    assert Signal.objects.get(settled_at=None).kind == kind
    for step in range(8, 14):
        says(fleet, job, step, 2.3)
    reconcile_job(job.id)
    assert (job.attempts.count(), Signal.objects.filter(settled_at=None).count()) == (2, 0)
    assert "by now" in Decision.objects.get(job=job, rule="void").sentence


def test_a_save_between_the_restart_and_the_third_high_loss_does_not_hide_the_spike() -> None:
    fleet = make_fleet()
    job = run_job(fleet, steps=12)
    for step in range(6):
        says(fleet, job, step, 2.0 + 0.1 * step)
    for step in (2, 5):
        commit(fleet, job, step)
    kill_all(fleet, job, None)
    trains_again(fleet, job)
    for step in (5, 6):
        says(fleet, job, step, 9.0)
    commit(fleet, job, 7)
    says(fleet, job, 7, 9.0)
    reconcile_job(job.id)
    assert job.attempts.get(number=3).resume_step == 2
    assert {row.step: row.state for row in job.checkpoints.all()} == {2: "complete", 5: "corrupt", 7: "corrupt"}


@pytest.mark.parametrize(
    ("before", "after", "spike"),
    [
        ([2.0, 2.2, 2.1, 2.4], [9.0, 8.0, 9.5], True),
        ([2.0, 2.2, 2.1, 2.4], [9.0, 2.0, 2.1], False),
        ([2.0, 2.2, 2.1, 2.4], [4.7, 4.7, 4.7], False),
        ([2.0, 2.2, 2.1], [9.0, 9.0, 9.0], False),
        ([2.0, 2.2, 2.1, 2.4], [9.0, 9.0], False),
        ([-1.0, -2.0, -1.0, -1.0], [5.0, 5.0, 5.0], False),
    ],
)
def test_what_a_spike_is(before: list[float], after: list[float], spike: bool) -> None:
    assert is_spike(before, after) is spike


def test_a_used_spare_is_reserved_anew_and_warmed_and_one_that_waits_is_warmed_again() -> None:
    fleet = make_fleet(5)
    job = run_job(fleet)
    spare = SpareReservation.objects.filter(job=job).values_list("device__node_id", flat=True).distinct().get()
    first = Command.objects.get(job=job, kind="warm_host")
    assert first.node_id == spare
    Command.objects.filter(pk=first.pk).update(state="succeeded", finished_at=ago(10_900.0), created_at=ago(10_901.0))
    reconcile_job(job.id)
    assert Command.objects.filter(job=job, kind="warm_host", node_id=spare).count() == 2
    SpareReservation.objects.filter(job=job).delete()
    fleet.nodes[fleet.name_of(spare)].__class__.objects.filter(pk=spare).update(state="cordoned")
    reconcile_job(job.id)
    kept = SpareReservation.objects.filter(job=job).values_list("device__node_id", flat=True).distinct().get()
    assert kept != spare
    assert Command.objects.filter(job=job, kind="warm_host", node_id=kept).exists()
    commit_step(fleet, job, 2)
    assert msgspec.to_builtins(load_snapshot(Job.objects.get(pk=job.id)).job.state) == "running"
