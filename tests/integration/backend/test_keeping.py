"""The checkpoint from before a fault: kept from the moment the incident opens until it is judged, however
long the recovery takes and whoever saves meanwhile; a few of a job at most, and let go in the end."""

import pytest
from pytest_django.fixtures import Settings

from controlplane.changes.due.keeping import MAX_KEPT, MAX_LOST
from controlplane.checkpoints.models import Checkpoint
from controlplane.dispatch.models import Command
from controlplane.jobs.models import Job, Rank
from controlplane.jobs.services import cancel_job
from controlplane.protocol import frames
from controlplane.protocol.commands import KeepCheckpoints
from controlplane.protocol.keeping import CheckpointsPruned, KeptSave
from controlplane.protocol.rank import CheckpointReport
from controlplane.protocol.states import CheckpointState, CommandState, IncidentState, JobState
from controlplane.recovery import course, incidents, keeping
from controlplane.recovery.models import Incident, KeptCheckpoint, Recomputation
from controlplane.recovery.reconcile import reconcile_job
from controlplane.runtime.clock import ago, now
from controlplane.runtime.ids import new_id
from tests.integration.backend.builders import Fleet, bodies, live_ranks, make_fleet, ref_of, run_job
from tests.integration.backend.test_certificates import go_on, kill_replica
from tests.integration.backend.test_recompute import (
    LAST,
    answer,
    order_of,
    recovered,
    settled,
    told,
    train_to_the_end,
)

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _no_run_on_the_server(settings: Settings) -> None:
    settings.REFERENCE_RUNS = False


def saved(job: Job, step: int) -> Checkpoint:
    """A trusted checkpoint of before now."""
    home = job.attempts.order_by("-number")[0].checkpoint_dir
    return Checkpoint.objects.create(
        id=f"ckpt_{step}", job=job, attempt=1, step=step, epoch=1, path=f"{home}/step_{step:08d}-e1",
        kind="scheduled", state=CheckpointState.VERIFIED, started_at=ago(6.0), committed_at=ago(5.0),
    )  # fmt: skip


def faulty(fleet: Fleet, **changes: object) -> Job:
    """Replica 1 died just now, behind the save of step 1."""
    job = run_job(fleet, **changes)  # type: ignore[arg-type]
    saved(job, 1)
    kill_replica(fleet, job, 1)
    reconcile_job(job.id)
    return Job.objects.get(pk=job.id)


def orders(job: Job) -> list[KeepCheckpoints]:
    """To keep checkpoints, oldest first."""
    return [body for _, body in bodies(job, "keep_checkpoints") if isinstance(body, KeepCheckpoints)]


def names(job: Job) -> list[str]:
    """What the newest order keeps."""
    return [save.name for save in orders(job)[-1].saves]


def hand_over(job: Job, state: CommandState = CommandState.SUCCEEDED, detail: str = "") -> None:
    """What was ordered of the ranks is answered so."""
    Command.objects.filter(job=job, kind="keep_checkpoints").update(state=state, detail=detail)


def look(job: Job) -> None:
    """The sweep, when it is due."""
    KeptCheckpoint.objects.filter(job=job).exclude(due_at=None).update(due_at=ago(1.0))
    keeping.tend_due()


def save(fleet: Fleet, job: Job, step: int, *, oldest: tuple[int, int], kept: tuple[tuple[int, int], ...]) -> None:
    """A rank tells of a save, and what retention has left."""
    row, home = live_ranks(job)[0], job.attempts.order_by("-number")[0].checkpoint_dir
    path = f"{home}/step_{step:08d}-e3"
    said = CheckpointReport(step, path, "complete", "scheduled", 3, digest="d", oldest_kept=oldest, kept=kept)
    fleet.tell(row.node.name, frames.RankSaid(ref_of(row), said))


