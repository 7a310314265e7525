"""A step of a recovery computed again by the job's own replica: what is ordered, how long the job's
end waits, and what the certificate says of it."""

import msgspec
import pytest
from django.conf import settings
from django.db import connection
from django.test.utils import CaptureQueriesContext
from pytest_django.fixtures import Settings

from controlplane.checkpoints.models import Checkpoint
from controlplane.dispatch.models import Command
from controlplane.jobs.models import Attempt, Job, Rank, StepRecord
from controlplane.protocol import frames
from controlplane.protocol.commands import OrderRecompute
from controlplane.protocol.rank import RecomputeReport, TrainingDone
from controlplane.protocol.recompute import RecomputedStep
from controlplane.protocol.states import CheckpointState, CommandState, JobState
from controlplane.recovery import course, recompute
from controlplane.recovery.certificate import certify
from controlplane.recovery.models import Incident, Recomputation, RecomputedRank
from controlplane.recovery.reconcile import reconcile_job
from controlplane.runtime.clock import ago, now
from tests.integration.backend.builders import Fleet, bodies, kill_rank, live_ranks, make_fleet, ref_of, run_job
from tests.integration.backend.test_certificates import go_on, kill_replica, resolved

pytestmark = pytest.mark.django_db
LAST = 8
RANKS = 1_000


@pytest.fixture(autouse=True)
def _no_run_on_the_server(settings: Settings) -> None:
    """As where the server has no trainer, or does not see the checkpoints."""
    settings.REFERENCE_RUNS = False


def recovered(fleet: Fleet, *, saved: bool = True, **changes: object) -> tuple[Job, Incident]:
    """Replica 1 died in step 2, behind the save of step 1, and training went on without it."""
    job = run_job(fleet, **changes)
    if saved:
        Checkpoint.objects.create(
            id="ckpt_1", job=job, attempt=1, step=1, epoch=job.epoch, path=f"/checkpoints/{job.id}/step_00000001-e1",
            kind="interval", state=CheckpointState.VERIFIED, started_at=ago(60.0), committed_at=ago(55.0),
        )  # fmt: skip
    kill_replica(fleet, job, 1)
    reconcile_job(job.id)
    go_on(fleet, job, first=2, until=LAST)
    return Job.objects.get(pk=job.id), settled(job)


def settled(job: Job) -> Incident:
    """As `resolved`, and the steps behind step 2 came after the recovery."""
    incident = resolved(job)
    StepRecord.objects.filter(job=job, step__gt=2).update(at=ago(10.0))
    Attempt.objects.filter(job=job).update(started_at=ago(70.0))
    Incident.objects.filter(pk=incident.pk).update(ended=course.mark(job, ago(20.0)))
    incident.refresh_from_db()
    return incident


def order_of(job: Job) -> OrderRecompute:
    """The newest that was given."""
    found = [body for _, body in bodies(job, "order_recompute")][-1]
    assert isinstance(found, OrderRecompute)
    return found


def ranks_asked(job: Job) -> list[Rank]:
    order = order_of(job)
    return [row for row in live_ranks(job) if row.replica.index == order.replica]


def another_recovery(incident: Incident, name: str) -> Incident:
    """One like it, of the same job."""
    again = Incident.objects.get(pk=incident.pk)
    again.pk, again.certificate, again.certificate_due_at = name, None, now()
    again.save(force_insert=True)
    return again


def answer(
    fleet: Fleet,
    job: Job,
    *,
    loss: float = 4.0,
    state: str = "same",
    error: str = "",
    body: OrderRecompute | None = None,
) -> None:
    """Each rank that was asked tells what it computed again; `commit_step` told 4.0 and "same-..."."""
    given = body or order_of(job)
    order = given.order
    numbers = tuple(RecomputedStep(step, loss, 1.0) for step in range(order.from_step, order.until_step))
    for row in [each for each in live_ranks(job) if each.replica.index == given.replica]:
        digest = "" if error else f"{state}-{order.until_step - 1}-{row.rank}"
        said = RecomputeReport(order.order_id, () if error else numbers, digest, "cpu", 2.0, error)
        fleet.tell(row.node.name, frames.RankSaid(ref_of(row), said))


