"""The GPU-second ledger, built from a fleet's rows: all of its seconds, once, as the effective time has them."""

from collections import defaultdict
from datetime import datetime, timedelta
from typing import Any

import pytest

from controlplane.fleet import services, sessions
from controlplane.fleet.models import Device, Node
from controlplane.jobs.models import Attempt, Job, Rank, Replica, StepRecord
from controlplane.jobs.numbers import numbers_of, spec_of
from controlplane.policy.stepped import ClockSet
from controlplane.protocol.ledger import TimeClass
from controlplane.protocol.spec import contributing_devices
from controlplane.recovery import ledger_gauges, ledger_pass, ledger_rows
from controlplane.recovery.ledger_load import Scope
from controlplane.recovery.ledger_models import LedgerHold, LedgerMark, LedgerRun, LedgerStanding, LedgerTurn
from controlplane.recovery.ledger_view import ledger
from controlplane.recovery.models import Incident
from controlplane.runtime import events, metrics
from controlplane.runtime.clock import ago, now_s
from controlplane.runtime.models import Event
from controlplane.scheduling.models import SpareReservation
from controlplane.scheduling.services import release_all
from tests.integration.backend.builders import commit_step, make_fleet, run_job
from tests.integration.backend.test_effective_time import Told, raw_ratio

pytestmark = pytest.mark.django_db
ROWS = (LedgerRun, LedgerHold, LedgerTurn, LedgerStanding)


class Past(Told):
    """As if all that the builder made had happened when the job began."""

    def __init__(self, *, age_s: float) -> None:
        super().__init__(age_s=age_s)
        Replica.objects.update(created_at=self.began)
        Event.objects.update(at=self.began)

    def happens(self, since_seq: int) -> None:
        """What was past since then happened when the newest step was committed."""
        Event.objects.filter(seq__gt=since_seq).update(at=self.at)


def newest() -> int:
    return Event.objects.order_by("-seq").values_list("seq", flat=True)[0]


def read(past: Told, *, by: Any = "class", since: datetime | None = None, **scope: str) -> dict[str, Any]:
    """The answer until the newest step."""
    since_s = (since or past.began).timestamp()
    return ledger(Scope(**scope), by=by, since_s=since_s, until_s=past.at.timestamp(), limit=500)


def classes(found: dict[str, Any]) -> dict[str, float]:
    return {each["of"]: each["gpu_s"] for each in found["classes"] if abs(each["gpu_s"]) > 1e-6}


def stored() -> dict[str, list[tuple[Any, ...]]]:
    """All spans, without their keys."""
    found = {}
    for model in ROWS:
        names = [field.attname for field in model._meta.concrete_fields if field.name not in ("id", "restated_at")]
        found[model.__name__] = sorted(model._default_manager.values_list(*names), key=repr)
    return found


def story(past: Past) -> None:
    past.stall(17.0)
    past.steps(60, 1.0)
    past.stall(12.0)
    past.steps(1, 1.0)
    past.stall(6.0)
    past.new_view(contributors=2)
    past.steps(40, 1.5)


def test_its_productive_part_is_the_effective_time_that_raw_rows_say() -> None:
    past = Past(age_s=3000.0)
    past.steps(60, 1.0)
    for _ in range(24):
        past.stall(8.0)
        past.new_view()
        past.steps(20, 1.0)
    job = past.end()
    ledger_pass.build()
    found = read(past, job=job.id)
    assert found["ettr"] == pytest.approx(numbers_of(job).ettr, abs=1e-9)
    assert found["ettr"] == pytest.approx(raw_ratio(job, began=past.began, quiet=60), abs=0.005), "half a point"


def test_every_second_of_the_fleet_is_in_one_class_and_those_of_the_job_are_its_wall_time() -> None:
    past = Past(age_s=3000.0)
    story(past)
    job = past.end()
    ledger_pass.build()
    wall_s = (past.at - past.began).total_seconds()
    whole, devices = read(past), Device.objects.count()
    assert sum(classes(whole).values()) == pytest.approx(devices * wall_s)
    assert whole["known_gpu_s"] == pytest.approx(devices * wall_s)
    held = Rank.objects.filter(released_at=None).count()
    found = classes(read(past, job=job.id))
    wall = numbers_of(job).wall
    assert wall is not None
    assert found["productive"] == pytest.approx(held * wall.productive_s)
    assert found["degraded"] == pytest.approx(held * wall.degraded_s)
    assert found["stall"] == pytest.approx(held * wall.stalled_s)
    assert found["recovery"] == pytest.approx(held * wall.recovery_s)
    kept = SpareReservation.objects.count()
    assert classes(whole)["idle_spare"] == pytest.approx(kept * wall_s)
    assert classes(whole)["idle"] == pytest.approx((devices - held - kept) * wall_s)


