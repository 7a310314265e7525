"""What ranks tell of their speed and their numbers, from the wire to the decision and the page."""

from datetime import timedelta

import msgspec
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from controlplane.changes.assembly.counted import idle
from controlplane.changes.due.kinds import ReadHere
from controlplane.changes.due.readback import found_here
from controlplane.checkpoints.models import Checkpoint
from controlplane.dispatch import services as dispatch
from controlplane.dispatch.models import Command
from controlplane.fleet.models import Node
from controlplane.jobs import selectors
from controlplane.jobs.models import Attempt, Job, Rank, Replica
from controlplane.protocol import frames, rest
from controlplane.protocol import spec as specs
from controlplane.protocol.commands import StartRanks, VerifyCheckpoint
from controlplane.protocol.rank import DeterminismReport, NumericsReport, SectionTime, StepReport, TimingReport
from controlplane.protocol.readback import Verdict
from controlplane.protocol.states import UNFIT
from controlplane.recovery import ledger
from controlplane.recovery.commit import commit
from controlplane.recovery.learned import timeouts_of
from controlplane.recovery.load import load_snapshot
from controlplane.recovery.models import Decision, Incident, Restart, Signal, ViewRow
from controlplane.recovery.numerics import job_numerics
from controlplane.recovery.readers import ReadingRows
from controlplane.recovery.reconcile import reconcile_job
from controlplane.recovery.speed import job_speed
from controlplane.runtime import events
from controlplane.runtime.clock import ago, now
from controlplane.runtime.locks import lock_row
from tests.integration.backend.builders import (
    Fleet,
    bodies,
    join_all,
    kill_rank,
    live_ranks,
    make_fleet,
    ref_of,
    run_job,
)

pytestmark = pytest.mark.django_db(transaction=True)
SLOW = (1, 0)


@pytest.fixture(autouse=True)
def sees(monkeypatch: pytest.MonkeyPatch) -> None:
    """No sentinel runs here: the control plane sees all of it."""
    monkeypatch.setattr("controlplane.recovery.health_gate.is_blind", lambda: False)


def timing(compute_s: float, *, data_s: float = 0.01, epoch: int = 2) -> TimingReport:
    """Ten steps of a second, the last of them in the view of `epoch`."""

    def each(seconds: float) -> SectionTime:
        return SectionTime(10, 10 * seconds, seconds, seconds)

    return TimingReport(0, 9, epoch, each(compute_s), each(data_s), each(0.1), each(0.01), each(1.0))


def read_here(job: Job, verdict: Verdict) -> None:
    """The server's own machine has read the one there is."""
    with events.unit_of_work():
        rows = ReadingRows(lock_row(Job, job.id))
        commit(found_here(rows, ReadHere(Checkpoint.objects.get().pk, "", None), verdict), rows)


def tell_all(fleet: Fleet, job: Job, *, slow_s: float, epoch: int = 2) -> None:
    """One window of every rank; rank 0 of replica 1 computes in `slow_s`, the others in 0.1 s."""
    for row in live_ranks(job):
        mine = slow_s if (row.replica.index, row.rank) == SLOW else 0.1
        fleet.tell(row.node.name, frames.RankSaid(ref_of(row), timing(mine, epoch=epoch)))


def straggler_rows() -> list[Signal]:
    return list(Signal.objects.filter(kind="straggler").order_by("id"))


