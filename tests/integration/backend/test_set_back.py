"""A database that was set back goes on from where the agents are (O3, F29)."""

import msgspec
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from controlplane.access.models import AuditEntry
from controlplane.dispatch.models import Command
from controlplane.fleet.models import Node
from controlplane.jobs.models import Attempt, Job, Rank
from controlplane.jobs.services import cancel_job
from controlplane.protocol.commands import DeliverView, StartRanks, StopRanks
from controlplane.protocol.frames import JobSeen, RankStatus
from controlplane.protocol.launch import RankRef
from controlplane.protocol.states import Phase, RankState, Section
from controlplane.recovery import ingest
from controlplane.recovery.hello import MAX_UNKNOWN
from controlplane.recovery.reconcile import reconcile_job
from controlplane.runtime import keys
from controlplane.runtime.models import Event, FrameCounter
from tests.integration.backend.builders import Fleet, bodies, hello, live_ranks, make_fleet, make_job, ref_of, run_job

pytestmark = pytest.mark.django_db(transaction=True)
QUERIES_A_HELLO = 40


def alive(ref: RankRef, device_index: int) -> RankStatus:
    return RankStatus(
        ref=ref, state=RankState.TRAINING, pid=7, device_index=device_index, section=Section.STEP,
        phase=Phase.COMPUTE, step=9, phase_age_s=0.0, silent_s=0.0,
    )  # fmt: skip


def here(name: str) -> tuple[RankStatus, ...]:
    """The ranks of this database that live on the node."""
    rows = Rank.objects.filter(node__name=name, released_at=None).select_related("replica__attempt", "device")
    return tuple(alive(ref_of(row), row.device.index) for row in rows)


def back(fleet: Fleet, name: str, *jobs: JobSeen, ranks: tuple[RankStatus, ...], seq: int = 5000) -> None:
    """The agent's first session with the restored server, then the one of its new journal."""
    for session, journal, first in (("restored", "journal", seq), ("renewed", "journal2", 1)):
        said = msgspec.structs.replace(hello(name, journal=journal), jobs=jobs, ranks=ranks, first_unacked_seq=first)
        ingest.open_session(fleet.nodes[name].id, f"web.{name}.{session}", said)


def seen(job: Job, **changes: object) -> JobSeen:
    values = {"job_id": job.id, "attempt": 1, "epoch": job.epoch} | changes
    return JobSeen(**values)  # type: ignore[arg-type]


def fresh(job: Job) -> Job:
    return Job.objects.get(pk=job.id)


def stops_of(name: str) -> list[StopRanks]:
    rows = Command.objects.filter(node__name=name, kind="stop_ranks").order_by("id")
    return [msgspec.convert(row.body, StopRanks) for row in rows]


@pytest.mark.parametrize("ahead", [1, 7, 1000])
def test_agents_in_a_newer_epoch_keep_their_ranks_and_get_a_view_newer_than_theirs(ahead: int) -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    theirs = fresh(job).epoch + ahead
    ranks = {row.pk for row in live_ranks(job)}
    nodes = {row.node.name for row in live_ranks(job)}
    newest = Command.objects.order_by("-id").values_list("id", flat=True).first() or ""
    for name in sorted(nodes):
        back(fleet, name, seen(job, epoch=theirs), ranks=here(name))
    assert fresh(job).epoch == theirs
    reconcile_job(job.id)
    views = [body.view for _, body in bodies(job, "deliver_view") if isinstance(body, DeliverView)]
    assert (views[-1].epoch, len(views[-1].members)) == (theirs + 1, 3)
    assert {row.pk for row in live_ranks(job)} == ranks
    assert not Command.objects.filter(id__gt=newest, epoch__lt=theirs).exists(), "an order older than the agents'"
    assert not Command.objects.filter(kind="stop_ranks").exists()
    assert Event.objects.filter(kind="job.set_back", job_id=job.id).exists()


def test_a_cancel_after_the_restore_orders_the_stop_of_what_the_agents_have() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    theirs = fresh(job).epoch + 4
    for name in ("n1", "n2", "n3"):
        back(fleet, name, seen(job, epoch=theirs), ranks=here(name))
    cancel_job(job.id, reason="drill", actor="ada")
    reconcile_job(job.id)
    assert fresh(job).state == "cancelled"
    rows = Command.objects.filter(kind="stop_ranks")
    assert {(row.node.name, row.epoch >= theirs) for row in rows} == {("n1", True), ("n2", True), ("n3", True)}
    assert {msgspec.convert(row.body, StopRanks).final for row in rows} == {"cancelled"}


