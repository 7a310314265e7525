"""The age of a job's checkpoint is one figure with one meaning, wherever it stands."""

import json
from pathlib import Path

import pytest

from controlplane.checkpoints.models import Checkpoint
from controlplane.cli.columns import JOBS
from controlplane.jobs.models import Attempt, Job
from controlplane.jobs.present import job_summary
from controlplane.recovery import gauges
from controlplane.runtime import metrics
from controlplane.runtime.clock import ago
from tests.integration.backend.builders import make_fleet, make_job, run_job

pytestmark = pytest.mark.django_db

SERIES = "holdfast_checkpoint_age_seconds"
NEAR_S = 20.0
"""A busy machine may read one a while after the other."""


def save(job: Job, step: int, state: str, age_s: float, kind: str = "") -> None:
    Checkpoint.objects.create(
        id=f"ckp_{step}", job=job, attempt=1, epoch=1, step=step, state=state, path=f"/c/{step}", kind=kind,
        started_at=ago(age_s + 300.0), committed_at=ago(age_s),
    )  # fmt: skip


def everywhere(job: Job) -> list[float | None]:
    """Prometheus, the API (page and client show it), the command line."""
    gauges.refresh()
    summary = job_summary(Job.objects.get(pk=job.pk))
    column = next(column for column in JOBS if column.title == "CHECKPOINT-AGE")
    shown = column.show(summary)
    assert (shown == "-") == (summary["checkpoint_age_s"] is None)
    return [metrics.FLEET.get_sample_value(SERIES, {"job_id": job.id}), summary["checkpoint_age_s"]]


def old_job() -> Job:
    job = run_job(make_fleet(), steps=0)
    Attempt.objects.filter(job=job).update(started_at=ago(5000.0))
    return job


def test_it_is_since_the_newest_in_storage_was_committed() -> None:
    job = old_job()
    for step, state, age_s, kind in (
        (2, "complete", 900.0, ""), (4, "verified", 400.0, ""), (5, "corrupt", 60.0, ""), (6, "writing", 5.0, ""),
        (8, "replicated", 7.0, "local"),
    ):  # fmt: skip
        save(job, step, state, age_s, kind)
    assert everywhere(job) == pytest.approx([400.0, 400.0], abs=NEAR_S)
    summary = job_summary(job)
    assert (summary["last_checkpoint_step"], summary["last_checkpoint_local"]) == (8, True)


def test_of_a_job_without_one_in_storage_it_is_since_its_first_attempt() -> None:
    job = old_job()
    assert everywhere(job) == pytest.approx([5000.0, 5000.0], abs=NEAR_S)
    save(job, 8, "replicated", 7.0, "local")
    assert everywhere(job) == pytest.approx([5000.0, 5000.0], abs=NEAR_S)


def test_a_job_that_never_began_and_one_that_has_ended_have_none() -> None:
    job = old_job()
    save(job, 2, "complete", 900.0)
    Job.objects.filter(pk=job.pk).update(state="failed", finished_at=ago(1.0))
    assert everywhere(job) == [None, None]
    assert everywhere(make_job()) == [None, None]


def test_it_has_one_name_in_the_api_prometheus_and_the_shipped_rules() -> None:
    properties = json.loads(Path("controlplane/api/openapi.json").read_text())["components"]["schemas"]["Job"][
        "properties"
    ]
    assert [name for name in properties if "age" in name.split("_")] == ["checkpoint_age_s"]
    rules = Path("deploy/prometheus/alerts.yml").read_text()
    assert SERIES in rules and SERIES in Path("deploy/grafana/fleet.json").read_text()
    for page in ("docs/monitoring.md", "docs/glossary.md"):
        text = Path(page).read_text()
        assert SERIES in text and "checkpoint_age_s" in text, page