def train_to_the_end(fleet: Fleet, job: Job) -> None:
    for row in live_ranks(job):
        fleet.tell(row.node.name, frames.RankSaid(ref_of(row), TrainingDone(LAST)))
    reconcile_job(job.id)


def told(incident: Incident) -> tuple[str, dict[str, object]]:
    """The certificate's verdict, and its check of the recomputed step."""
    certificate = certify(Incident.objects.get(pk=incident.pk))
    check = next(each for each in certificate["checks"] if each["name"] == "step_recomputed")
    return certificate["state"], check


def test_a_sampled_step_is_ordered_of_a_replica_that_was_not_replaced() -> None:
    fleet = make_fleet(5)
    job, incident = recovered(fleet)
    state, check = told(incident)
    assert (state, check["ok"]) == ("pending", None)
    assert "not judged yet" in str(check["detail"])
    order = order_of(job)
    assert order.replica != 1
    assert order.order.from_step == 1
    assert 3 < order.order.until_step <= LAST, "a step after the recovery"
    assert order.order.path.endswith("step_00000001-e1")
    spans = order.order.spans
    assert [share.replica for share in spans[0].shares] == [0, 1, 2], "step 1 was trained by all three"
    assert [share.replica for share in spans[-1].shares] == [0, 2], "the last without the one that died"
    held = [number for share in spans[-1].shares for part in share.parts for number in part]
    assert sorted(held) == list(range(12))
    told(incident)
    assert len({body.order.order_id for _, body in bodies(job, "order_recompute")}) == 1  # type: ignore[union-attr]


def test_a_certificate_waits_for_the_first_steps_after_the_recovery() -> None:
    fleet = make_fleet(5)
    job, incident = recovered(fleet)
    StepRecord.objects.filter(job=job, step__gt=2).update(at=ago(25.0))
    Incident.objects.filter(pk=incident.pk).update(ended=course.mark(job, ago(20.0)))
    incident.refresh_from_db()
    assert certify(incident)["state"] == "pending", "the other checks are judged, and no step can be sampled yet"
    StepRecord.objects.filter(job=job, step__gt=5).update(at=ago(10.0))
    Incident.objects.filter(pk=incident.pk).update(ended=course.mark(job, ago(20.0)))
    incident.refresh_from_db()
    state, _ = told(incident)
    assert state == "pending"
    assert order_of(job).order.until_step > 6


def test_the_jobs_end_waits_for_it_and_the_certificate_is_green_then() -> None:
    fleet = make_fleet(5)
    job, incident = recovered(fleet)
    told(incident)
    train_to_the_end(fleet, job)
    job.refresh_from_db()
    assert job.trained
    assert job.state in (JobState.RUNNING, JobState.RECOVERING)
    assert not bodies(job, "stop_ranks"), "nobody is stopped while it computes"
    answer(fleet, job)
    reconcile_job(job.id)
    job.refresh_from_db()
    assert job.state == JobState.SUCCEEDED
    state, check = told(incident)
    assert (state, check["ok"]) == ("green", True), check
    for words in ("at its end, from the checkpoint of step 1", "compared by loss and gradient norm", "may be off by"):
        assert words in str(check["detail"])


@pytest.mark.parametrize("planted", [{"loss": 4.01}, {"loss": None}])
def test_a_number_that_comes_out_as_another_is_red(planted: dict[str, float]) -> None:
    fleet = make_fleet(5)
    job, incident = recovered(fleet)
    told(incident)
    train_to_the_end(fleet, job)
    if planted["loss"] is None:
        order = order_of(job).order
        said = RecomputeReport(order.order_id, (RecomputedStep(1, None, None, False),), "", "cpu", 2.0)
        for row in ranks_asked(job):
            fleet.tell(row.node.name, frames.RankSaid(ref_of(row), said))
    else:
        answer(fleet, job, **planted)  # type: ignore[arg-type]
    state, check = told(incident)
    assert (state, check["ok"]) == ("red", False)