def test_a_slow_rank_is_a_finding_after_two_windows_of_all_and_a_decision_with_its_sums() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    rows = live_ranks(job)
    tell_all(fleet, job, slow_s=0.4)
    for row in rows[:-1]:
        fleet.tell(row.node.name, frames.RankSaid(ref_of(row), timing(0.4 if row == rows[2] else 0.1)))
    assert straggler_rows() == []
    fleet.tell(rows[-1].node.name, frames.RankSaid(ref_of(rows[-1]), timing(0.1)))
    found = straggler_rows()
    assert [(row.replica, row.rank) for row in found] == [SLOW]
    assert found[0].value == pytest.approx(0.11 / 0.41)
    assert (found[0].threshold, found[0].evidence["cause"]) == (0.7, "compute")
    reconcile_job(job.id)
    decision = Decision.objects.get(rule="straggler")
    assert decision.choice == "move"
    assert decision.cost_gpu_s is not None
    assert decision.cost_gpu_s < decision.evidence["stay_gpu_s"]
    assert [entry.rung for entry in Restart.objects.filter(decision=decision, charged=True)] == ["replica"]
    moved = [body for _, body in bodies(job, "start_ranks") if isinstance(body, StartRanks)][-1]
    old = {(row.node_id, row.device.index) for row in rows if row.replica.index == 1}
    new = Rank.objects.filter(replica__index=1, replica__incarnation=moved.launch.incarnation)
    assert not old & {(row.node_id, row.device.index) for row in new.select_related("device")}
    assert Incident.objects.filter(job=job).count() == 1


def test_the_others_go_on_without_a_slow_one_that_has_no_other_place_and_its_device_stays_empty() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    Node.objects.exclude(pk__in={row.node_id for row in live_ranks(job)}).update(state="cordoned")
    for _ in range(2):
        tell_all(fleet, job, slow_s=0.9)
    reconcile_job(job.id)
    assert Decision.objects.get(rule="straggler").choice == "tell"
    Signal.objects.filter(kind="straggler").update(seen_at=ago(301.0))
    reconcile_job(job.id)
    assert not Decision.objects.filter(choice="go_on_without").exists(), "nobody has measured it for an interval"
    tell_all(fleet, job, slow_s=0.9)
    reconcile_job(job.id)
    decision = Decision.objects.get(rule="straggler", choice="go_on_without")
    assert decision.cost_gpu_s is not None and decision.cost_gpu_s < decision.evidence["stay_gpu_s"]
    assert [(entry.rung, entry.charged) for entry in Restart.objects.filter(decision=decision)] == [
        ("view_change", True)
    ]
    slow = Rank.objects.get(replica__index=1, replica__incarnation=1, rank=0)
    assert [(bar.node_id, bar.device_index) for bar in load_snapshot(job).bars] == [(slow.node_id, slow.device.index)]
    orders = len(bodies(job, "start_ranks"))
    for row in Rank.objects.filter(replica__index=1).select_related("node"):
        fleet.tell(row.node.name, frames.RankExited(ref_of(row), None, 9, True))
    reconcile_job(job.id)
    assert len(bodies(job, "start_ranks")) == orders, "its slot is not filled on the slow device"
    Replica.objects.filter(index=1).update(state_since=ago(3601.0))
    reconcile_job(job.id)
    assert len(bodies(job, "start_ranks")) > orders, "an hour later it is tried there again"


def test_a_rank_that_recovers_is_no_finding_any_more_and_even_windows_are_none() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    for _ in range(3):
        tell_all(fleet, job, slow_s=0.1)
    for slow_s in (0.4, 0.1, 0.4, 0.1):
        tell_all(fleet, job, slow_s=slow_s)
    assert straggler_rows() == []
    tell_all(fleet, job, slow_s=0.4)
    tell_all(fleet, job, slow_s=0.4)
    tell_all(fleet, job, slow_s=0.1)
    assert [row.settled_at is not None for row in straggler_rows()] == [True]


def test_the_page_shows_best_and_worst_and_each_ranks_scores() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    tell_all(fleet, job, slow_s=0.4)
    tell_all(fleet, job, slow_s=0.4)
    told = msgspec.convert(job_speed(job), rest.JobSpeed)
    assert (told.ranks, len(told.best), len(told.worst)) == (6, 5, 5)
    assert (told.worst[0].replica, told.worst[0].rank, told.worst[0].straggler) == (*SLOW, "relative")
    assert told.best[0].relative == 1.0
    assert [stage.stage for stage in told.stages] == [0, 1]
    ranks = [rank for replica in selectors.replicas(job) for rank in replica["ranks"]]
    slow = next(rank for rank in ranks if (rank["replica"], rank["rank"]) == SLOW)
    assert slow["speed"]["relative"] == pytest.approx(0.11 / 0.41)
    assert slow["speed"]["compute_s"] == 0.4


