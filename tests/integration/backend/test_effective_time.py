"""The effective time that a user sees, computed another way from the raw rows; one figure everywhere."""

from datetime import datetime, timedelta
from itertools import pairwise
from statistics import median

import msgspec
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from controlplane.access.rights import EVERYTHING
from controlplane.api.overview import overview
from controlplane.checkpoints.models import Checkpoint
from controlplane.cli.columns import ABSENT, JOB, JOBS
from controlplane.jobs.models import Attempt, Job, JobPace, StepRecord
from controlplane.jobs.numbers import numbers_of
from controlplane.jobs.present import job_summary
from controlplane.protocol import rest
from controlplane.protocol.rank import StepReport
from controlplane.recovery import gauges
from controlplane.recovery.models import ViewRow
from controlplane.recovery.steps import StepMerge
from controlplane.runtime import metrics
from controlplane.runtime.clock import now
from tests.integration.backend.builders import live_ranks, make_fleet, run_job

pytestmark = pytest.mark.django_db
SHARE = tuple(range(12))


class Told:
    """A job whose ranks report steps at moments that the test names."""

    def __init__(self, *, age_s: float) -> None:
        self.job = run_job(make_fleet(5), steps=0)
        self.began = now() - timedelta(seconds=age_s)
        Attempt.objects.filter(job=self.job).update(started_at=self.began)
        self.ranks = live_ranks(self.job)
        self.at, self.step, self.epoch = self.began, 0, self.job.epoch

    def steps(self, number: int, each_s: float, *, clock_s: float | None = None) -> None:
        """`clock_s`: what each rank's own clock says of a step."""
        for _ in range(number):
            self.at += timedelta(seconds=each_s)
            merge = StepMerge()
            for rank in (self.ranks[0], self.ranks[-1]):
                said = StepReport(self.step, self.epoch, each_s if clock_s is None else clock_s, 64, SHARE, 4.0)
                merge.add(self.job, rank, said, self.at)
            merge.write()
            self.step += 1

    def new_view(self, *, contributors: int = 3) -> None:
        """The membership changes."""
        row = ViewRow.objects.filter(job=self.job).order_by("-epoch").first()
        assert row is not None
        self.epoch += 1
        install = {**row.install, "contributors": list(range(contributors))}
        ViewRow.objects.create(
            job=self.job, attempt=1, epoch=self.epoch, view=row.view, install=install, announced_at=self.at
        )

    def stall(self, seconds: float) -> None:
        self.at += timedelta(seconds=seconds)

    def fresh(self) -> Job:
        return Job.objects.get(pk=self.job.pk)

    def end(self) -> Job:
        """It has ended with its newest step, so that the wall time stands still."""
        Job.objects.filter(pk=self.job.pk).update(finished_at=self.at)
        return self.fresh()


def raw_ratio(job: Job, *, began: datetime, quiet: int) -> float:
    """From rows alone: distinct steps x the median gap of the first `quiet` ones / wall time."""
    rows = list(StepRecord.objects.filter(job=job).order_by("step").values_list("step", "at"))
    gaps = [(b - a).total_seconds() for (_, a), (_, b) in pairwise(rows[:quiet])]
    assert job.finished_at is not None
    return len({step for step, _ in rows}) * median(gaps) / (job.finished_at - began).total_seconds()


def test_overlapping_clocks_of_ranks_do_not_hide_twenty_four_stalls() -> None:
    told = Told(age_s=3000.0)
    told.steps(60, 1.0, clock_s=1.06)
    for _ in range(24):
        told.stall(8.0)
        told.new_view()
        # While they waited for the one that was gone their clocks ran on, and were summed up as training.
        told.steps(1, 1.0, clock_s=9.06)
        told.steps(19, 1.0, clock_s=1.06)
    job = told.end()
    clocks_s = sum(StepRecord.objects.filter(job=job).values_list("step_time_s", flat=True))
    assert clocks_s > (told.at - told.began).total_seconds(), "a clamp would have said 100 %"
    ettr = numbers_of(job).ettr
    assert ettr is not None
    assert ettr == pytest.approx(raw_ratio(job, began=told.began, quiet=60), abs=0.01)
    assert ettr == pytest.approx(540 / (540 + 24 * 8.0), abs=0.01)


