"""The undisturbed step, the job's own best and what it does now, counted one commit at a time."""

import itertools
import random
from statistics import median
from typing import Literal

import msgspec
import pytest

from controlplane.policy.goodput import effective_ratio
from controlplane.policy.pace import (
    MARKS,
    MIN_GAPS,
    SETTLED,
    WINDOW,
    Commit,
    Pace,
    Undisturbed,
    best_step_s,
    count,
    kept_by,
    productivity,
    stands_still,
    undisturbed_step,
)
from controlplane.policy.timeouts import WARM_UP_STEPS
from controlplane.protocol.spec import Parallelism, Resources, Training, TrainSpec, contributing_devices


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

    def gaps(self) -> list[float]:
        return [after.at_s - before.at_s for before, after in itertools.pairwise(self.told)]

    def view(self, stall_s: float, gpus: int) -> "Story":
        self.at_s, self.epoch, self.gpus = self.at_s + stall_s, self.epoch + 1, gpus
        return self

    def ettr(self, wanted_gpus: int = 6) -> float:
        undisturbed = undisturbed_step(self.pace, wanted_gpus=wanted_gpus)
        assert undisturbed is not None
        found = effective_ratio(committed=self.step, undisturbed_step_s=undisturbed.step_s, wall_s=self.at_s - 1000.0)
        assert found is not None
        return found

    def by_devices(self, wanted_gpus: int = 6) -> float:
        """Another way, of a job that computes without a pause: device-seconds used over those asked for."""
        gaps = zip([1000.0, *(c.at_s for c in self.told)], self.told, strict=False)
        used = sum((commit.at_s - before_s) * commit.gpus for before_s, commit in gaps)
        return used / (wanted_gpus * (self.at_s - 1000.0))

    def undisturbed_step_s(self) -> float | None:
        """At a strength that was seen in full."""
        undisturbed = undisturbed_step(self.pace, wanted_gpus=self.gpus)
        assert undisturbed is None or not undisturbed.estimated
        return undisturbed.step_s if undisturbed else None


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
    assert undisturbed_step(story.pace, wanted_gpus=6) == Undisturbed(pytest.approx(1.0, rel=0.003), False)
    assert story.ettr() == pytest.approx(200 / 250, abs=0.004)
    assert productivity(story.pace) == pytest.approx(1 / 1.5)


def test_a_job_that_began_small_is_measured_by_its_full_strength_once_it_has_it() -> None:
    story = Story().view(0.0, 4).steps(100, 1.5).view(0.0, 6).steps(100, 1.0)
    assert story.undisturbed_step_s() == pytest.approx(1.0, rel=0.003)
    assert story.ettr() == pytest.approx(200 / 250, abs=0.004)


def test_a_job_that_never_had_what_it_asked_for_is_measured_by_that_and_says_estimated() -> None:
    story = Story().view(0.0, 4).steps(100, 1.5)
    assert undisturbed_step(story.pace, wanted_gpus=6) == Undisturbed(pytest.approx(1.0, rel=0.003), True)
    assert story.ettr() == pytest.approx(2 / 3, abs=0.004)
    assert story.ettr() == pytest.approx(story.by_devices(), abs=0.004)
    story.view(0.0, 2).steps(50, 3.0)
    assert story.ettr() == pytest.approx(story.by_devices(), abs=0.004), "smaller still counts as smaller still"


def test_the_estimate_stands_until_full_strength_was_seen_and_then_goes() -> None:
    """Six devices are not half again as fast as four: what was seen counts, not what was worked out."""
    story = Story().view(0.0, 4).steps(100, 1.5).view(0.0, 6)
    for _ in range(1 + WARM_UP_STEPS + MIN_GAPS - 1):
        assert undisturbed_step(story.steps(1, 1.2).pace, wanted_gpus=6) == Undisturbed(
            pytest.approx(1.0, rel=0.003), True
        ), "never without a figure"
    assert undisturbed_step(story.steps(1, 1.2).pace, wanted_gpus=6) == Undisturbed(
        pytest.approx(1.2, rel=0.003), False
    )
    story.steps(95, 1.2)
    assert story.ettr() == pytest.approx(200 * 1.2 / (150 + 120), abs=0.004)


