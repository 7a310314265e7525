"""Ages that people and alarms go by, after the server's clock was set: how long it was, not what the clock tells."""

from datetime import timedelta

import pytest
from django.db.models import F

from controlplane.checkpoints.models import Checkpoint
from controlplane.jobs.models import Attempt, Job
from controlplane.jobs.numbers import numbers_of
from controlplane.recovery import clock_set, gauges
from controlplane.recovery.models import Incident
from controlplane.runtime import metrics
from controlplane.runtime.clock import ago, now_s
from controlplane.runtime.models import ClockStep
from tests.integration.backend.builders import make_fleet, run_job

pytestmark = pytest.mark.django_db

HOUR_S = 3600.0
BOTH = pytest.mark.parametrize("step_s", [HOUR_S, -HOUR_S, 0.0], ids=["ahead", "back", "not at all"])
WRITTEN: tuple[tuple[type[Checkpoint] | type[Attempt] | type[Incident], str], ...] = (
    (Checkpoint, "committed_at"), (Attempt, "started_at"), (Incident, "opened_at"),
)  # fmt: skip


def set_clock(step_s: float, *, before_s: float) -> None:
    """It was set so long ago: all rows until now are older, and what they tell is of the clock before."""
    for model, column in WRITTEN:
        model._default_manager.update(**{column: F(column) - timedelta(seconds=step_s)})
    if step_s:
        clock_set.move(step_s, set_s=now_s())
        ClockStep.objects.update(set_at=F("set_at") - timedelta(seconds=before_s))


def save(job: Job, step: int, *, age_s: float) -> None:
    Checkpoint.objects.create(
        id=f"ckpt_{step}", job=job, attempt=1, epoch=1, step=step, path=f"p/{step}", state="complete",
        kind="", started_at=ago(age_s), committed_at=ago(age_s),
    )  # fmt: skip


def shown_s(job: Job) -> tuple[float | None, float | None]:
    """On its page, and in Prometheus."""
    gauges.refresh()
    return (
        numbers_of(Job.objects.get(pk=job.pk)).checkpoint_age_s,
        metrics.FLEET.get_sample_value("holdfast_checkpoint_age_seconds", {"job_id": job.id}),
    )


@pytest.fixture
def job() -> Job:
    job = run_job(make_fleet(), steps=0)
    Attempt.objects.filter(job=job).update(started_at=ago(900.0))
    return job


@BOTH
def test_a_checkpoint_of_before_the_step_is_as_old_as_it_is(job: Job, step_s: float) -> None:
    save(job, 10, age_s=600.0)
    set_clock(step_s, before_s=60.0)
    assert shown_s(job) == pytest.approx((600.0, 600.0), abs=10.0)


@BOTH
def test_the_newest_is_the_one_that_was_saved_last_whatever_its_time_says(job: Job, step_s: float) -> None:
    save(job, 10, age_s=600.0)
    set_clock(step_s, before_s=60.0)
    save(job, 20, age_s=30.0)
    assert shown_s(job) == pytest.approx((30.0, 30.0), abs=10.0)


@BOTH
def test_a_job_without_one_has_lost_what_it_trained_since_it_began(job: Job, step_s: float) -> None:
    set_clock(step_s, before_s=60.0)
    assert shown_s(job) == pytest.approx((900.0, 900.0), abs=10.0)


@BOTH
def test_the_oldest_open_incident_is_as_old_as_it_is(job: Job, step_s: float) -> None:
    Incident.objects.create(id="inc_old", title="t", opened_at=ago(700.0))
    set_clock(step_s, before_s=60.0)
    Incident.objects.create(id="inc_new", title="t", opened_at=ago(20.0))
    gauges.refresh_incidents()
    assert metrics.FLEET.get_sample_value("holdfast_incident_oldest_seconds") == pytest.approx(700.0, abs=10.0)
    assert metrics.FLEET.get_sample_value("holdfast_incidents_open") == 2
