"""The undisturbed step, the job's own best and what it does now, counted one commit at a time."""

import random
from statistics import median

import msgspec
import pytest

from controlplane.policy.goodput import effective_ratio
from controlplane.policy.pace import (
    MARK_EVERY_S,
    WINDOW,
    Commit,
    Mark,
    Pace,
    best_step_s,
    count,
    kept_at,
    productivity,
    undisturbed_step_s,
)


class Story:
    """A job's commits, told one after the other; every one of them is kept in `told`."""

    def __init__(self) -> None:
        self.pace, self.told = Pace(), list[Commit]()
        self.at_s, self.step, self.epoch, self.attempt, self.gpus = 1000.0, 0, 1, 1, 6

    def steps(self, number: int, each_s: float) -> "Story":
        for _ in range(number):
            self.at_s += each_s
            commit = Commit(
                attempt=self.attempt, step=self.step, epoch=self.epoch, at_s=self.at_s, gpus=self.gpus,
                kept=self.step + 1,
            )  # fmt: skip
            self.told.append(commit)
            count(self.pace, commit)
            self.step += 1
        return self

    def view(self, stall_s: float, gpus: int) -> "Story":
        self.at_s, self.epoch, self.gpus = self.at_s + stall_s, self.epoch + 1, gpus
        return self

    def ettr(self) -> float:
        undisturbed_s = undisturbed_step_s(self.pace)
        assert undisturbed_s is not None
        found = effective_ratio(committed=self.step, undisturbed_step_s=undisturbed_s, wall_s=self.at_s - 1000.0)
        assert found is not None
        return found


def test_a_quiet_job_is_fully_effective_and_fully_productive() -> None:
    story = Story().steps(200, 2.0)
    assert story.ettr() == pytest.approx(1.0, abs=0.003)
    assert productivity(story.pace) == pytest.approx(1.0)


def test_stalls_show_in_full() -> None:
    story = Story().steps(100, 1.0)
    for _ in range(24):
        story.view(5.0, 6).steps(20, 1.0)
    assert story.ettr() == pytest.approx(580 / (580 + 24 * 5.0), abs=0.004)


def test_less_strength_counts_as_less() -> None:
    story = Story().steps(100, 1.0).view(0.0, 4).steps(100, 1.5)
    assert undisturbed_step_s(story.pace) == pytest.approx(1.0, rel=0.003)
    assert story.ettr() == pytest.approx(200 / 250, abs=0.004)
    assert productivity(story.pace) == pytest.approx(1 / 1.5)


def test_a_job_that_began_small_is_measured_by_its_full_strength_once_it_has_it() -> None:
    story = Story().view(0.0, 4).steps(100, 1.5).view(0.0, 6).steps(100, 1.0)
    assert undisturbed_step_s(story.pace) == pytest.approx(1.0, rel=0.003)
    assert story.ettr() == pytest.approx(200 / 250, abs=0.004)


@pytest.mark.parametrize("slow_steps", [40, 400, 4000])
def test_a_slow_down_by_two_point_four_shows_however_long_it_lasts(slow_steps: int) -> None:
    story = Story().steps(100, 1.0).steps(slow_steps, 2.4)
    assert productivity(story.pace) == pytest.approx(1 / 2.4)
    assert story.ettr() == pytest.approx((100 + slow_steps) / (100 + 2.4 * slow_steps), abs=0.004)
    assert story.ettr() < 1.0, "the median of all steps would have said more than everything"


def test_steps_trained_again_count_once() -> None:
    story = Story().steps(100, 1.0)
    story.attempt, story.step, story.at_s = 2, 60, story.at_s + 30.0
    story.view(0.0, 6).steps(40, 1.0)
    assert story.ettr() == pytest.approx(100 / 170, abs=0.004)


def test_what_is_counted_is_the_median_of_the_raw_gaps() -> None:
    draw = random.Random(7)
    story = Story()
    for _ in range(3000):
        story.steps(1, draw.uniform(0.9, 1.1))
    raw = [b.at_s - a.at_s for a, b in zip(story.told, story.told[1:], strict=False)]
    assert undisturbed_step_s(story.pace) == pytest.approx(median(raw[1:]), rel=0.004)
    best_s = best_step_s(story.pace)
    assert best_s == min(median(raw[n : n + WINDOW]) for n in range(1, len(raw) - WINDOW + 1))


def test_told_again_changes_nothing_and_what_is_out_of_order_only_loses_its_gap() -> None:
    story = Story().steps(50, 1.0)
    before = msgspec.to_builtins(story.pace)
    for commit in story.told[-20:]:
        count(story.pace, commit)
    assert msgspec.to_builtins(story.pace) == before
    jump = msgspec.structs.replace(story.told[-1], step=60, at_s=story.at_s + 11.0)
    count(story.pace, jump)
    assert story.pace.run == 1
    assert story.pace.bins == Story().steps(50, 1.0).pace.bins


def test_a_gap_that_no_clock_can_measure_is_refused_and_counted() -> None:
    story = Story().steps(10, 1.0).steps(1, -0.5)
    assert story.pace.refused == 1
    assert min(story.pace.recent) > 0


def test_nothing_is_claimed_before_there_is_something_to_measure_by() -> None:
    story = Story().steps(4, 1.0)
    assert undisturbed_step_s(story.pace) is None
    assert productivity(Pace()) is None
    unknown = Story()
    unknown.gpus = 0
    assert undisturbed_step_s(unknown.steps(50, 1.0).pace) is None, "its strength is not known"


def test_the_first_steps_are_no_best_to_be_held_against() -> None:
    """Fast ones while the job warms up would show it at more than its own best."""
    story = Story().steps(6, 0.5)
    for _ in range(WINDOW):
        productive = productivity(story.steps(1, 0.8).pace)
        assert productive is None or productive <= 1.0
    assert productivity(story.steps(WINDOW, 0.8).pace) == pytest.approx(1.0)


def test_what_is_kept_of_a_hundred_thousand_steps_is_small_and_comes_back_from_json() -> None:
    draw = random.Random(3)
    story = Story()
    for _ in range(100_000):
        story.steps(1, draw.lognormvariate(0.0, 0.3))
    told = msgspec.json.encode(msgspec.to_builtins(story.pace, str_keys=True))
    assert len(told) < 20_000
    assert msgspec.convert(msgspec.json.decode(told), Pace, str_keys=True) == story.pace


def test_marks_say_what_was_kept_a_day_ago() -> None:
    story = Story().steps(40_000, 3.0)
    day_ago_s = story.at_s - 86_400.0
    mark = kept_at(story.pace, day_ago_s)
    assert mark is not None
    assert day_ago_s - MARK_EVERY_S - 3.0 <= mark.at_s <= day_ago_s
    assert mark == Mark(mark.at_s, next(c.kept for c in story.told if c.at_s == mark.at_s))
    assert kept_at(Story().steps(10, 1.0).pace, 0.0) is None
