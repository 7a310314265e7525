"""Effective time and where wall time went, of a job in whose middle the server's clock was set: as if it never was."""

from datetime import datetime, timedelta

import pytest

from controlplane.checkpoints.models import Checkpoint
from controlplane.jobs import numbers, several
from controlplane.jobs.models import Attempt, Job
from controlplane.jobs.numbers import JobNumbers, numbers_of, spent_of
from controlplane.protocol.rank import StepReport
from controlplane.recovery import clock_set
from controlplane.recovery.steps import StepMerge
from controlplane.runtime import windows
from tests.integration.backend.test_effective_time import SHARE, Told

pytestmark = pytest.mark.django_db

HOUR_S = 3600.0
EACH = pytest.mark.parametrize("step_s", [HOUR_S, -HOUR_S, -30.0], ids=["ahead", "back", "back by less than it ran"])


class ByClock(Told):
    """`at` is what the server's clock tells."""

    def set_clock(self, step_s: float) -> "Step":
        self.at += timedelta(seconds=step_s)
        return Step(step_s, self.at)

    def spent_s(self) -> float:
        """Counted so far, from the beginning to the newest commit."""
        spent = spent_of(self.job)
        assert spent is not None
        assert sum(spent.seconds.values()) == pytest.approx(spent.at_s - spent.began_s)
        return spent.at_s - spent.began_s

    def saved_s(self) -> float:
        spent = spent_of(self.job)
        assert spent is not None
        return spent.saved_s

    def save(self) -> None:
        self.at += timedelta(seconds=0.1)
        name = f"ck_{Checkpoint.objects.count()}"
        Checkpoint.objects.create(
            id=name, job=self.job, attempt=1, step=self.step, epoch=1, path=f"/ck/{name}", kind="interval", layout={},
            state="complete", started_at=self.at, committed_at=self.at, blocking_s=0.25,
        )  # fmt: skip
        self.at += timedelta(seconds=0.1)


class Step:
    """The clock was set; the leader has not moved what is due."""

    def __init__(self, step_s: float, set_at: datetime) -> None:
        self.step_s, self.set_s = step_s, set_at.timestamp()

    def known(self) -> None:
        clock_set.move(self.step_s, set_s=self.set_s)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> ByClock:
    found = ByClock(age_s=0.0)
    for module in (windows, numbers, several):
        monkeypatch.setattr(module, "now", lambda: found.at)
    monkeypatch.setattr(clock_set, "now_s", lambda: found.at.timestamp())
    return found


def shown(job: Job) -> JobNumbers:
    found = numbers_of(job)
    assert found.ettr is not None
    assert found.wall is not None
    return found


def is_quiet(told: ByClock, *, steps: int) -> None:
    """One second each, and nothing else."""
    found = shown(told.fresh())
    assert found.ettr == pytest.approx(1.0, abs=0.01)
    assert found.wall is not None
    assert found.wall.wall_s == pytest.approx(steps, abs=1.0)
    assert abs(found.wall.stalled_s) + abs(found.wall.degraded_s) + abs(found.wall.recovery_s) < 2.0


@EACH
@pytest.mark.parametrize("late", [0, 20], ids=["known before the next commit", "known twenty commits later"])
def test_it_leaves_no_trace(told: ByClock, step_s: float, late: int) -> None:
    told.steps(40, 1.0)
    step = told.set_clock(step_s)
    told.steps(late, 1.0)
    step.known()
    is_quiet(told, steps=40 + late)
    told.steps(40 - late, 1.0)
    is_quiet(told, steps=80)
    ratio = several.goodput([told.fresh()], since=told.at - timedelta(days=1)).ratio
    assert ratio == pytest.approx(1.0, abs=0.01)


@EACH
def test_nor_when_the_clock_has_told_the_same_times_again(told: ByClock, step_s: float) -> None:
    told.steps(40, 1.0)
    told.set_clock(step_s).known()
    for _ in range(3):
        told.stall(0.5 * HOUR_S)
        told.steps(1, 1.0)
    found = shown(told.fresh())
    assert found.wall is not None
    assert found.wall.wall_s == pytest.approx(43.0 + 1.5 * HOUR_S, abs=2.0)
    assert found.wall.stalled_s == pytest.approx(1.5 * HOUR_S, abs=5.0)