def test_full_strength_for_a_step_or_two_between_changes_is_not_seen_yet() -> None:
    story = Story().view(0.0, 4).steps(100, 1.5)
    for _ in range(5):
        story.view(0.0, 6).steps(WARM_UP_STEPS + MIN_GAPS, 1.0).view(0.0, 4).steps(5, 1.5)
    assert undisturbed_step(story.pace, wanted_gpus=6) == Undisturbed(pytest.approx(1.0, rel=0.003), True)


@pytest.mark.parametrize(
    ("nodes", "gpus_per_node", "layout", "mode", "devices"),
    [
        (3, 2, Parallelism(pp=2), "redistribute", 6),
        (2, 8, Parallelism(tp=2, pp=2), "redistribute", 16),
        (2, 8, Parallelism(tp=3), "redistribute", 15),  # One device of the sixteen makes no replica.
        (2, 8, Parallelism(tp=2, dp=3), "redistribute", 6),  # No more than three replicas were asked for.
        (4, 2, Parallelism(tp=2), "spares", 2),  # One computes, the others stand by.
    ],
)
def test_full_strength_is_what_the_spec_asks_for_to_compute(
    nodes: int, gpus_per_node: int, layout: Parallelism, mode: Literal["redistribute", "spares"], devices: int
) -> None:
    spec = TrainSpec(
        resources=Resources(nodes=nodes, gpus_per_node=gpus_per_node, min_replicas=1),
        parallelism=layout,
        training=Training(batch_mode=mode),
    )
    assert contributing_devices(spec) == devices


def test_another_layout_on_fewer_devices_is_less_than_was_asked_for() -> None:
    """2 x TP4 were asked for; the job goes on as 2 x TP2 and is as effective as its devices are few."""
    story = Story()
    story.gpus = 8
    story.steps(50, 1.0)
    story.attempt, story.gpus, story.epoch = 2, 4, 2
    story.steps(50, 2.0)
    assert undisturbed_step(story.pace, wanted_gpus=8) == Undisturbed(pytest.approx(1.0, rel=0.003), False)
    assert story.ettr(8) == pytest.approx(100 / 150, abs=0.004)


@pytest.mark.parametrize("slow_steps", [40, 400, 4000])
def test_a_slow_down_by_two_point_four_shows_however_long_it_lasts(slow_steps: int) -> None:
    story = Story().steps(100, 1.0).steps(slow_steps, 2.4)
    assert productivity(story.pace) == pytest.approx(1 / 2.4)
    assert story.ettr() == pytest.approx((100 + slow_steps) / (100 + 2.4 * slow_steps), abs=0.004)
    assert story.ettr() < 1.0, "the median of all steps would have said more than everything"


def test_a_step_under_way_is_the_speed_once_it_takes_longer_than_those_before() -> None:
    story = Story().steps(100, 1.0)
    assert [productivity(story.pace, open_s=open_s) for open_s in (0.0, 1.0, 4.0, 600.0)] == pytest.approx(
        [1.0, 1.0, 1 / 4, 1 / 600], rel=0.003
    )


def test_a_job_stands_still_once_nothing_came_for_three_times_its_longest_of_the_newest_steps() -> None:
    story = Story().steps(90, 1.0).steps(3, 4.0).steps(5, 1.0)
    assert not stands_still(story.pace, open_s=11.9)
    assert stands_still(story.pace, open_s=12.1)
    assert not stands_still(Pace(), open_s=1e6), "nothing was committed, nothing to judge by"
    story.attempt, story.step = 2, 0
    assert not stands_still(story.view(0.0, 6).steps(1, 1.0).pace, open_s=1e6), "nor of one step of an attempt"


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
    assert story.undisturbed_step_s() == pytest.approx(median(raw[1:]), rel=0.004)
    best_s = best_step_s(story.pace)
    assert best_s == min(median(raw[n : n + WINDOW]) for n in range(1, len(raw) - WINDOW + 1))