def over(job: Job) -> Incident:
    """The first incident, as `settled`; what was saved was so before it."""
    Checkpoint.objects.filter(job=job).update(committed_at=ago(55.0))
    return settled(job)


def another_fault(job: Job, *, step: int) -> Incident:
    """One more incident of the job, opened now that it has committed `step`."""
    incident = Incident.objects.create(
        id=new_id("inc"),
        job=job,
        title="another fault",
        state=IncidentState.OPEN,
        opened_at=now(),
        began=course.mark(job, now()) | {"step": step},
    )
    keeping.need(incident)
    return incident


def test_it_is_kept_from_the_moment_the_incident_opens_and_not_when_it_is_computed_from() -> None:
    fleet = make_fleet(5)
    job = faulty(fleet)
    (order,) = orders(job)
    assert (order.saves, order.replica) == ((KeptSave("step_00000001-e1"),), 0)
    assert not bodies(job, "order_recompute"), "nothing is sampled yet"
    kept = bodies(job, "keep_checkpoints")[0][0]
    assert all(kept.pk < view.pk for view, body in bodies(job, "deliver_view") if view.created_at >= kept.created_at)
    look(job)
    assert len(orders(job)) == 1, "on its way"
    hand_over(job)
    look(job)
    assert len(orders(job)) == 1, "and there"


def test_what_outlasts_its_retention_stays_on_the_ladder_and_is_computed_from() -> None:
    """Ten saves during the recovery: those are pruned, and the one from before the fault is not."""
    fleet = make_fleet(5)
    job = faulty(fleet)
    for step in range(2, 12):
        save(fleet, job, step, oldest=(3, step), kept=((1, 1),))
    assert Checkpoint.objects.get(job=job, step=1).state == CheckpointState.VERIFIED
    assert Checkpoint.objects.filter(job=job, state=CheckpointState.PRUNED).count() == 9
    go_on(fleet, job, first=2, until=LAST)
    incident = over(job)
    assert told(incident)[0] == "pending"
    assert order_of(job).order.path.endswith("step_00000001-e1")
    rank = live_ranks(job)[0]
    fleet.tell(rank.node.name, frames.RankSaid(ref_of(rank), CheckpointsPruned((3, 11), ())))
    assert Checkpoint.objects.get(job=job, step=1).state == CheckpointState.PRUNED


def test_it_is_let_go_once_the_certificate_is_judged() -> None:
    fleet = make_fleet(5)
    job, incident = recovered(fleet)
    told(incident)
    assert orders(job)[-1].saves
    answer(fleet, job)
    assert told(incident)[0] == "green"
    assert orders(job)[-1].saves == ()
    look(job)
    assert KeptCheckpoint.objects.get(job=job).due_at is not None, "it was not handed over yet"
    hand_over(job)
    look(job)
    row = KeptCheckpoint.objects.get(job=job)
    assert (row.due_at, row.why) == (None, "")
    assert row.let_go_at is not None


def test_who_computes_is_told_before_and_holds_it_behind_the_last_save() -> None:
    fleet = make_fleet(6)
    job, incident = recovered(fleet)
    told(incident)
    asked = order_of(job)
    assert orders(job)[-1].saves == (KeptSave("step_00000001-e1", ((asked.replica, asked.incarnation),)),)
    newest = bodies(job, "keep_checkpoints")[-1][0]
    assert newest.pk < bodies(job, "order_recompute")[0][0].pk
    kill_replica(fleet, job, asked.replica)
    reconcile_job(job.id)
    told(incident)
    other = order_of(job)
    assert other.replica != asked.replica
    assert orders(job)[-1].saves == (KeptSave("step_00000001-e1", ((other.replica, other.incarnation),)),)


def test_a_second_fault_within_the_recovery_takes_the_rank_that_was_told_and_another_is() -> None:
    fleet = make_fleet(6)
    job = faulty(fleet)
    assert orders(job)[-1].replica == 0
    kill_replica(fleet, job, 0)
    reconcile_job(job.id)
    look(job)
    assert (orders(job)[-1].replica, names(job)) == (2, ["step_00000001-e1"])
    assert KeptCheckpoint.objects.filter(job=job, let_go_at=None).exists()


