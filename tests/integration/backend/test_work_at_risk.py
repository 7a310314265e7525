"""What a loss of every replica would cost now: the steps that no good checkpoint holds, as decisions price them."""

from statistics import fmean, median
from typing import Any

import pytest

from controlplane.cli.columns import JOBS
from controlplane.jobs.models import Job, StepRecord
from controlplane.jobs.numbers import numbers_of
from controlplane.jobs.numbers_of_many import numbers_of_many
from controlplane.jobs.present import job_summary
from controlplane.policy.config import PolicyConfig
from controlplane.policy.prices import times_of
from controlplane.policy.signals.devices import DeviceAtRisk
from controlplane.protocol import frames
from controlplane.protocol.rank import CheckpointReport
from controlplane.protocol.spec import Checkpoint, EmergencyCheckpoint
from controlplane.recovery import signals
from controlplane.recovery.load import load_snapshot
from controlplane.recovery.models import Decision
from controlplane.recovery.reconcile import reconcile_job
from tests.findings import finding
from tests.integration.backend.builders import Fleet, commit_step, live_ranks, make_fleet, ref_of, run_job

pytestmark = pytest.mark.django_db

WANTED = Checkpoint(emergency=EmergencyCheckpoint(min_gap_ratio=0.0))


def at_risk_s(job: Job) -> float | None:
    return numbers_of(Job.objects.get(pk=job.pk)).work_at_risk_s


def save(fleet: Fleet, job: Job, state: str, step: int) -> None:
    saver, home = live_ranks(job)[0], job.attempts.get().checkpoint_dir
    said = CheckpointReport(step, f"{home}/step_{step}", state, "scheduled", job.epoch + 1, digest="d")
    fleet.tell(saver.node.name, frames.RankSaid(ref_of(saver), said))


@pytest.mark.parametrize("steps", [10, 60])
def test_work_at_risk_is_the_time_of_the_steps_since_the_newest_good_checkpoint(steps: int) -> None:
    fleet = make_fleet()
    job = run_job(fleet, steps=0)
    assert at_risk_s(job) is None, "nothing was measured yet"
    for step in range(steps):
        commit_step(fleet, job, step)
    took_s = 0.05
    assert at_risk_s(job) == pytest.approx(steps * took_s)
    for state, step, left in (("writing", steps - 1, steps), ("complete", steps - 4, 4), ("failed", steps, 4)):
        save(fleet, job, state, step)
        assert at_risk_s(job) == pytest.approx(left * took_s), state
    commit_step(fleet, job, steps)
    assert at_risk_s(job) == pytest.approx(5 * took_s)
    job.checkpoints.update(state="corrupt")
    assert at_risk_s(job) == pytest.approx((steps + 1) * took_s), "it is no good any more"
    Job.objects.filter(pk=job.pk).update(state="failed")
    assert at_risk_s(job) is None


def test_what_is_lost_with_the_nodes_counts_from_the_newest_save_in_storage() -> None:
    fleet = make_fleet()
    job = run_job(fleet, steps=0)
    for step in range(20):
        commit_step(fleet, job, step)
    for state, step in (("complete", 8), ("complete", 18)):
        save(fleet, job, state, step)
    job.checkpoints.filter(step=18).update(kind="local")
    for found in (numbers_of(Job.objects.get(pk=job.pk)), numbers_of_many([Job.objects.get(pk=job.pk)])[job.pk]):
        assert (found.last_checkpoint_step, found.last_checkpoint_local, found.stored_checkpoint_step) == (18, True, 8)
        assert (found.work_at_risk_s, found.work_at_risk_stored_s) == (pytest.approx(0.1), pytest.approx(0.6))
    job.checkpoints.filter(step=8).update(step=18, epoch=1)
    for found in (numbers_of(Job.objects.get(pk=job.pk)), numbers_of_many([Job.objects.get(pk=job.pk)])[job.pk]):
        assert (found.last_checkpoint_step, found.last_checkpoint_local) == (18, False), (
            "of two, that which outlives them"
        )
        assert found.work_at_risk_s == found.work_at_risk_stored_s


def uneven() -> tuple[Fleet, Job]:
    """Steps of many lengths, one with a change of membership, saved at 20: the newest 20 say something else than
    all that count."""
    fleet = make_fleet()
    job = run_job(fleet, steps=0, checkpoint=WANTED)
    for step in range(40):
        commit_step(fleet, job, step, step_s=1.0 if step < 25 else 2.0 + step / 10, stall_s=9.0 if step == 30 else 0.0)
    save(fleet, job, "complete", 20)
    return fleet, Job.objects.get(pk=job.pk)


def told_by_a_decision(fleet: Fleet, job: Job) -> dict[str, Any]:
    """The evidence of an emergency save that is decided now."""
    rank = live_ranks(job)[0]
    place = {"node_id": rank.node_id, "node": rank.node.name, "job_id": job.id, "device_index": rank.device.index}
    signals.raise_signal(finding(DeviceAtRisk, **place, device_id="d", score=0.9, limit=0.3, parts={}))
    reconcile_job(job.id)
    evidence: dict[str, Any] = Decision.objects.get(job=job, rule="device_risk", choice="save").evidence
    return evidence


def test_page_api_and_command_line_tell_what_decisions_count_with() -> None:
    fleet, job = uneven()
    rows = StepRecord.objects.filter(job=job)
    calm = list(rows.filter(stall_s=0.0).values_list("step_time_s", flat=True))
    raw_s = 20 * fmean(calm)
    newest = rows.order_by("-step").values_list("step_time_s", flat=True)[:20]
    assert median(newest) > 1.5 * fmean(calm), "another count would show another figure"
    summary = job_summary(job)
    assert summary["work_at_risk_s"] == pytest.approx(raw_s)
    assert summary["learned_step_s"] * 20 == summary["work_at_risk_s"], "as the page counts on with each step"
    shown = next(column for column in JOBS if column.title == "AT-RISK").show(summary)
    assert float(shown.removesuffix("s")) == pytest.approx(raw_s, rel=0.01)
    assert times_of(load_snapshot(job), PolicyConfig()).at_risk_s == summary["work_at_risk_s"]
    assert told_by_a_decision(fleet, job)["work_at_risk_s"] == summary["work_at_risk_s"]


def test_before_steps_were_measured_a_decision_claims_no_figure_either() -> None:
    fleet = make_fleet()
    job = run_job(fleet, steps=2, checkpoint=WANTED)
    assert job_summary(job)["work_at_risk_s"] is None
    assert told_by_a_decision(fleet, job)["work_at_risk_s"] is None