def test_another_state_from_the_same_sums_is_red() -> None:
    fleet = make_fleet(5)
    job, incident = recovered(fleet)
    told(incident)
    Recomputation.objects.filter(job=job).update(exact=True)
    answer(fleet, job, state="other")
    state, check = told(incident)
    assert (state, check["ok"]) == ("red", False)
    assert "from the same sums in the same order" in str(check["detail"])


def test_a_checkpoint_that_is_gone_is_said_and_never_green() -> None:
    fleet = make_fleet(5)
    job, incident = recovered(fleet)
    told(incident)
    train_to_the_end(fleet, job)
    answer(fleet, job, error="StorageAway: it cannot be read")
    state, check = told(incident)
    assert (state, check["ok"]) == ("incomplete", None)
    assert check["detail"].endswith("not judged: StorageAway: it cannot be read")  # type: ignore[union-attr]


def test_a_replica_that_dies_over_it_holds_no_end_up() -> None:
    fleet = make_fleet(5)
    job, incident = recovered(fleet)
    told(incident)
    train_to_the_end(fleet, job)
    kill_rank(fleet, ranks_asked(job)[0])
    reconcile_job(job.id)
    job.refresh_from_db()
    assert job.state == JobState.SUCCEEDED
    assert not Incident.objects.filter(job=job).exclude(pk=incident.pk).exists(), "nothing of the training was lost"
    state, check = told(incident)
    assert (state, check["ok"]) == ("incomplete", None)
    assert "not judged: the job ended before" in str(check["detail"])


def test_the_end_does_not_wait_longer_than_was_said() -> None:
    fleet = make_fleet(5)
    job, incident = recovered(fleet)
    told(incident)
    train_to_the_end(fleet, job)
    Recomputation.objects.filter(job=job).update(due_at=ago(1.0))
    reconcile_job(job.id)
    job.refresh_from_db()
    assert job.state == JobState.SUCCEEDED


def test_a_job_that_ends_otherwise_leaves_its_certificate_incomplete() -> None:
    fleet = make_fleet(5)
    job, incident = recovered(fleet)
    told(incident)
    Job.objects.filter(pk=job.pk).update(state=JobState.CANCELLED, finished_at=now())
    state, check = told(incident)
    assert (state, check["ok"]) == ("incomplete", None)
    assert Incident.objects.get(pk=incident.pk).certificate_due_at is None, "it is final"


def test_two_recoveries_are_computed_again_by_two_replicas_and_a_third_says_that_no_more_are() -> None:
    fleet = make_fleet(6)
    job, incident = recovered(fleet)
    told(incident)
    state, check = told(another_recovery(incident, "inc_again"))
    assert (state, check["ok"]) == ("pending", None)
    asked = {body.replica for _, body in bodies(job, "order_recompute")}  # type: ignore[union-attr]
    assert len(asked) == 2, "two at a time take half as long"
    state, check = told(another_recovery(incident, "inc_third"))
    assert (state, check["ok"]) == ("incomplete", None)
    assert "steps of 2 other recoveries of this job" in str(check["detail"])
    train_to_the_end(fleet, job)
    for _, body in bodies(job, "order_recompute"):
        assert Job.objects.get(pk=job.pk).state != JobState.SUCCEEDED, "both are waited for"
        answer(fleet, job, body=body)  # type: ignore[arg-type]
        reconcile_job(job.id)
    assert Job.objects.get(pk=job.pk).state == JobState.SUCCEEDED
    assert told(incident)[0] == told(Incident.objects.get(pk="inc_again"))[0] == "green"


def test_one_replica_that_has_two_orders_has_the_time_for_two() -> None:
    fleet = make_fleet(6)
    job, incident = recovered(fleet)
    told(incident)
    told(another_recovery(incident, "inc_again"))
    first = Recomputation.objects.get(incident=incident)
    Recomputation.objects.filter(job=job).update(replica=first.replica, incarnation=first.incarnation)
    train_to_the_end(fleet, job)
    due = {row.due_at for row in Recomputation.objects.filter(job=job) if row.due_at}
    assert all((at - now()).total_seconds() > settings.RECOMPUTE_S + 2 * recompute.MARGIN_S for at in due)


