"""Data that migrations move arrives whole."""

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from controlplane.runtime.clock import iso, now

pytestmark = pytest.mark.django_db(transaction=True)


def test_stacks_of_old_incidents_become_looks() -> None:
    newest = MigrationExecutor(connection).loader.graph.leaf_nodes()
    executor = MigrationExecutor(connection)
    before = [("recovery", "0001_initial"), ("jobs", "0002_step_ledger")]
    executor.migrate(before)
    try:
        old = executor.loader.project_state(before).apps
        job = old.get_model("jobs", "Job").objects.create(id="job_1", name="old", spec={})
        entry = {"rank": "2.3/1", "method": "kernel", "text": "stuck", "at": iso(now())}
        old.get_model("recovery", "Incident").objects.create(
            id="inc_1", job_id=job.id, title="old", opened_at=now(), stacks=[entry]
        )
    finally:
        MigrationExecutor(connection).migrate(newest)
    from controlplane.recovery.models import RankLook

    row = RankLook.objects.get()
    assert (row.replica, row.incarnation, row.rank, row.look, row.text) == (2, 3, 1, "stacks", "stuck")
    assert row.incident_id == "inc_1"


def test_looks_on_schedule_that_were_taken_stay_counted() -> None:
    newest = MigrationExecutor(connection).loader.graph.leaf_nodes()
    executor = MigrationExecutor(connection)
    before = [("recovery", "0004_restart_ledger"), ("jobs", "0005_out_of_section")]
    executor.migrate(before)
    try:
        old = executor.loader.project_state(before).apps
        job = old.get_model("jobs", "Job").objects.create(id="job_1", name="old", spec={})
        for number, applied in enumerate((True, True, False)):
            old.get_model("recovery", "Decision").objects.create(
                id=f"dec_{number}", job_id=job.id, at=now(), rule="look", choice="look", reason_code="scheduled_look",
                sentence="", applied=applied, policy_version="", snapshot=b"", key=f"look:{number}",
            )  # fmt: skip
    finally:
        MigrationExecutor(connection).migrate(newest)
    from controlplane.jobs.models import Job

    row = Job.objects.get()
    assert (row.looks_taken, row.looked_at is None) == (2, False)


def test_audit_rows_of_before_are_sealed_as_they_stand() -> None:
    from controlplane.access.models import AuditEntry
    from controlplane.access.verification import verify

    newest = MigrationExecutor(connection).loader.graph.leaf_nodes()
    executor = MigrationExecutor(connection)
    before = [("access", "0001_initial")]
    executor.migrate(before)
    try:
        old = executor.loader.project_state(before).apps.get_model("access", "AuditEntry")
        for number in range(3):
            old.objects.create(actor="user:ada", action="x", subject=str(number), data={"ratio": 0.1, "deep": [1e16]})
    finally:
        MigrationExecutor(connection).migrate(newest)
    assert list(AuditEntry.objects.order_by("id").values_list("seq", "subject")) == [(1, "0"), (2, "1"), (3, "2")]
    assert verify().whole


def test_a_job_of_before_keeps_its_project_which_is_open_and_has_no_quota() -> None:
    from controlplane.access.project_models import Project

    newest = MigrationExecutor(connection).loader.graph.leaf_nodes()
    executor = MigrationExecutor(connection)
    before = [("access", "0008_name_patterns"), ("jobs", "0019_preempted")]
    executor.migrate(before)
    try:
        old = executor.loader.project_state(before).apps.get_model("jobs", "Job")
        for number, project in enumerate(("default", "vision", "vision")):
            old.objects.create(id=f"job_{number}", name=f"old-{number}", project=project, spec={})
    finally:
        MigrationExecutor(connection).migrate(newest)
    found = Project.objects.order_by("name").values_list("name", "visibility", "quota_gpus", "max_priority")
    assert list(found) == [("default", "open", None, 1000), ("vision", "open", None, 1000)]