@EACH
def test_a_report_that_came_before_the_step_and_is_counted_when_that_is_known(told: ByClock, step_s: float) -> None:
    told.steps(40, 1.0)
    told.stall(1.0)
    before = told.at
    told.set_clock(step_s).known()
    late(told, before)
    assert told.spent_s() == pytest.approx(41.0, abs=1e-3)
    told.steps(39, 1.0)
    is_quiet(told, steps=80)


def late(told: ByClock, at: datetime) -> None:
    """The next step, received at `at` by the clock of then."""
    merge = StepMerge()
    for rank in (told.ranks[0], told.ranks[-1]):
        merge.add(told.job, rank, StepReport(told.step, told.epoch, 1.0, 64, SHARE, 4.0), at)
    merge.write()
    told.step += 1


def test_set_back_and_right_again_between_two_commits(told: ByClock) -> None:
    told.steps(40, 1.0)
    told.set_clock(-HOUR_S).known()
    told.set_clock(HOUR_S).known()
    told.steps(40, 1.0)
    is_quiet(told, steps=80)


@EACH
def test_several_steps_one_after_the_other(told: ByClock, step_s: float) -> None:
    told.steps(20, 1.0)
    for each_s in (step_s, -900.0, HOUR_S, -20.0):
        step = told.set_clock(each_s)
        told.steps(5, 1.0)
        step.known()
        told.steps(10, 1.0)
    is_quiet(told, steps=80)


@EACH
def test_a_recovery_in_which_the_clock_is_set_is_as_long_as_it_was(told: ByClock, step_s: float) -> None:
    told.steps(40, 1.0)
    told.stall(4.0)
    step = told.set_clock(step_s)
    told.stall(6.0)
    told.new_view()
    told.steps(40, 1.0)
    step.known()
    found = shown(told.fresh())
    assert found.wall is not None
    assert found.wall.recovery_s == pytest.approx(10.0, abs=1.0)
    assert found.ettr == pytest.approx(80.0 / 90.0, abs=0.01)


@pytest.mark.parametrize("step_s", [2.0 * HOUR_S, -2.0 * HOUR_S])
def test_a_job_that_was_over_keeps_its_figures(told: ByClock, step_s: float) -> None:
    told.steps(40, 1.0)
    before = shown(told.end())
    told.stall(HOUR_S)
    told.set_clock(step_s).known()
    assert shown(told.fresh()).wall == before.wall


@EACH
def test_one_that_ended_between_the_step_and_the_moment_when_that_was_known(told: ByClock, step_s: float) -> None:
    told.steps(40, 1.0)
    step = told.set_clock(step_s)
    told.end()
    step.known()
    is_quiet(told, steps=40)


@EACH
def test_what_saves_held_up_is_counted_once(told: ByClock, step_s: float) -> None:
    told.steps(30, 1.0)
    told.save()
    told.steps(1, 1.0)
    assert told.saved_s() == pytest.approx(0.25)
    told.save()
    told.set_clock(step_s).known()
    told.steps(10, 1.0)
    assert told.saved_s() == pytest.approx(0.5)
    told.save()
    told.steps(1, 1.0)
    for _ in range(3):
        # The clock comes by their times once more.
        told.stall(abs(step_s) / 2.0)
        told.steps(1, 1.0)
    assert told.saved_s() == pytest.approx(0.75)


@EACH
def test_an_attempt_that_began_before_the_step_and_commits_first_after_it(told: ByClock, step_s: float) -> None:
    told.stall(20.0)
    told.set_clock(step_s).known()
    assert Attempt.objects.get(job=told.job).started_at == told.began
    told.stall(10.0)
    told.steps(20, 1.0)
    found = shown(told.fresh())
    assert found.wall is not None
    assert found.wall.wall_s == pytest.approx(50.0, abs=1.0)