def test_refused_results_and_the_determinism_report_reach_the_job() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    row = live_ranks(job)[0]
    said = NumericsReport(2, 2, "gradient_not_finite", "transient", "nan", "1.5")
    for _ in range(2):
        fleet.tell(row.node.name, frames.RankSaid(ref_of(row), said))
    fleet.tell(row.node.name, frames.RankSaid(ref_of(row), DeterminismReport(9, 10, 9, 0.25)))
    reconcile_job(job.id)
    fleet.tell(row.node.name, frames.RankSaid(ref_of(row), said))
    told = msgspec.convert(job_numerics(job), rest.JobNumerics)
    assert [(finding.evidence["diagnosis"], finding.settled_at is not None) for finding in told.findings] == [
        ("transient", True)
    ]
    assert (told.steps, told.identical_steps, told.ranks[0].largest_difference) == (10, 9, 0.25)
    assert [d.choice for d in Decision.objects.filter(rule="numerics")] == ["note"]


def test_a_persistent_error_quarantines_the_node_when_the_others_commit_the_step() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    row = live_ranks(job)[0]
    refused = NumericsReport(2, 2, "loss_not_finite", "persistent", "nan", "nan")
    fleet.tell(row.node.name, frames.RankSaid(ref_of(row), refused))
    fleet.tell(row.node.name, frames.RankExited(ref_of(row), 16, None, False))
    reconcile_job(job.id)
    assert [d.choice for d in Decision.objects.filter(rule="numerics")] == ["disambiguate"]
    started = [body for _, body in bodies(job, "start_ranks") if isinstance(body, StartRanks)][-1].launch
    home = Rank.objects.filter(replica__index=started.replica, replica__incarnation=started.incarnation)
    assert row.node_id not in set(home.values_list("node_id", flat=True))
    other = next(r for r in live_ranks(job) if r.replica.index == 2)
    fleet.tell(other.node.name, frames.RankSaid(ref_of(other), StepReport(2, 3, 0.1, 64, (0,))))
    reconcile_job(job.id)
    row.node.refresh_from_db()
    assert row.node.state == "quarantined"


def test_an_attempt_without_a_newer_checkpoint_made_no_progress_however_many_steps_it_trained() -> None:
    fleet = make_fleet()
    job = run_job(fleet, steps=3)
    Attempt.objects.filter(job=job).update(state="ended", ended_at=now())
    assert idle(ledger.tries_of(job)) == 1
    _saved(job, attempt=1)
    assert idle(ledger.tries_of(job)) == 0


def test_idle_attempts_are_forgotten_once_the_one_that_lives_has_saved_and_those_ended_by_order_never_count() -> None:
    fleet = make_fleet()
    job = run_job(fleet, steps=3)
    live = Attempt.objects.get(job=job)
    Attempt.objects.filter(pk=live.pk).update(number=4)
    for number, code in ((1, "all_lost"), (2, "ordered"), (3, "all_lost")):
        Attempt.objects.create(
            job=job, number=number, state="ended", layout=live.layout, replicas=3, checkpoint_dir="/ck",
            ended_at=now(), end_code=code,
        )  # fmt: skip
    assert idle(ledger.tries_of(job)) == 2
    _saved(job, attempt=4)
    assert idle(ledger.tries_of(job)) == 0