def test_an_order_that_its_nodes_refuse_is_given_up() -> None:
    fleet = make_fleet(5)
    job, incident = recovered(fleet)
    for _ in range(8):
        told(incident)
        sent = Command.objects.filter(job=job, kind="order_recompute")
        sent.update(state=CommandState.FAILED, detail="this node's policy does not allow order_recompute")
    state, check = told(incident)
    assert (state, check["ok"]) == ("incomplete", None)
    assert "does not allow order_recompute" in str(check["detail"])
    assert sent.count() <= 6


def test_another_replica_is_ordered_where_the_first_one_died_before_the_end() -> None:
    fleet = make_fleet(6)
    job, incident = recovered(fleet)
    told(incident)
    first = order_of(job)
    kill_replica(fleet, job, first.replica)
    reconcile_job(job.id)
    told(incident)
    assert order_of(job).replica != first.replica
    assert order_of(job).order.order_id == first.order.order_id


def test_without_a_checkpoint_from_before_nothing_is_ordered() -> None:
    fleet = make_fleet(5)
    job, incident = recovered(fleet, saved=False)
    certificate = certify(incident)
    assert not bodies(job, "order_recompute")
    assert "loss_matches_reference" in {check["name"] for check in certificate["checks"]}


def test_an_agent_of_an_older_release_is_not_asked() -> None:
    fleet = make_fleet(5)
    job, incident = recovered(fleet)
    for node in fleet.nodes.values():
        node.revision = 2
        node.save(update_fields=["revision"])
    told(incident)
    assert not bodies(job, "order_recompute")


def test_a_report_of_a_replica_that_was_not_asked_changes_nothing() -> None:
    fleet = make_fleet(5)
    job, incident = recovered(fleet)
    told(incident)
    order = order_of(job)
    said = RecomputeReport(order.order.order_id, (), "f" * 32, "cpu", 1.0)
    stranger = next(row for row in live_ranks(job) if row.replica.index != order.replica)
    fleet.tell(stranger.node.name, frames.RankSaid(ref_of(stranger), said))
    assert not RecomputedRank.objects.exists()
    assert msgspec.json.encode(said)


def test_what_a_thousand_ranks_tell_is_written_once_each() -> None:
    """A write a rank, of one size however many told before it, and of no row that two of them share."""
    fleet = make_fleet(5)
    job, incident = recovered(fleet)
    told(incident)
    asked, order = ranks_asked(job)[0], order_of(job).order
    Recomputation.objects.filter(job=job).update(ranks=RANKS)
    same = {"replica": asked.replica, "node": asked.node, "device": asked.device, "released_at": now()}
    Rank.objects.bulk_create([Rank(rank=number, **same) for number in range(2, RANKS)])
    numbers = tuple(RecomputedStep(step, 4.0, 1.0) for step in range(order.from_step, order.until_step))
    written: list[int] = []
    for row in Rank.objects.filter(replica=asked.replica).select_related("replica__attempt").order_by("rank"):
        digest = f"same-{order.until_step - 1}-{row.rank}"
        with CaptureQueriesContext(connection) as queries:
            recompute.take(row, RecomputeReport(order.order_id, numbers, digest, "cpu", 2.0))
        writes = [each["sql"] for each in queries if each["sql"].startswith(("INSERT", "UPDATE"))]
        assert len(writes) == 1
        assert "recomputedrank" in writes[0]
        written.append(len(writes[0]))
    assert len(written) == RANKS
    assert max(written) < min(written) + 40, "the last writes no more than the first"
    assert not Recomputation.objects.get(job=job).is_open
    recompute.take(asked, RecomputeReport(order.order_id, (), "other", "cpu", 2.0))
    assert told(incident)[0] == "green", "what a rank repeats changes nothing"