@pytest.mark.parametrize("by", ["class", "cause", "job", "node"])
def test_however_it_is_asked_it_is_the_same_time(by: str) -> None:
    past = Past(age_s=3000.0)
    story(past)
    ledger_pass.build()
    whole, found = read(past), read(past, by=by)
    assert sum(row["gpu_s"] for row in found["rows"]) == pytest.approx(whole["known_gpu_s"])
    assert classes(found) == pytest.approx(classes(whole))
    nodes = [classes(read(past, by="cause", node=node.id)) for node in Node.objects.all()]
    assert sum(sum(each.values()) for each in nodes) == pytest.approx(whole["known_gpu_s"])


def test_a_stall_is_due_to_the_incident_that_was_open_and_what_comes_late_is_marked() -> None:
    past = Past(age_s=3000.0)
    past.steps(60, 1.0)
    past.stall(30.0)
    began = {"of_attempt": 1, "step": past.step - 1, "attempt": 1, "epoch": past.epoch, "clock": 0}
    past.steps(20, 1.0)
    ledger_pass.build()
    before = read(past, by="cause", job=past.job.id)
    assert before["restated_gpu_s"] == 0.0
    Incident.objects.create(
        id="inc_1", job=past.job, title="Rank 3 hangs", opened_at=past.at - timedelta(seconds=40), began=began,
        ended=began | {"step": past.step - 15}, recovered_at=past.at,
    )  # fmt: skip
    events.publish("incident.opened", "It is known late.", entity="incident", entity_id="inc_1")
    ledger_pass.build()
    found = read(past, by="cause", job=past.job.id)
    incident = next(row for row in found["rows"] if row["kind"] == "incident")
    assert (incident["id"], incident["label"]) == ("inc_1", "Rank 3 hangs")
    assert incident["classes"]["stall"] == pytest.approx(30.0 * Rank.objects.count(), rel=0.01)
    assert classes(found) == pytest.approx(classes(before)), "the time is the same, its cause is another"
    assert 0.0 < found["restated_gpu_s"] < found["known_gpu_s"]


def test_steps_that_a_restart_took_back_are_lost_work_where_they_were_trained() -> None:
    past = Past(age_s=3000.0)
    past.steps(60, 1.0)
    ledger_pass.build()
    held = Rank.objects.count()
    cut = past.at
    first = read(past, job=past.job.id)
    Attempt.objects.update(state="ended")
    second = Attempt.objects.create(
        job=past.job, number=2, layout={}, replicas=3, resume_step=40, checkpoint_dir="/ck", state="running"
    )
    Job.objects.filter(pk=past.job.pk).update(committed_step=40)
    ledger_pass.build()
    past.at = cut
    found = read(past, job=past.job.id)
    assert "lost_work" not in classes(first)
    assert classes(found)["lost_work"] == pytest.approx(20.0 * held, rel=0.01)
    assert classes(found)["productive"] + classes(found)["lost_work"] == pytest.approx(classes(first)["productive"])
    assert found["restated_gpu_s"] > 0.0
    assert second.number == 2


def test_a_cordoned_node_is_a_persons_and_a_node_out_of_sight_is_not_guessed_at() -> None:
    past = Past(age_s=3000.0)
    free = Node.objects.exclude(pk__in=Rank.objects.values("node")).order_by("name")
    cordoned, silent = free[0], free[1]
    past.steps(60, 1.0)
    seq = newest()
    services.cordon(cordoned.id, reason="fans are changed", actor="ada")
    sessions.close_session(silent.id, silent.session_id)
    past.happens(seq)
    past.steps(40, 1.0)
    ledger_pass.build()
    devices = Device.objects.filter(node=cordoned).count()
    found = read(past, by="cause")
    mine = next(row for row in found["rows"] if row["kind"] == "person")
    assert mine["label"] == "fans are changed (ada)"
    assert mine["classes"] == {"cordoned": pytest.approx(devices * 40.0)}
    unseen = classes(read(past, node=silent.id))
    assert unseen["not_observed"] == pytest.approx(Device.objects.filter(node=silent).count() * 40.0)


