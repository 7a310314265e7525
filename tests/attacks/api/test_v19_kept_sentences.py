"""V19, sentences that are kept in rows of one project and speak of a job of another, which is private."""

import pytest

from controlplane.changes.kinds import CreatePreemption
from controlplane.jobs.models import Job
from controlplane.recovery.models import Signal
from controlplane.recovery.reconcile import reconcile_job
from controlplane.recovery.request_rows import ask_to_yield
from controlplane.runtime.events import unit_of_work
from tests.attacks.api.test_v19_projects import world
from tests.integration.api.conftest import make_node
from tests.integration.api.tenants import SECRET, account, caller_of, spec
from tests.integration.api.world import running_job

pytestmark = pytest.mark.django_db


def test_who_was_to_yield_to_a_private_job_is_not_told_its_name_when_that_is_cancelled(db: None) -> None:
    world()
    Signal.objects.all().delete()
    mine = running_job([make_node("node-4"), make_node("node-5")], spec("mine", "default"))
    root = caller_of(account("chief", fleet="admin"))
    urgent = Job.objects.get(pk=root.post("/jobs", spec("zebra-second", SECRET, priority=900)).json()["id"])
    with unit_of_work():
        ask_to_yield(urgent, CreatePreemption(mine.id, 1, 1.0, "priority 900", ()))
    assert root.post(f"/jobs/{urgent.id}:cancel", {"reason": "r"}).status_code == 202
    reconcile_job(urgent.id)
    zoe = caller_of(account("sub", fleet="submit"))
    texts = [zoe.get(path).content.decode() for path in ("/requests", "/jobs/mine/events", "/jobs/mine/decisions")]
    assert "a private job, which is cancelled," in texts[0] and "a private job, which is cancelled," in texts[1]
    assert not [text for text in texts if "zebra" in text]