def test_steps_right_after_a_change_weigh_little_beside_those_that_come_later() -> None:
    """What came up still takes processors of those that train for some steps after each change."""
    story, changed = Story(), 0
    while changed < 25:
        story.view(1.0, 6).steps(1 + WARM_UP_STEPS + SETTLED, 1.1)
        changed += 1
        if changed == 20:
            assert story.undisturbed_step_s() == pytest.approx(1.1, rel=0.004), "nothing else is known"
            story.steps(2 * SETTLED, 1.0)
    assert len([gap for gap in story.gaps() if gap > 1.05]) > 20 * SETTLED
    assert story.undisturbed_step_s() == pytest.approx(1.0, rel=0.004)


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


def test_commits_that_waited_and_came_together_are_no_quick_steps() -> None:
    """A web process that was frozen reads 14 steps of 0.3 s at once."""
    story = Story().steps(40, 0.3)
    before = story.undisturbed_step_s()
    for gap_s in (4.2, *(0.000_1,) * 13):
        story.step += 1
        story.at_s += gap_s
        last = story.told[-1]
        commit = msgspec.structs.replace(last, step=last.step + 1, kept=last.kept + 1, at_s=story.at_s, step_s=0.31)
        story.told.append(commit)
        count(story.pace, commit)
    assert story.pace.refused == 13
    assert story.undisturbed_step_s() == pytest.approx(before, rel=0.003)
    assert best_step_s(story.pace) == pytest.approx(0.3, rel=0.01)


def test_nothing_is_claimed_before_there_is_something_to_measure_by() -> None:
    story = Story().steps(4, 1.0)
    assert story.undisturbed_step_s() is None
    assert productivity(Pace()) is None
    unknown = Story()
    unknown.gpus = 0
    assert undisturbed_step(unknown.steps(50, 1.0).pace, wanted_gpus=6) is None, "its strength is not known"


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


def test_what_an_older_release_kept_is_read_and_measured_by_what_was_asked_for() -> None:
    """As that release wrote it, of a job that asked for 6 devices and had 4."""
    old = {
        "attempt": 1, "step": 9, "epoch": 1, "at_s": 1015.0, "run": 10, "full_gpus": 4, "bins": {"81": 8},
        "window": [1.5] * 8, "recent": [1.5] * 9, "best_s": None, "refused": 0,
        "marks": [{"at_s": 1001.5, "kept": 1}],
    }  # fmt: skip
    pace = msgspec.convert(old, Pace, str_keys=True)
    assert undisturbed_step(pace, wanted_gpus=6) == Undisturbed(pytest.approx(1.0, rel=0.003), True)
    assert msgspec.to_builtins(pace, str_keys=True) == old, "and an older release reads what this one keeps"


def kept_at(story: Story, moment_s: float) -> int:
    """Another way, from every commit."""
    return sum(commit.at_s <= moment_s for commit in story.told)


def test_what_was_kept_at_a_moment_of_the_last_day_is_known_from_a_few_marks() -> None:
    story = Story().steps(40_000, 3.0)
    for ago_s in (86_400.0, 5_000.0, 100.0):
        moment_s = story.at_s - ago_s
        assert kept_by(story.pace, moment_s, kept=40_000) == pytest.approx(kept_at(story, moment_s), abs=2)
    assert kept_by(story.pace, story.at_s + 1.0, kept=40_000) == 40_000
    assert kept_by(Story().steps(10, 1.0).pace, 0.0, kept=10) == 0
    assert len(story.pace.marks) <= MARKS


def test_a_pause_of_days_has_no_steps() -> None:
    story = Story().steps(5_000, 1.0)
    paused_s = story.at_s
    story.steps(1, 5 * 86_400.0).steps(100, 1.0)
    for moment_s in (paused_s + 10.0, paused_s + 4 * 86_400.0):
        assert kept_by(story.pace, moment_s, kept=5_101) == pytest.approx(5_000, abs=1.5)