def test_ranks_of_a_job_begun_after_the_backup_are_told_of_and_stopped_once_with_time_to_save() -> None:
    fleet = make_fleet(1)
    stranger = RankRef("job_late", 2, 0, 3, 0)
    other = RankRef("job_late", 2, 0, 3, 1)
    for _ in range(2):
        back(fleet, "n1", JobSeen(job_id="job_late", attempt=2, epoch=9), ranks=(alive(stranger, 0), alive(other, 1)))
    (stop,) = stops_of("n1")
    assert (stop.job_id, stop.attempt, stop.replica, stop.incarnation) == ("job_late", 2, 0, 3)
    assert stop.grace_s > 0
    told = Event.objects.filter(kind="node.unknown_ranks").get()
    assert "job_late" in told.sentence
    assert AuditEntry.objects.filter(action="node.unknown_ranks").count() == 1


def test_a_node_that_lists_more_ranks_than_it_can_have_costs_the_others_no_more_than_its_devices_would() -> None:
    fleet = make_fleet(1)
    for turn in (1, 2):
        ranks = tuple(alive(RankRef(f"job_{each % 3}", turn, each, turn, 0), each) for each in range(512))
        back(fleet, "n1", JobSeen(job_id="job_0", attempt=1, epoch=1), ranks=ranks)
        assert len(stops_of("n1")) == MAX_UNKNOWN, "the rest waits until these are over"
        assert AuditEntry.objects.filter(action="node.unknown_ranks").count() == 1
        assert Event.objects.count() < 3 * MAX_UNKNOWN
    told = Event.objects.filter(kind="node.unknown_ranks").get()
    assert "runs 64 replicas" in told.sentence and "448 more wait for their turn" in told.sentence
    stops_of("n1")
    Command.objects.filter(kind="stop_ranks").update(state="succeeded")
    back(fleet, "n1", JobSeen(job_id="job_0", attempt=1, epoch=1), ranks=ranks[100:103])
    assert len(stops_of("n1")) == MAX_UNKNOWN + 3, "their turn has come"


@pytest.mark.parametrize("end", ["cancelled", "failed", "succeeded"])
def test_a_job_that_ended_after_the_backup_is_not_started_again(end: str) -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    starts = len(bodies(job, "start_ranks"))
    signature = keys.sign_end(job.id, 1, end)
    back(fleet, "n1", seen(job, end=end, end_signature=signature), ranks=())
    reconcile_job(job.id)
    assert fresh(job).state == end
    assert "had ended already" in fresh(job).state_reason
    for name in ("n2", "n3"):
        back(fleet, name, seen(job, end=end, end_signature=signature), ranks=())
    reconcile_job(job.id)
    assert len(bodies(job, "start_ranks")) == starts
    assert not Rank.objects.filter(replica__attempt__job=job, released_at=None).exists()
    assert AuditEntry.objects.filter(action="job.set_back", subject=job.id).exists()


def test_an_attempt_begun_after_the_backup_is_ended_and_the_next_one_has_a_newer_number() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    stranger = RankRef(job.id, 4, 0, 6, 0)
    back(fleet, "n1", seen(job, attempt=4, epoch=40), ranks=(alive(stranger, 0),))
    for name in ("n2", "n3"):
        back(fleet, name, seen(job, attempt=4, epoch=40), ranks=())
    for _ in range(4):
        reconcile_job(job.id)
    (stop, *_) = [stop for stop in stops_of("n1") if stop.attempt == 4]
    assert (stop.replica, stop.incarnation) == (0, 6)
    assert Attempt.objects.filter(job=job).order_by("-number").values_list("number", flat=True)[0] == 5
    newest = [
        row for row, body in bodies(job, "start_ranks") if isinstance(body, StartRanks) and body.launch.attempt == 5
    ]
    assert newest
    assert min(row.epoch for row in newest) > 40


def test_a_replacement_begun_after_the_backup_is_stopped_and_its_successor_is_newer() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    gone = next(row for row in live_ranks(job) if row.node.name == "n1")
    replacement = RankRef(job.id, 1, gone.replica.index, 5, 0)
    fence = seen(job, epoch=job.epoch + 6, incarnations={gone.replica.index: 5})
    back(fleet, "n1", fence, ranks=(alive(replacement, 0),))
    for name in ("n2", "n3"):
        back(fleet, name, fence, ranks=here(name))
    for _ in range(6):
        reconcile_job(job.id)
    assert any((stop.replica, stop.incarnation) == (replacement.replica, 5) for stop in stops_of("n1"))
    later = [
        body.launch.incarnation
        for row, body in bodies(job, "start_ranks")
        if isinstance(body, StartRanks) and body.launch.replica == replacement.replica
    ]
    assert [number for number in later if number > 1] == [6]


