"""What is learned of how long setups and readings take, when the server's clock is set in the middle of one."""

from datetime import timedelta

import pytest

from controlplane.checkpoints.models import Checkpoint
from controlplane.dispatch.models import Command
from controlplane.jobs.models import Attempt, Job, Rank, Replica
from controlplane.protocol.states import Section
from controlplane.recovery import clock_set, learned
from controlplane.recovery.models import ViewRow
from controlplane.runtime.clock import ago, now, now_s
from tests.integration.backend.builders import make_fleet, run_job

pytestmark = pytest.mark.django_db

HOUR_S = 3600.0
BOTH = pytest.mark.parametrize("step_s", [HOUR_S, -HOUR_S, -10.0], ids=["ahead", "back", "back by less than it took"])


def setup_limit_s(job: Job) -> float:
    return next(each.value_s for each in learned.timeouts_of(job) if each.section == Section.SETUP)


def setting_up(step_s: float, *, joined: bool) -> Job:
    """Its ranks load a checkpoint, since 300 s by the clock of before."""
    job = run_job(make_fleet(5))
    Attempt.objects.filter(job=job).update(resume_path="/ck/1", resume_step=1)
    ViewRow.objects.filter(job=job).update(announced_at=now() + timedelta(days=1))
    began = ago(300.0) - timedelta(seconds=step_s)
    Rank.objects.update(started_at=began, joined_at=now() if joined else None)
    Replica.objects.update(created_at=began - timedelta(seconds=10.0))
    return job


def test_a_setup_says_what_the_next_one_may_take() -> None:
    job = setting_up(0.0, joined=True)
    usual_s = setup_limit_s(job)
    Rank.objects.update(started_at=ago(800.0))
    assert setup_limit_s(job) > usual_s
    assert learned.times_of(job).starts == pytest.approx([310.0], abs=10.0)


@BOTH
@pytest.mark.parametrize("joined", [False, True], ids=["known while it goes on", "known when it is over"])
def test_one_in_which_the_clock_was_set_says_nothing(step_s: float, joined: bool) -> None:
    job = setting_up(step_s, joined=joined)
    Rank.objects.update(joined_at=None)
    before_s = setup_limit_s(job)
    Rank.objects.update(joined_at=now() if joined else None)
    clock_set.move(step_s, set_s=now_s())
    Rank.objects.update(joined_at=now())
    assert setup_limit_s(job) == before_s
    assert learned.times_of(job).starts == []


@BOTH
def test_those_before_and_after_it_still_do(step_s: float) -> None:
    job = setting_up(0.0, joined=True)
    Rank.objects.update(started_at=ago(900.0), joined_at=ago(100.0))
    limit_s = setup_limit_s(job)
    clock_set.move(step_s, set_s=now_s())
    assert setup_limit_s(job) == limit_s
    Rank.objects.update(started_at=now(), joined_at=now() + timedelta(seconds=1600.0))
    assert setup_limit_s(job) > limit_s


@BOTH
def test_nor_does_a_reading_back_of_the_checkpoint(step_s: float) -> None:
    job = setting_up(0.0, joined=False)
    Checkpoint.objects.create(
        id="ck_1", job=job, attempt=1, step=1, epoch=1, path="/ck/1", kind="interval", layout={}, state="complete",
        started_at=now(), total_s=2.0,
    )  # fmt: skip
    order = Command.objects.filter(job=job).first()
    assert order is not None
    rows = Command.objects.filter(pk=order.pk)
    began = ago(50.0) - timedelta(seconds=step_s)
    rows.update(kind="verify_checkpoint", state="acknowledged", acknowledged_at=began, body={"path": "/ck/1"})
    before_s = learned._transfer_s(job)
    assert before_s == 2.0
    clock_set.move(step_s, set_s=now_s())
    rows.update(state="succeeded", finished_at=now())
    assert learned._transfer_s(job) == before_s