def test_all_of_the_wall_time_is_shown_by_what_it_was_and_its_productive_part_is_the_effective_time() -> None:
    told = Told(age_s=3000.0)
    told.stall(17.0)
    told.steps(60, 1.0)
    told.stall(12.0)
    told.steps(1, 1.0)  # Of the same members: a stall.
    told.new_view(contributors=2)
    told.steps(40, 1.5)
    Checkpoint.objects.create(
        id="ck_1", job=told.job, attempt=1, step=90, epoch=told.epoch, path="/ck/90", kind="interval", state="complete",
        started_at=told.at, committed_at=told.at + timedelta(seconds=1), blocking_s=5.0,
    )  # fmt: skip
    told.stall(5.0)
    told.new_view(contributors=3)
    told.steps(1, 1.0)
    summary = job_summary(told.end())
    wall = msgspec.convert(summary["wall"], rest.Wall)
    rows = StepRecord.objects.filter(job=told.job).count()
    assert wall.wall_s == pytest.approx((told.at - told.began).total_seconds())
    assert wall.productive_s / wall.wall_s == pytest.approx(summary["ettr"])
    assert wall.productive_s == pytest.approx(rows * 1.0, abs=0.6)
    assert wall.recovery_s == pytest.approx(17.0 + 0.5 + 5.0, abs=0.2)
    assert wall.stalled_s + wall.checkpoint_s == pytest.approx(12.0, abs=0.2)
    assert wall.checkpoint_s == pytest.approx(5.0)
    assert wall.degraded_s == pytest.approx(39 * 0.5, abs=0.6)
    assert wall.lost_s == 0.0
    shown = next(column for column in JOB if column.title == "WALL-TIME").show(summary)
    assert shown.startswith(f"productive {100 * summary['ettr']:.1f}%, degraded ")


def test_a_job_that_trained_before_this_was_kept_has_its_figure_and_no_parts() -> None:
    told = Told(age_s=3000.0)
    told.steps(30, 1.0)
    JobPace.objects.filter(job=told.job).update(spent=None)
    told.steps(30, 1.0)
    summary = job_summary(told.end())
    assert summary["ettr"] is not None
    assert summary["wall"] is None
    assert next(column for column in JOB if column.title == "WALL-TIME").show(summary) == ABSENT


def test_a_slow_down_shows_beside_it() -> None:
    told = Told(age_s=3000.0)
    told.steps(60, 1.0)
    told.steps(40, 2.4)
    numbers = numbers_of(told.end())
    assert numbers.productivity == pytest.approx(1 / 2.4, rel=0.01)
    assert numbers.undisturbed_step_s == pytest.approx(1.0, rel=0.01)
    assert numbers_of(told.end()).ettr == pytest.approx(100 / 156, abs=0.01)
    Job.objects.filter(pk=told.job.pk).update(state="succeeded")
    assert numbers_of(told.fresh()).productivity is None, "of an ended job nothing is asked any more"


def test_a_job_that_commits_nothing_has_no_time_left_and_no_speed_of_better_days() -> None:
    """By the clock of the server alone: its newest step is ten minutes old, those before took a second."""
    told = Told(age_s=660.0)
    told.steps(60, 1.0)
    numbers = numbers_of(told.fresh())
    assert numbers.step_time_s == pytest.approx(1.0)
    assert numbers.eta_s is None
    assert numbers.productivity is not None and 1 / 900 < numbers.productivity < 1 / 599
    told.at += timedelta(seconds=599.0)
    told.steps(1, 1.0)
    numbers = numbers_of(told.end())
    assert numbers.eta_s == pytest.approx((numbers.total_steps - 61) * 1.0)
    assert numbers.productivity == pytest.approx(1.0, rel=0.01)


def test_less_strength_and_time_before_the_first_step_count() -> None:
    told = Told(age_s=3000.0)
    told.stall(17.0)
    told.steps(60, 1.0)
    told.new_view(contributors=2)
    told.steps(40, 1.5)
    assert numbers_of(told.end()).ettr == pytest.approx(100 / (17 + 60 + 60), abs=0.01)


def device_share(job: Job, *, began: datetime) -> float:
    """From rows alone, of a job that computes all the time: seconds of its devices over those asked for."""
    views = ViewRow.objects.filter(job=job).values_list("epoch", "install")
    computing = {epoch: len(install["contributors"]) for epoch, install in views if install}
    rows = list(StepRecord.objects.filter(job=job).order_by("step").values_list("epoch", "at"))
    before = [began, *(at for _, at in rows)]
    used_s = sum((at - b).total_seconds() * computing[epoch] for (epoch, at), b in zip(rows, before, strict=False))
    assert job.finished_at is not None
    return used_s / (3 * (job.finished_at - began).total_seconds())


def all_shown(job: Job) -> tuple[float, str]:
    """The figure and its word by the API, checked against the page's overview, the command line and Prometheus."""
    summary, whole = job_summary(job), overview(EVERYTHING)
    assert whole["goodput_24h"] == pytest.approx(summary["ettr"])
    assert whole["goodput_estimated"] is (summary["ettr_basis"] == "estimated")
    word = " estimated" if summary["ettr_basis"] == "estimated" else ""
    assert next(c for c in JOBS if c.title == "ETTR").show(summary) == f"{100 * summary['ettr']:.1f}%{word}"
    gauges.refresh()
    assert metrics.EFFECTIVE.labels(job_id=job.id)._value.get() == summary["ettr"]
    return summary["ettr"], summary["ettr_basis"]