def test_one_pass_a_late_one_and_many_leave_the_same_rows() -> None:
    past = Past(age_s=3000.0)
    past.steps(30, 1.0)
    ledger_pass.build()
    story(past)
    seq = newest()
    services.cordon(Node.objects.exclude(pk__in=Rank.objects.values("node"))[0].id, reason="r", actor="ada")
    past.happens(seq)
    ledger_pass.build()
    ledger_pass.build()
    often = stored()
    for model in (LedgerHold, LedgerTurn, LedgerStanding, LedgerMark):
        model._default_manager.all().delete()
    LedgerRun.objects.update(judged=False, cause_kind="", cause_id="")
    ledger_pass.EVENTS_A_PIECE, kept = 3, ledger_pass.EVENTS_A_PIECE
    try:
        ledger_pass.build()
    finally:
        ledger_pass.EVENTS_A_PIECE = kept
    assert stored() == often


def test_few_rows_hold_many_steps() -> None:
    past = Past(age_s=3000.0)
    past.steps(400, 1.0)
    ledger_pass.build()
    assert StepRecord.objects.count() == 400
    assert LedgerRun.objects.count() <= 3


def test_nothing_is_said_of_what_is_not_judged_or_was_before_the_ledger() -> None:
    past = Past(age_s=600.0)
    past.steps(60, 1.0)
    assert read(past)["known_gpu_s"] == 0.0, "no pass has run"
    ledger_pass.build()
    found = ledger(Scope(), by="class", since_s=now_s() - 7200.0, until_s=now_s() + 3600.0, limit=10)
    assert found["since"] == found["known_since"]
    assert found["until"] == found["judged_until"]


def test_devices_that_a_job_asked_for_and_did_not_hold_are_demand_beside_the_ledger() -> None:
    past = Past(age_s=1000.0)
    past.steps(60, 1.0)
    Job.objects.update(created_at=past.began - timedelta(seconds=100.0))
    ledger_pass.build()
    LedgerMark.objects.update(began_s=past.began.timestamp() - 200.0)
    job = past.fresh()
    found = read(past, by="job", since=past.began - timedelta(seconds=100.0))
    mine = next(row for row in found["rows"] if row["id"] == job.id)
    assert mine["queued_gpu_s"] == pytest.approx(100.0 * contributing_devices(spec_of(job).spec))
    assert sum(mine["classes"].values()) == pytest.approx(60.0 * Rank.objects.count())


def test_money_is_a_factor_and_only_where_a_price_is_set(settings: Any) -> None:
    past = Past(age_s=1000.0)
    past.steps(60, 1.0)
    ledger_pass.build()
    assert read(past)["price"] is None
    assert all(each["money"] is None for each in read(past)["classes"])
    settings.GPU_HOUR_PRICE, settings.GPU_HOUR_CURRENCY = 2.5, "EUR"
    found = read(past)
    assert found["currency"] == "EUR"
    sums = defaultdict[str, float](float)
    for each in found["classes"]:
        sums["money"] += each["money"]
    assert sums["money"] == pytest.approx(found["known_gpu_s"] / 3600.0 * 2.5)


def test_prometheus_has_each_class_of_the_newest_hour_and_the_work_at_risk_of_the_page() -> None:
    fleet = make_fleet()
    job = run_job(fleet, steps=0)
    for step in range(20):
        commit_step(fleet, job, step)
    Event.objects.update(at=ago(60.0))
    Replica.objects.update(created_at=ago(60.0))
    Attempt.objects.update(started_at=ago(60.0))
    ledger_pass.build()
    ledger_gauges.refresh()
    found = {of: metrics.FLEET.get_sample_value("holdfast_gpu_time_seconds", {"class": of}) for of in TimeClass}
    whole = ledger(Scope(), by="class", since_s=now_s() - 3600.0, until_s=now_s(), limit=1)
    assert sum(amount or 0.0 for amount in found.values()) == pytest.approx(whole["known_gpu_s"])
    assert whole["known_gpu_s"] > 0.0
    at_risk = metrics.FLEET.get_sample_value("holdfast_job_work_at_risk_seconds", {"job_id": job.id})
    assert at_risk == pytest.approx(numbers_of(Job.objects.get(pk=job.pk)).work_at_risk_s)
    assert at_risk == pytest.approx(20 * 0.05)
    Job.objects.update(state="cancelled")
    ledger_gauges.refresh()
    assert metrics.FLEET.get_sample_value("holdfast_job_work_at_risk_seconds", {"job_id": job.id}) is None