def test_a_store_that_is_down_keeps_a_recovering_job_waiting_and_costs_it_nothing() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    for row in live_ranks(job):
        kill_rank(fleet, row)
    reconcile_job(job.id)
    answered = 3
    for tries in range(1, 4):
        orders = bodies(job, "start_ranks")[answered:]
        answered += len(orders)
        assert len(orders) == 3
        for command, _ in orders:
            why = "storage: /ck cannot be written: Input/output error"
            fleet.tell(command.node.name, frames.CommandAnswer(command.id, "failed", why, UNFIT))
        Attempt.objects.filter(job=job, number=1 + tries).update(started_at=now())  # however long this takes
        reconcile_job(job.id)
        job.refresh_from_db()
        assert (job.state, Attempt.objects.filter(end_code=UNFIT).count()) == ("pending", tries), job.state_reason
        assert "Input/output error" in job.state_reason
        assert Replica.objects.filter(refused=True).count() == 3 * tries
        Attempt.objects.filter(job=job, number=1 + tries).update(started_at=ago(61.0))
        reconcile_job(job.id)
    assert (ledger.ledger_of(job, 1).restarts, idle(ledger.tries_of(job))) == (1, 1)
    join_all(fleet, job)
    reconcile_job(job.id)
    assert ViewRow.objects.filter(job=job, attempt=5).exists(), "the store is back"


def test_an_attempt_keeps_why_it_ended() -> None:
    fleet = make_fleet()
    job = run_job(fleet)
    for row in live_ranks(job):
        kill_rank(fleet, row)
    reconcile_job(job.id)
    assert Attempt.objects.get(job=job, number=1).end_code == "no_contributor"


def test_the_next_launch_starts_from_what_the_job_has_learned_and_warm_up_steps_teach_nothing() -> None:
    fleet = make_fleet()
    job = run_job(fleet, steps=1)
    row = live_ranks(job)[0]
    reports = [StepReport(0, 2, 9.0, 64, ())]  # the first of its epoch
    reports += [StepReport(step, 2, 2.0, 64, ()) for step in range(1, 18)]
    reports += [StepReport(18, 2, 8.0, 64, (), stall_s=6.0)]  # a view change in it
    fleet.tell(row.node.name, *(frames.RankSaid(ref_of(row), report) for report in reports))
    step = next(timeout for timeout in timeouts_of(job) if timeout.section == "step")
    assert (step.value_s, step.source, step.samples, step.longest_s) == (10.0, "learned", 17, 2.0)
    kill_rank(fleet, row)
    reconcile_job(job.id)
    launch = [body for _, body in bodies(job, "start_ranks") if isinstance(body, StartRanks)][-1].launch
    assert launch.step_timeout_s == 10.0


def test_what_a_job_has_learned_is_read_once_a_decision_and_from_its_newest_steps_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = make_fleet()
    job = run_job(fleet, steps=1)
    row = live_ranks(job)[0]
    reports = [StepReport(step, 2, 9.0 if step < 3 else 2.0, 64, ()) for step in range(25)]
    fleet.tell(row.node.name, *(frames.RankSaid(ref_of(row), report) for report in reports))
    monkeypatch.setattr("controlplane.recovery.learned.RECENT_STEPS", 18)
    step = next(timeout for timeout in timeouts_of(job) if timeout.section == "step")
    assert (step.value_s, step.samples) == (10.0, 18)
    for rank in live_ranks(job):
        kill_rank(fleet, rank)
    with CaptureQueriesContext(connection) as seen:
        reconcile_job(job.id)
    assert Attempt.objects.get(job=job, number=2).replica_rows.count() == 3
    assert sum('."out_of_section_s") AS' in query["sql"] for query in seen) == 1


