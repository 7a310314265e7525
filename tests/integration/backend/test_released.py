"""A rank of a replica has ended, and a job that waits takes its device before the replica is dealt with."""

import pytest

from controlplane.jobs.models import Job, Rank
from controlplane.recovery.load import load_snapshot
from controlplane.recovery.models import Decision
from controlplane.recovery.reconcile import reconcile_job
from tests.integration.backend.builders import kill_rank, live_ranks
from tests.integration.backend.test_queue import full, submitted

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def sighted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controlplane.recovery.health_gate.is_blind", lambda: False)


def test_a_replica_of_which_one_rank_is_gone_says_which_has_released_its_device() -> None:
    fleet, job = full()
    dead = next(row for row in live_ranks(job) if row.replica.index == 1 and row.rank == 1)
    kill_rank(fleet, dead)
    found = load_snapshot(Job.objects.get(pk=job.pk)).replicas
    assert [each.released for each in found] == [(), (1,)]
    other = next(row for row in live_ranks(job) if row.replica.index == 1)
    kill_rank(fleet, other)
    found = load_snapshot(Job.objects.get(pk=job.pk)).replicas
    assert [(each.released, each.stopped) for each in found] == [((), False), ((), True)]


def test_a_replica_is_not_started_again_on_a_device_that_another_job_has_taken() -> None:
    fleet, job = full()
    small = submitted("small", nodes=1, gpus=1)
    reconcile_job(small.id)
    dead = next(row for row in live_ranks(job) if row.replica.index == 1 and row.rank == 1)
    kill_rank(fleet, dead)
    reconcile_job(small.id)
    (taken,) = Rank.objects.filter(replica__attempt__job=small)
    assert taken.device_id == dead.device_id
    reconcile_job(job.id)
    decision = Decision.objects.filter(job=job, rule="replica_failure").latest("at")
    assert "nothing is started in its place" in decision.sentence
