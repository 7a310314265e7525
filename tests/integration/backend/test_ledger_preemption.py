"""The GPU-second ledger of a job that yielded, whole or a replica: what that cost is due to whom it made room for."""

import pytest

from controlplane.recovery import ledger_pass, requests
from controlplane.recovery.ledger_models import LedgerRun
from controlplane.recovery.models import Request
from controlplane.recovery.reconcile import reconcile_job
from controlplane.runtime.clock import ago
from tests.integration.backend.builders import commit_step, make_fleet, run_job
from tests.integration.backend.test_give_replicas import change_view, elastic
from tests.integration.backend.test_preemption import ADA, TWO, job_of, leave, save, train
from tests.integration.backend.test_queue import submitted

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize("between", [0, 2])
def test_coming_back_is_preempted_time_also_where_steps_were_committed_while_it_saved(between: int) -> None:
    fleet = make_fleet(3)
    job = run_job(fleet, **TWO)
    for step in range(4):
        commit_step(fleet, job, step)
    requests.preempt(job_of(job), reason="demo", actor=ADA)
    reconcile_job(job.id)
    for step in range(4, 4 + between):
        commit_step(fleet, job, step)
    save(fleet, job, 4 + between)
    reconcile_job(job.id)
    leave(fleet, job)
    reconcile_job(job.id)
    requests.resume(job_of(job), reason="r", actor=ADA)
    reconcile_job(job.id)
    train(fleet, job, 4 + between)
    assert job_of(job).state == "running"
    ledger_pass.build()
    back = LedgerRun.objects.filter(job=job, attempt=2).earliest("pk")
    assert (back.kind, back.preempted, back.cause_kind) == ("recovery", True, "person")


def test_the_view_without_a_replica_that_was_given_is_preempted_time_of_the_urgent_job() -> None:
    fleet = make_fleet(2)
    job = elastic(fleet)
    urgent = submitted("urgent", priority=900, nodes=1)
    reconcile_job(urgent.id)
    reconcile_job(job.id)
    # The view begins with a step that is still to come: others are committed until then.
    Request.objects.update(taken_at=ago(60.0))
    change_view(fleet, job, 3)
    ledger_pass.build()
    run = LedgerRun.objects.filter(job=job).latest("pk")
    assert (run.kind, run.preempted, run.cause_kind, run.cause_id) == ("recovery", True, "job", urgent.id)