def test_a_node_without_the_jobs_ranks_can_neither_end_it_nor_move_its_epoch() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    epoch = fresh(job).epoch
    idle = next(name for name in fleet.nodes if not here(name))
    back(fleet, idle, seen(job, epoch=epoch + 9, end="cancelled"), ranks=())
    reconcile_job(job.id)
    assert (fresh(job).state, fresh(job).epoch) == ("running", epoch)


@pytest.mark.parametrize("end", ["cancelled", "failed"])
@pytest.mark.parametrize("signed", ["", "another job", "another end", "garbage"])
def test_a_nodes_own_word_ends_no_job(end: str, signed: str) -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    signature = {
        "another job": keys.sign_end("job_other", 1, end),
        "another end": keys.sign_end(job.id, 1, "succeeded"),
        "garbage": "A" * 86,
    }.get(signed, "")
    back(fleet, "n1", seen(job, end=end, end_signature=signature), ranks=here("n1"))
    reconcile_job(job.id)
    assert (fresh(job).state, fresh(job).ahead.get("end")) == ("running", None)


def test_a_node_that_knows_of_a_newer_attempt_and_has_no_rank_here_moves_the_next_attempt_alone() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    epoch = fresh(job).epoch
    idle = next(name for name in fleet.nodes if not here(name))
    back(fleet, idle, seen(job, attempt=2, epoch=epoch + 9, incarnations={0: 7}), ranks=())
    reconcile_job(job.id)
    assert fresh(job).epoch == epoch, "no view is given up for it"
    assert fresh(job).ahead == {"attempt": 2, "epoch": epoch + 9}


def test_a_node_is_believed_for_its_own_replicas_and_no_number_without_bounds() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    mine = {row.replica.index for row in live_ranks(job) if row.node.name == "n1"}
    claims = dict.fromkeys(range(8), 5) | dict.fromkeys(mine, 2**31 - 1)
    back(fleet, "n1", seen(job, epoch=fresh(job).epoch + 1, incarnations=claims), ranks=here("n1"))
    assert "incarnations" not in fresh(job).ahead


def test_an_implausible_fence_is_refused_and_counted() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    epoch = fresh(job).epoch
    back(fleet, "n1", seen(job, epoch=1 << 40, attempt=1 << 20), ranks=here("n1"))
    assert fresh(job).epoch == epoch
    assert FrameCounter.objects.filter(reason="implausible_fence").exists()


def test_a_rank_whose_start_was_told_after_the_backup_counts_as_started_and_joined() -> None:
    fleet = make_fleet()
    job = make_job()
    reconcile_job(job.id)
    for name in ("n1", "n2", "n3"):
        back(fleet, name, seen(job, epoch=fresh(job).epoch + 1), ranks=here(name))
    reconcile_job(job.id)
    assert len(live_ranks(job)) == 6
    assert [body for _, body in bodies(job, "deliver_view")], "its ranks get a view"


def test_an_ordinary_reconnect_changes_no_epoch_and_no_view() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    before = (fresh(job).epoch, Command.objects.count())
    for name in ("n1", "n2", "n3"):
        said = msgspec.structs.replace(
            hello(name),
            ranks=here(name),
            jobs=(seen(job, epoch=before[0], end="succeeded"),),
            first_unacked_seq=Node.objects.get(name=name).last_event_seq + 1,
        )
        ingest.open_session(fleet.nodes[name].id, f"web.{name}.again", said)
    reconcile_job(job.id)
    assert (fresh(job).epoch, Command.objects.count()) == before
    assert not Event.objects.filter(kind="job.set_back").exists()


@pytest.mark.parametrize("jobs", [10, 120])
def test_a_reconnect_asks_no_more_of_the_database_for_jobs_that_are_over(jobs: int) -> None:
    fleet = make_fleet(1)
    over = [
        Job.objects.create(id=f"job_{number}", name=f"over-{number}", spec={}, state="succeeded")
        for number in range(jobs)
    ]
    fences = tuple(JobSeen(job_id=job.id, attempt=3, epoch=9, end="succeeded") for job in over)
    with CaptureQueriesContext(connection) as asked:
        ingest.open_session(fleet.nodes["n1"].id, "web.again", msgspec.structs.replace(hello("n1"), jobs=fences))
    assert len(asked) < QUERIES_A_HELLO
    assert not Event.objects.filter(kind="job.set_back").exists()