@pytest.mark.parametrize("step_s", [3600.0, -3600.0])
def test_a_clock_that_was_set_leaves_every_length_as_it_was(step_s: float) -> None:
    past = Past(age_s=3000.0)
    past.steps(60, 1.0)
    ledger_pass.build()
    before = classes(read(past))
    set_s = now_s() + 100_000.0
    mark = LedgerMark.objects.get()
    ledger_rows.move(ClockSet(step_s=step_s, since_s=set_s, now_s=set_s + 1.0))
    assert LedgerMark.objects.get().judged_s == pytest.approx(mark.judged_s + step_s)
    past.began, past.at = (at + timedelta(seconds=step_s) for at in (past.began, past.at))
    assert {of: seconds for of, seconds in classes(read(past)).items() if of == "idle"} == pytest.approx(
        {"idle": before["idle"]}
    )
    runs = LedgerRun.objects.all()
    assert sum(run.until_s - run.from_s for run in runs) == pytest.approx(60.0)
    assert min(run.from_s for run in runs) == pytest.approx(past.began.timestamp())


def test_the_gap_in_which_the_clock_was_set_loses_the_step() -> None:
    past = Past(age_s=3000.0)
    past.steps(60, 1.0)
    set_s = past.at.timestamp() + 3600.5
    past.stall(3600.0)
    past.steps(10, 1.0)
    ledger_rows.move(ClockSet(step_s=3600.0, since_s=set_s, now_s=now_s() + 3600.0))
    lengths = [run.until_s - run.from_s for run in LedgerRun.objects.order_by("pk")]
    assert sum(lengths) == pytest.approx(70.0)
    assert min(lengths) > 0.0


@pytest.mark.parametrize("ahead_s", [0.0, 1.5, 3.0])
def test_a_clock_that_is_set_back_says_moments_once_more_and_no_run_ends_before_it_begins(ahead_s: float) -> None:
    """Runs end all through the half minute that the clock says twice, and just where it is set."""
    past = Past(age_s=3000.0)
    past.steps(60, 1.0)
    for _ in range(10):
        past.stall(4.0)
        past.steps(2, 1.0)
    past.at -= timedelta(seconds=30.0)
    set_s = past.at.timestamp()
    past.steps(4, 1.0)
    past.stall(4.0)
    ledger_rows.move(ClockSet(step_s=-30.0, since_s=set_s - 2.0, now_s=past.at.timestamp() + ahead_s))
    runs = list(LedgerRun.objects.order_by("pk"))
    assert [run.from_s for run in runs[1:]] == pytest.approx([run.until_s for run in runs[:-1]])
    assert all(run.until_s > run.from_s for run in runs)
    assert sum(run.until_s - run.from_s for run in runs) == pytest.approx(60.0 + 10 * 6.0 + 4.0)
    assert sum(run.done - run.since for run in runs) == past.step


def test_old_spans_are_forgotten_and_the_ledger_says_since_when_it_knows() -> None:
    past = Past(age_s=3000.0)
    past.steps(60, 1.0)
    ledger_pass.build()
    assert ledger_pass.forget(2000.0) > 0
    found = ledger(Scope(), by="class", since_s=now_s() - 5000.0, until_s=now_s(), limit=1)
    assert found["known_since"] == found["since"]
    assert LedgerMark.objects.get().began_s == pytest.approx(now_s() - 2000.0, abs=60.0)


def test_devices_that_are_kept_for_a_job_are_idle_spares_until_it_needs_none() -> None:
    past = Past(age_s=300.0)
    past.steps(60, 1.0)
    kept_s = SpareReservation.objects.count() * (past.at - past.began).total_seconds()
    assert kept_s > 0.0
    ledger_pass.build()
    assert classes(read(past))["idle_spare"] == pytest.approx(kept_s)
    seq, at = newest(), past.at
    past.steps(30, 1.0)
    release_all(past.job)
    Event.objects.filter(seq__gt=seq).update(at=at)
    ledger_pass.build()
    assert classes(read(past))["idle_spare"] == pytest.approx(kept_s), "no second more"
