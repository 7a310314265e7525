"""What a loss of every replica would cost now: the steps that no good checkpoint holds, at their own pace."""

from statistics import median

import pytest

from controlplane.jobs.models import Job, StepRecord
from controlplane.jobs.numbers import numbers_of
from controlplane.protocol import frames
from controlplane.protocol.rank import CheckpointReport
from tests.integration.backend.builders import commit_step, live_ranks, make_fleet, ref_of, run_job

pytestmark = pytest.mark.django_db


def at_risk_s(job: Job) -> float | None:
    return numbers_of(Job.objects.get(pk=job.pk)).work_at_risk_s


@pytest.mark.parametrize("steps", [10, 60])
def test_work_at_risk_is_the_time_of_the_steps_since_the_newest_good_checkpoint(steps: int) -> None:
    fleet = make_fleet()
    job = run_job(fleet, steps=0)
    assert at_risk_s(job) is None, "nothing was measured yet"
    for step in range(steps):
        commit_step(fleet, job, step)
    took_s = median(StepRecord.objects.filter(job=job).values_list("step_time_s", flat=True))
    assert at_risk_s(job) == pytest.approx(steps * took_s)
    saver, home = live_ranks(job)[0], job.attempts.get().checkpoint_dir
    for state, step, left in (("writing", steps - 1, steps), ("complete", steps - 4, 4), ("failed", steps, 4)):
        said = CheckpointReport(step, f"{home}/step_{step}", state, "scheduled", job.epoch + 1, digest="d")
        fleet.tell(saver.node.name, frames.RankSaid(ref_of(saver), said))
        assert at_risk_s(job) == pytest.approx(left * took_s), state
    commit_step(fleet, job, steps)
    assert at_risk_s(job) == pytest.approx(5 * took_s)
    job.checkpoints.update(state="corrupt")
    assert at_risk_s(job) == pytest.approx((steps + 1) * took_s), "it is no good any more"
    Job.objects.filter(pk=job.pk).update(state="failed")
    assert at_risk_s(job) is None
