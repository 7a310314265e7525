"""What several parts of the control plane count is counted once: the governor's domains, the trained seconds."""

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.db.models import Sum
from django.test import Client
from django.test.utils import CaptureQueriesContext

from controlplane.fleet.models import Node
from controlplane.jobs.models import Job, JobPace
from controlplane.policies import selectors, services
from controlplane.policies.services import Edit
from controlplane.policies.whose import FLEETS
from controlplane.policy.document import Ground
from controlplane.policy.facts import correlated_failure_of, is_correlated_failure
from controlplane.recovery import fleet_pass, gauges
from controlplane.recovery.load import load_snapshot
from controlplane.recovery.models import Decision, Incident, Signal
from controlplane.runtime.clock import after, ago
from tests.integration.backend.builders import commit_step, make_fleet, run_job

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    ("silent_segments", "storm"), [(("rack-1", "rack-1"), False), (("rack-1", "rack-2"), True), (("", ""), True)]
)
def test_gauge_fleet_pass_and_job_agree_on_what_a_storm_is(silent_segments: tuple[str, str], storm: bool) -> None:
    fleet = make_fleet(4)
    job = run_job(fleet)
    names = sorted(fleet.nodes)
    for name, segment in zip(names, (*silent_segments, "rack-3", "rack-4"), strict=True):
        Node.objects.filter(name=name).update(segment=segment)
    for name in names[:2]:
        Signal.objects.create(
            id=f"sig_{name}", key=f"node_silent:{name}", kind="node_silent", job=job, node=fleet.nodes[name],
            value=3.0, threshold=2.0, seen_at=ago(1.0),
        )  # fmt: skip
    services.put(FLEETS, {"correlated_min_devices": 1}, Edit(parent=0, reason="a test", actor="ada"), Ground())
    config = selectors.of_fleet()
    by_job = is_correlated_failure(load_snapshot(Job.objects.get(pk=job.pk)), config)
    by_fleet = correlated_failure_of(fleet_pass.load_fleet(), config)
    by_gauge = bool(gauges.breaker()[gauges.SUSPECTS])
    assert (by_job, by_fleet, by_gauge) == (storm, storm, storm)


@pytest.mark.parametrize(
    ("choice", "applied", "incident", "says"),
    [
        ("hold", True, "recovering", True), ("leave_out", False, "open", True), ("leave_out", True, "open", False),
        ("hold", True, "resolved", False), ("hold", True, None, False),
    ],
)  # fmt: skip
def test_a_job_whose_newest_decision_leaves_it_to_a_person_says_so_and_no_other_does(
    choice: str, applied: bool, incident: str | None, says: bool
) -> None:
    job = run_job(make_fleet(4))
    Job.objects.filter(pk=job.pk).update(state="recovering")
    about = incident and Incident.objects.create(id="inc_1", title="t", job=job, opened_at=ago(5.0), state=incident)
    Decision.objects.create(
        id="dec_z", job=job, incident=about or None, at=after(1.0), rule="replica_failure", choice=choice,
        applied=applied, reason_code="storm", sentence="40 of 100 devices look bad at once.", policy_version="1",
        snapshot=b"", key="z",
    )  # fmt: skip
    client = Client()
    client.force_login(User.objects.create_user("ada2"))
    answer = client.get(f"/api/v1/jobs/{job.id}").json()["why"]
    assert ("40 of 100 devices look bad at once." in answer) is says
    assert ("No action needed." in answer) is not says


def trained_s(job: Job) -> tuple[float, float]:
    """(as kept, as summed from all rows)."""
    kept = JobPace.objects.get(job=job).trained_s
    assert kept is not None
    return kept, job.steps.aggregate(total=Sum("step_time_s"))["total"]


def test_trained_seconds_are_kept_as_reports_come_and_equal_the_sum_of_all_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = make_fleet()
    job = run_job(fleet, steps=3)
    kept, summed = trained_s(job)
    assert kept == pytest.approx(summed)
    for step in range(3, 9):
        commit_step(fleet, job, step)
        commit_step(fleet, job, step)
    kept, summed = trained_s(job)
    assert kept == pytest.approx(summed)
    assert kept > 0.0
    monkeypatch.setattr("controlplane.recovery.load.is_scheduled", lambda faults: True)
    assert load_snapshot(Job.objects.get(pk=job.pk)).job.training_s == pytest.approx(summed)


def test_a_job_that_trained_before_that_was_kept_is_summed_once() -> None:
    fleet = make_fleet()
    job = run_job(fleet, steps=3)
    JobPace.objects.filter(job=job).update(trained_s=None)
    commit_step(fleet, job, 3)
    kept, summed = trained_s(job)
    assert kept == pytest.approx(summed)


def test_no_look_at_a_job_sums_its_steps_or_looks_through_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = make_fleet()
    job = run_job(fleet, steps=3)
    monkeypatch.setattr("controlplane.recovery.load.is_scheduled", lambda faults: True)
    with CaptureQueriesContext(connection) as asked:
        snapshot = load_snapshot(Job.objects.get(pk=job.pk))
    steps = [query["sql"] for query in asked if "jobs_steprecord" in query["sql"]]
    assert snapshot.job.progressed_s is not None
    assert steps
    assert [sql for sql in steps if "LIMIT" not in sql] == []