def test_of_more_faults_than_are_kept_for_the_oldest_need_is_given_up_and_says_so() -> None:
    fleet = make_fleet(5)
    job = faulty(fleet)
    first = Incident.objects.get(job=job)
    for step in (10, 20, 30):
        saved(job, step)
        another_fault(job, step=step)
        assert len(names(job)) <= MAX_KEPT
    assert names(job) == ["step_00000020-e1", "step_00000030-e1"]
    go_on(fleet, job, first=2, until=LAST)
    Checkpoint.objects.filter(job=job, step__gt=LAST).update(epoch=99)
    over(job)
    state, check = told(first)
    assert (state, check["ok"]) == ("incomplete", None)
    assert str(check["detail"]).startswith("not judged: the checkpoint of step 1 from before the fault was given up")
    assert "2 of a job are kept" in str(check["detail"])


def test_the_one_that_is_computed_from_already_does_not_give_way() -> None:
    fleet = make_fleet(5)
    job, incident = recovered(fleet)
    told(incident)
    for step in (10, 20, 30):
        saved(job, step)
        another_fault(job, step=step)
    assert names(job) == ["step_00000001-e1", "step_00000030-e1"]
    assert KeptCheckpoint.objects.get(incident=incident).let_go_at is None


def test_a_job_that_is_cancelled_lets_go_before_its_ranks_are_stopped() -> None:
    fleet = make_fleet(5)
    job = faulty(fleet)
    hand_over(job)
    cancel_job(job.id, actor="ada", reason="over")
    reconcile_job(job.id)
    job.refresh_from_db()
    assert job.state == JobState.CANCELLED
    assert orders(job)[-1].saves == ()
    stop = bodies(job, "stop_ranks")[-1][0]
    assert bodies(job, "keep_checkpoints")[-1][0].pk < stop.pk
    row = KeptCheckpoint.objects.get(job=job)
    assert (row.due_at, row.why) == (None, "the job ended before it was judged")


def test_a_job_that_ends_well_leaves_nothing_to_be_kept() -> None:
    fleet = make_fleet(5)
    job, incident = recovered(fleet)
    told(incident)
    train_to_the_end(fleet, job)
    answer(fleet, job)
    reconcile_job(job.id)
    assert told(incident)[0] == "green"
    assert not KeptCheckpoint.objects.exclude(due_at=None).exists()


def test_an_order_that_is_lost_is_given_again_and_one_that_is_refused_gives_the_need_up() -> None:
    fleet = make_fleet(5)
    job = faulty(fleet)
    for given in range(1, MAX_LOST + 1):
        assert len(orders(job)) == given
        hand_over(job, CommandState.FAILED, "this node's policy does not allow keep_checkpoints")
        look(job)
    look(job)
    assert len(orders(job)) == MAX_LOST
    assert "does not allow keep_checkpoints" in KeptCheckpoint.objects.get(job=job).why


def test_without_a_rank_it_is_told_to_the_next_attempts() -> None:
    fleet = make_fleet(5)
    job = faulty(fleet)
    hand_over(job)
    Rank.objects.filter(replica__attempt__job=job).update(released_at=now())
    look(job)
    assert len(orders(job)) == 1
    assert KeptCheckpoint.objects.get(job=job).due_at is not None, "looked at until there is one"


def test_nothing_is_kept_where_nothing_is_ever_computed_again(settings: Settings) -> None:
    settings.RECOMPUTE_S = 0.0
    fleet = make_fleet(5)
    job = faulty(fleet)
    assert not orders(job)
    assert not Recomputation.objects.exists()
    incidents.resolve(job, "it is over", incidents.IncidentOutcome.LOST)