def test_three_were_asked_for_and_two_came_and_the_figure_says_that_it_is_estimated() -> None:
    told = Told(age_s=3000.0)
    told.new_view(contributors=2)
    told.steps(60, 1.5)
    job = told.end()
    ettr, basis = all_shown(job)
    assert ettr == pytest.approx(device_share(job, began=told.began), abs=0.01)
    assert ettr == pytest.approx(2 / 3, abs=0.01)
    assert (basis, numbers_of(job).undisturbed_step_s) == ("estimated", pytest.approx(1.0, rel=0.01))

    told.new_view(contributors=3)  # The third comes, and is worth less than its devices.
    told.steps(60, 1.2)
    ettr, basis = all_shown(told.end())
    assert (basis, ettr) == ("observed", pytest.approx(120 * 1.2 / (60 * 1.5 + 60 * 1.2), abs=0.01))


def test_why_there_is_no_figure_is_said() -> None:
    told = Told(age_s=3000.0)
    told.steps(2, 1.0)
    young = job_summary(told.fresh())
    assert (young["ettr"], young["ettr_basis"]) == (None, "too_few_steps")
    told.steps(60, 1.0)
    JobPace.objects.filter(job=told.job).delete()  # As an older release left it that counted no commits.
    Job.objects.filter(pk=told.job.pk).update(state="succeeded", finished_at=told.at)
    ended = job_summary(told.fresh())
    assert (ended["ettr"], ended["ettr_basis"]) == (None, "not_counted")
    assert next(c for c in JOBS if c.title == "ETTR").show(ended) == "not counted"
    assert overview(EVERYTHING)["goodput_24h"] is None


def test_page_command_line_overview_and_prometheus_tell_the_same_figure() -> None:
    told = Told(age_s=200.0)
    told.steps(60, 1.0)
    told.stall(60.0)
    told.new_view()
    told.steps(40, 1.0)
    job = told.end()
    ettr = numbers_of(job).ettr
    assert ettr == pytest.approx(100 / 160, abs=0.01)
    summary = job_summary(job)
    assert summary["ettr"] == ettr
    assert next(column for column in JOBS if column.title == "ETTR").show(summary) == f"{100 * ettr:.1f}%"
    assert overview(EVERYTHING)["goodput_24h"] == pytest.approx(ettr)
    gauges.refresh()
    shown = metrics.EFFECTIVE.labels(job_id=job.id)._value.get()
    assert shown == ettr
    assert metrics.PRODUCTIVITY.labels(job_id=job.id)._value.get() == numbers_of(job).productivity


def test_the_overview_weighs_the_last_day_by_devices() -> None:
    told = Told(age_s=30 * 3600.0)
    told.steps(360, 300.0)  # A whole day and six hours, undisturbed: exactly what the clock says.
    row = JobPace.objects.get(job=told.job)
    assert len(row.pace["marks"]) <= 52
    last = overview(EVERYTHING)["goodput_24h"]
    assert last == pytest.approx(1.0, abs=0.02)


def test_a_job_that_has_stood_still_for_days_is_of_the_last_day_a_day_and_no_step() -> None:
    told = Told(age_s=5 * 86_400.0)
    told.steps(40, 1.0)
    assert overview(EVERYTHING)["goodput_24h"] == 0.0
    told.at = now() - timedelta(seconds=0.6 * 86_400.0)
    told.steps(1, 1.0)
    told.steps(360, 120.0)
    assert overview(EVERYTHING)["goodput_24h"] == pytest.approx(0.5 / 120.0, rel=0.02), (
        "half of the day, of steps of a second"
    )


def test_no_figure_reads_more_rows_for_a_job_that_trained_longer() -> None:
    told = Told(age_s=3000.0)
    told.steps(50, 1.0)
    with CaptureQueriesContext(
        connection,
    ) as asked:
        numbers_of(told.fresh())
    steps = [query["sql"] for query in asked if "jobs_steprecord" in query["sql"]]
    assert steps and all("LIMIT" in sql for sql in steps)


def test_a_joiners_own_clock_is_nobodys_step_time() -> None:
    told = Told(age_s=300.0)
    told.steps(1, 1.0)
    merge = StepMerge()
    told.ranks[2].replica.contributing = False
    merge.add(told.job, told.ranks[2], StepReport(0, told.epoch, 55.0, 64, (), stall_s=50.0), told.at)
    merge.write()
    row = StepRecord.objects.get(job=told.job, step=0)
    assert (row.step_time_s, row.stall_s) == (1.0, 0.0)
