"""Steps that are older than is kept are one row for a hundred: charts read both, no figure moves, and what a
certificate rests on stays whole."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from controlplane.config.env import Env
from controlplane.jobs import selectors, step_rollups, step_rows
from controlplane.jobs.models import Attempt, Job, JobPace, StepPart, StepRecord, StepRollup
from controlplane.jobs.numbers import numbers_of
from controlplane.protocol.states import IncidentState
from controlplane.recovery import forgetting
from controlplane.recovery.models import Incident
from controlplane.recovery.resumption_models import Resumption
from controlplane.runtime.clock import ago, now
from controlplane.sentinel.tasks import DAY_S, retention
from tests.integration.backend.builders import commit_step, make_fleet, run_job

pytestmark = pytest.mark.django_db(transaction=True)
KEPT_S, OLD_S = 30 * DAY_S, 40 * DAY_S
STEPS = step_rollups.NEWEST + 1_200
IDS = {"0": list(range(0, 12, 3)), "1": list(range(1, 12, 3)), "2": list(range(2, 12, 3))}


def trained(*, steps: int = STEPS, age_s: float = OLD_S, attempt: int = 1) -> Job:
    """A job that committed so many steps a second apart, all of which are so old."""
    job = run_job(make_fleet(), steps=0)
    rows(job, steps=steps, age_s=age_s, attempt=attempt)
    Job.objects.filter(pk=job.pk).update(committed_step=steps)
    JobPace.objects.update_or_create(job=job, defaults={"pace": {}, "trained_s": float(steps)})
    return Job.objects.get(pk=job.pk)


def rows(job: Job, *, steps: int, age_s: float, attempt: int = 1) -> None:
    StepRecord.objects.bulk_create(
        StepRecord(
            job=job, attempt=attempt, step=step, epoch=2, at=ago(age_s - step), loss=4.0 - step * 1e-3, grad_norm=1.0,
            step_time_s=1.0 + step % 100 * 1e-2, exchange_s=0.25, stall_s=3.0 if step == 150 else 0.0, tokens=64,
            contributors=2 if step == 250 else 3, micro_batches=IDS if step != 350 else {"0": [0]},
            parameter_hashes={"0": {"0": "a", "1": "b" if step == 450 else "a"}},
        )
        for step in range(steps)
    )  # fmt: skip


def incident(job: Job, since: int, until: int, **changes: Any) -> Incident:
    """A recovery between these steps, settled unless it is said otherwise."""
    marks = {"of_attempt": 1, "attempt": 1, "epoch": 2, "clock": 0}
    values = {
        "state": IncidentState.RESOLVED,
        "resolved_at": now(),
        "certificate": {"state": "green", "checks": []},
        "began": marks | {"step": since},
        "ended": marks | {"step": until},
    }
    return Incident.objects.create(
        id=f"inc_{since}", job=job, title="Rank 0 ended", opened_at=ago(OLD_S), **(values | changes)
    )


def left(job: Job) -> set[int]:
    return set(StepRecord.objects.filter(job=job).values_list("step", flat=True))


def test_old_steps_are_one_row_for_a_hundred_and_the_newest_stay() -> None:
    job = trained()
    removed = forgetting.forget_steps(KEPT_S)
    around = forgetting.AROUND_A_RESUME
    assert left(job) == {*range(around + 1), *range(STEPS - step_rollups.NEWEST, STEPS)}
    assert removed == STEPS - len(left(job))
    assert StepRollup.objects.filter(job=job).count() == 12
    row = StepRollup.objects.get(job=job, bucket=1)
    assert (row.first, row.last, row.steps, row.stall_s, row.exact, row.equal) == (100, 199, 100, 3.0, True, True)
    assert row.loss == pytest.approx(4.0 - 149.5e-3)
    assert row.step_time_s == pytest.approx(1.495)
    assert forgetting.forget_steps(KEPT_S) == 0, "what is done stays done"


def test_what_was_wrong_with_one_step_is_said_of_its_roll_up() -> None:
    job = trained()
    forgetting.forget_steps(KEPT_S)
    said = {row.bucket: (row.contributors, row.exact, row.equal) for row in StepRollup.objects.filter(job=job)}
    assert said[1] == (3, True, True)
    assert said[2] == (2, True, True)
    assert said[3][1] is False
    assert said[4][2] is False


def test_no_figure_of_the_job_moves() -> None:
    job = trained()
    before = numbers_of(job)
    sums = JobPace.objects.get(job=job).trained_s, job.committed_step
    assert forgetting.forget_steps(KEPT_S) > 0
    fresh = Job.objects.get(pk=job.pk)
    assert (JobPace.objects.get(job=job).trained_s, fresh.committed_step) == sums
    after = numbers_of(fresh)
    for name in ("step_time_s", "loss", "learned_step_s", "ettr", "undisturbed_step_s", "total_steps", "restarts"):
        assert getattr(after, name) == getattr(before, name), name


def test_a_job_whose_sums_are_not_kept_apart_keeps_its_steps() -> None:
    job = trained()
    JobPace.objects.filter(job=job).update(trained_s=None)
    assert forgetting.forget_steps(KEPT_S) == 0


def test_a_chart_goes_from_the_first_step_to_the_newest_as_before() -> None:
    job = trained()
    before = selectors.steps(job, points=200)
    forgetting.forget_steps(KEPT_S)
    after = selectors.steps(job, points=200)
    assert [point["step"] for point in after] == sorted({point["step"] for point in after})
    assert (after[0]["step"], after[-1]) == (before[0]["step"], before[-1])
    assert len(after) <= 200
    whole = [point for point in after if point["step"] >= STEPS - step_rollups.NEWEST]
    assert whole == [point for point in before if point["step"] >= STEPS - step_rollups.NEWEST]
    rolled = next(point for point in after if point["step"] == 199)
    assert rolled["loss"] == pytest.approx(4.0 - 149.5e-3)
    assert (rolled["steps"], after[-1]["steps"]) == (100, 1), "a mean is told from a step"
    assert set(rolled) == set(before[0])
    every = selectors.steps(job, limit=10_000)
    assert [point["step"] for point in every][: forgetting.AROUND_A_RESUME + 3][-2:] == [99, 199]
    assert [point["step"] for point in selectors.steps(job, since_step=1_150)][:2] == [1199, 1200]


def test_a_chart_of_steps_of_which_many_stay_whole_ends_at_the_newest_too() -> None:
    job = trained(steps=step_rollups.NEWEST + 2_000)
    for number, resumed in enumerate(range(255, 1_900, 200), start=2):
        fields = {"layout": {}, "replicas": 1, "checkpoint_dir": "/x", "state": "ended"}
        Attempt.objects.create(job=job, number=number, resume_step=resumed, **fields)
    forgetting.forget_steps(KEPT_S)
    for number in (2, 50, 150, 200, 1_500):
        found = [point["step"] for point in selectors.steps(job, attempt=1, points=number)]
        assert len(found) <= number and found == sorted(set(found))
        assert found[-1] == step_rollups.NEWEST + 1_999, number


def test_a_chart_of_more_steps_asks_for_no_more_rows() -> None:
    job = trained(steps=300, age_s=0.0)
    asked = []
    for more in (0, 2_700):
        rows_of_more = [
            StepRecord(job=job, attempt=1, step=300 + step, epoch=2, at=now(), loss=1.0) for step in range(more)
        ]
        StepRecord.objects.bulk_create(rows_of_more)
        with CaptureQueriesContext(
            connection,
        ) as queries:
            points = selectors.steps(job, points=50)
        assert 25 <= len(points) <= 50
        asked.append((len(queries), sum("%" in query["sql"] for query in queries)))
    assert asked[0] == asked[1]
    assert asked[0][1] == 0, "steps are named, not computed of each row"


def test_what_a_certificate_rests_on_stays_whole() -> None:
    job = trained(steps=step_rollups.NEWEST + 3_000)
    incident(job, 2_000, 2_003)
    forgetting.forget_steps(KEPT_S)
    first, last = 2_000 - forgetting.MAX_BEFORE, 2_003 + forgetting.STEPS_AFTER_MAX
    assert set(range(first, last + 1)) <= left(job)
    assert not {first - 1, last + 1} & left(job)
    points = [point["step"] for point in selectors.steps(job, limit=10_000)]
    assert points == sorted(set(points)), "each step is a point once"


def test_an_incident_that_ended_without_a_recovery_keeps_what_was_around_its_begin() -> None:
    job = trained(steps=step_rollups.NEWEST + 3_000)
    incident(job, 2_000, 2_000, ended=None, certificate=None)
    assert forgetting.forget_steps(KEPT_S) > 0
    assert set(range(2_000 - forgetting.MAX_BEFORE, 2_000 + forgetting.STEPS_AFTER_MAX)) <= left(job)


@pytest.mark.parametrize(
    "unsettled",
    [{"state": IncidentState.OPEN, "resolved_at": None, "ended": None}, {"certificate_due_at": now()}, {"began": None}],
)
def test_a_job_of_which_something_is_still_to_be_proved_keeps_all(unsettled: dict[str, Any]) -> None:
    job = trained()
    row = incident(job, 100, 103, **unsettled)
    assert forgetting.forget_steps(KEPT_S) == 0
    Incident.objects.filter(pk=row.pk).delete()
    assert forgetting.forget_steps(KEPT_S) > 0


def test_a_resumption_that_is_not_judged_keeps_all_and_one_that_is_keeps_what_it_rests_on() -> None:
    job = trained(steps=step_rollups.NEWEST + 3_000)
    marks = {"of_attempt": 1, "attempt": 1, "epoch": 2, "clock": 0}
    row = Resumption.objects.create(
        id="res_1", job=job, yielded=1, opened_at=ago(OLD_S), began=marks | {"step": 2_000}, recovered_at=ago(OLD_S),
        ended=marks | {"step": 2_001}, certificate_due_at=now(),
    )  # fmt: skip
    assert forgetting.forget_steps(KEPT_S) == 0
    Resumption.objects.filter(pk=row.pk).update(certificate_due_at=None)
    assert forgetting.forget_steps(KEPT_S) > 0
    assert set(range(2_000 - forgetting.MAX_BEFORE, 2_001 + forgetting.STEPS_AFTER_MAX)) <= left(job)


def test_steps_that_are_younger_stay_and_the_rest_goes_with_a_later_call() -> None:
    job = trained()
    StepRecord.objects.filter(job=job, step__gte=650).update(at=ago(KEPT_S - DAY_S))
    forgetting.forget_steps(KEPT_S)
    assert StepRollup.objects.filter(job=job).count() == 6, "a roll-up is made once all of its steps are old"
    assert set(range(600, STEPS)) <= left(job)
    StepRecord.objects.filter(job=job).update(at=ago(OLD_S))
    forgetting.forget_steps(KEPT_S)
    assert StepRollup.objects.filter(job=job).count() == 12


def test_a_call_does_a_part_of_a_backlog(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forgetting, "MAX_TURNS", 1)
    monkeypatch.setattr(step_rollups, "BUCKETS_A_TURN", 5)
    job = trained()
    numbers = []
    while forgetting.forget_steps(KEPT_S):
        numbers.append(StepRollup.objects.filter(job=job).count())
    assert numbers == [5, 10, 12]


def test_a_call_that_finds_all_done_reads_no_steps_and_asks_no_more_of_many_jobs_than_of_one() -> None:
    job, asked = trained(), []
    incident(job, 100, 900)
    forgetting.forget_steps(KEPT_S)
    for more in (0, 5):
        for number in range(more):
            other = Job.objects.create(id=f"job_{number}", name=f"other-{number}", spec=job.spec)
            Attempt.objects.create(job=other, number=1, layout={}, replicas=1, checkpoint_dir="/x")
            rows(other, steps=step_rollups.NEWEST, age_s=OLD_S)
            JobPace.objects.create(job=other, pace={}, trained_s=1.0)
        with CaptureQueriesContext(connection) as queries:
            assert forgetting.forget_steps(KEPT_S) == 0
        asked.append(len(queries))
    assert asked[0] == asked[1] <= 3


def test_steps_that_stay_whole_are_not_read_again_and_each_transaction_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    job = trained(steps=step_rollups.NEWEST + 3_000)
    incident(job, 1_500, 2_400)
    turns: list[range] = []
    real = step_rollups._turn

    def turn(of: Job, attempt: int, buckets: range, *rest: Any) -> tuple[int, bool]:
        turns.append(buckets)
        return real(of, attempt, buckets, *rest)

    monkeypatch.setattr(step_rollups, "_turn", turn)
    monkeypatch.setattr(forgetting, "MAX_TURNS", 1)
    while forgetting.forget_steps(KEPT_S):
        pass
    assert turns == [range(10), range(24, 30)], "a transaction a call, and nothing in between"
    turns.clear()
    assert forgetting.forget_steps(KEPT_S) == 0 and turns == []


def test_the_days_are_a_setting_and_none_means_for_good(settings: Any) -> None:
    job = trained()
    assert Env().step_retention_days == 30.0
    settings.STEP_RETENTION_DAYS = 0.0
    retention()
    assert len(left(job)) == STEPS
    settings.STEP_RETENTION_DAYS = 30.0
    retention()
    assert len(left(job)) < STEPS


def test_parts_of_which_nothing_more_comes_are_packed_whatever_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_rows, "LARGE_RANKS", 0)
    fleet = make_fleet()
    job = run_job(fleet, steps=0)
    for step in range(6):
        commit_step(fleet, job, step)
    assert StepPart.objects.exists()
    StepRecord.objects.filter(job=job).update(at=now() - timedelta(seconds=step_rows.SETTLED_S + 1.0))
    forgetting.forget_steps(0.0)
    assert not StepPart.objects.exists()
    assert all(point["hashes_equal"] for point in selectors.steps(job))