def test_the_other_sections_are_learned_from_setups_of_a_checkpoint_blocking_saves_and_clean_ends() -> None:
    fleet = make_fleet()
    auto = specs.Timeouts(setup_s="auto", checkpoint_s="auto", out_of_section_s="auto")
    job = run_job(fleet, resiliency=specs.Resiliency(timeouts=auto), checkpoint=specs.Checkpoint(asynchronous=False))
    rows = live_ranks(job)
    began = now()
    Rank.objects.filter(pk=rows[0].pk).update(started_at=began, joined_at=began + timedelta(seconds=8))
    Checkpoint.objects.create(
        id="ck_1", job=job, attempt=1, step=1, epoch=2, path="/ck/1", kind="scheduled", state="complete",
        started_at=began, committed_at=began, blocking_s=3.0, total_s=3.0,
    )  # fmt: skip
    assert limits(job) == {"setup": 600.0, "checkpointing": 15.0, "out_of_section": 300.0}, "it loaded no checkpoint"
    Attempt.objects.filter(job=job).update(resume_path="local:step_1", resume_step=1)
    assert limits(job)["setup"] == 600.0, "a node's own disk is no persistent tier"
    Attempt.objects.filter(job=job).update(resume_path="/ck/1")
    fleet.tell(rows[1].node.name, frames.RankExited(ref_of(rows[1]), 0, None, True, "", 4.0))
    assert limits(job) == {"setup": 40.0, "checkpointing": 15.0, "out_of_section": 20.0}
    assert load_snapshot(job).learned.setup_limit_s is None, "nobody is being set up"
    Replica.objects.filter(attempt__job=job, index=0).update(state="forming")
    assert load_snapshot(job).learned.setup_limit_s == 40.0
    ViewRow.objects.filter(job=job).update(announced_at=began - timedelta(days=1))
    assert limits(job)["setup"] == 600.0, "a replica that began after the first view had its state from a peer"


@pytest.mark.parametrize("reader", ["a node", "the server's own machine"])
def test_a_restart_waits_for_a_checkpoint_as_long_as_it_took_to_be_read_back(reader: str) -> None:
    """By default, and before any replica has loaded one: 600 s were too short for it for ever."""
    fleet = make_fleet()
    job = run_job(fleet)
    began, rows = now(), live_ranks(job)
    path = f"{job.attempts.get().checkpoint_dir}/step_1"
    Checkpoint.objects.create(
        id="ck_1", job=job, attempt=1, step=1, epoch=2, path=path, kind="scheduled", state="verified",
        layout=job.attempts.get().layout, started_at=began, committed_at=began, total_s=100.0, bytes=85_000_000_000,
    )  # fmt: skip
    if reader == "a node":
        order = VerifyCheckpoint(job_id=job.id, path=path, step=1, epoch=2, limit_s=9000.0, user="ada")
        command = dispatch.enqueue(order, node_id=rows[0].node_id, job_id=job.id, attempt=1)
        read = {"state": "succeeded", "acknowledged_at": began, "finished_at": began + timedelta(seconds=850)}
        Command.objects.filter(pk=command.pk).update(**read)
    else:
        read_here(job, Verdict(ok=True, detail="read back", took_s=850.0))
        read_here(job, Verdict(ok=True, detail="read back, from the page cache", took_s=3.0))
    assert limits(job)["setup"] == 600.0, "it has loaded none"
    for row in rows:
        kill_rank(fleet, row)
    reconcile_job(job.id)
    attempt = Attempt.objects.get(job=job, number=2)
    assert attempt.resume_path == path
    launch = [body for _, body in bodies(job, "start_ranks") if isinstance(body, StartRanks)][-1].launch
    assert launch.setup_timeout_s == limits(job)["setup"] == 4250.0
    assert load_snapshot(job).learned.setup_limit_s == 4250.0
    Attempt.objects.filter(pk=attempt.pk).update(started_at=ago(4000.0))
    Replica.objects.filter(attempt=attempt).update(state_since=ago(4000.0))
    reconcile_job(job.id)
    assert not job.attempts.filter(number=3).exists(), "it is still waited for"
    assert set(attempt.replica_rows.values_list("state", flat=True)) == {"forming"}


def limits(job: Job) -> dict[str, float]:
    """Seconds of each section but the step."""
    return {str(found.section): found.value_s for found in timeouts_of(job) if found.section != "step"}


def _saved(job: Job, *, attempt: int) -> None:
    Checkpoint.objects.create(
        id="ck_1", job=job, attempt=attempt, step=3, epoch=2, path="/ck/3", kind="interval", state="complete",
        started_at=now(), committed_at=now(),
    )  # fmt: skip
