"""A start that its node holds to be void is no start: the slot does not stand empty until its time is over."""

import pytest

from controlplane.protocol import frames
from controlplane.protocol.commands import StartRanks
from controlplane.recovery.models import Signal
from controlplane.recovery.reconcile import reconcile_job
from tests.integration.backend.builders import bodies, job_that_lost_a_rank

pytestmark = pytest.mark.django_db(transaction=True)
VOID = "incarnation 2 of replica 0 was started here before"


def test_a_start_that_is_void_to_its_node_and_wanted_here_is_followed_by_another() -> None:
    fleet, job = job_that_lost_a_rank()
    first, body = bodies(job, "start_ranks")[-1]
    assert isinstance(body, StartRanks)
    fleet.tell(first.node.name, frames.CommandAnswer(first.id, "superseded", VOID))
    reconcile_job(job.id)
    again, newer = bodies(job, "start_ranks")[-1]
    assert isinstance(newer, StartRanks) and again.id != first.id
    assert (newer.launch.replica, newer.launch.incarnation) == (body.launch.replica, body.launch.incarnation + 1)


def test_one_that_a_newer_start_has_replaced_says_nothing_about_the_newer_one() -> None:
    fleet, job = job_that_lost_a_rank()
    first, _ = bodies(job, "start_ranks")[-1]
    fleet.tell(first.node.name, frames.CommandAnswer(first.id, "failed", "no memory"))
    reconcile_job(job.id)
    second, _ = bodies(job, "start_ranks")[-1]
    old = bodies(job, "start_ranks")[0][0]
    type(old).objects.filter(pk=old.pk).update(state="delivered", finished_at=None)
    fleet.tell(old.node.name, frames.CommandAnswer(old.pk, "superseded", "a newer start replaced it"))
    reconcile_job(job.id)
    assert bodies(job, "start_ranks")[-1][0].id == second.id
    assert not Signal.objects.filter(job=job, settled_at=None).exists()
