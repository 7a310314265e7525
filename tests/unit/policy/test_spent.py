"""Where a job's wall time went, counted one commit at a time."""

import msgspec
import pytest

from controlplane.policy.pace import Commit, Pace, count, undisturbed_step
from controlplane.policy.spent import Spent, Wall, begin, wall
from controlplane.policy.spent import count as count_spent

BEGAN_S = 1000.0


class Story:
    """A job's commits, one after the other, and what is kept of them."""

    def __init__(self) -> None:
        self.pace, self.spent, self.told = Pace(), begin(BEGAN_S), list[Commit]()
        self.at_s, self.step, self.epoch, self.attempt, self.gpus = BEGAN_S, 0, 1, 1, 6

    def wait(self, seconds: float) -> "Story":
        self.at_s += seconds
        return self

    def steps(self, number: int, each_s: float) -> "Story":
        for _ in range(number):
            self.wait(each_s)
            self.tell(
                Commit(attempt=self.attempt, step=self.step, epoch=self.epoch, at_s=self.at_s, gpus=self.gpus,
                       kept=self.step + 1)
            )  # fmt: skip
            self.step += 1
        return self

    def tell(self, commit: Commit) -> None:
        self.told.append(commit)
        count(self.pace, commit)
        count_spent(self.spent, commit, self.pace)

    def restart(self, step: int) -> "Story":
        """From a checkpoint."""
        self.attempt, self.epoch, self.step = self.attempt + 1, self.epoch + 1, step
        return self

    def view(self, gpus: int) -> "Story":
        self.epoch, self.gpus = self.epoch + 1, gpus
        return self

    def wall(self, *, training: bool = True) -> Wall:
        undisturbed = undisturbed_step(self.pace, wanted_gpus=6)
        assert undisturbed is not None
        return wall(
            self.spent, kept=self.step, undisturbed_step_s=undisturbed.step_s, until_s=self.at_s, training=training
        )


def seconds(found: Wall) -> dict[str, float]:
    """Of each kind, without those that are none."""
    told: dict[str, float] = msgspec.to_builtins(found)
    assert sum(told.values()) - found.wall_s == pytest.approx(found.wall_s)
    return {name: value for name, value in told.items() if abs(value) > 0.5 and name != "wall_s"}


def test_a_quiet_job_is_productive_but_for_its_start():
    found = Story().wait(17.0).steps(200, 1.0).wall()
    assert found.wall_s == 217.0
    assert seconds(found) == {"productive_s": pytest.approx(200.0, abs=0.6), "recovery_s": pytest.approx(17.0, abs=0.1)}


def test_each_loss_is_called_what_it_was():
    story = Story().steps(100, 1.0)
    story.wait(8.0).steps(1, 1.0)  # All waited for one, which came back.
    story.wait(5.0).view(4).steps(50, 1.5)  # One is lost, and two thirds of the devices go on.
    story.view(6).steps(20, 1.0)
    story.restart(151).wait(30.0).steps(40, 1.0)  # 20 steps were not saved.
    assert seconds(story.wall()) == {
        "productive_s": pytest.approx(191.0, abs=0.8),
        "degraded_s": pytest.approx(24.5, abs=0.8),
        "stalled_s": pytest.approx(8.0, abs=0.1),
        "recovery_s": pytest.approx(36.5, abs=0.1),  # The first step of the 50, and the first one of the restart.
        "lost_s": pytest.approx(19.0, abs=0.1),
    }


def test_what_went_back_is_lost_until_it_is_trained_again():
    story = Story().steps(100, 1.0)
    story.restart(60).wait(30.0)
    assert seconds(story.wall(training=False)) == {
        "productive_s": pytest.approx(60.0, abs=0.6),
        "recovery_s": pytest.approx(30.0),
        "lost_s": pytest.approx(40.0, abs=0.6),
    }


def test_saves_that_hold_training_up_are_taken_out_of_what_they_made_longer():
    story = Story().steps(100, 1.0)
    for _ in range(10):
        story.wait(4.0).steps(1, 1.0).steps(9, 1.0)
    story.spent.saved_s = 40.0
    assert seconds(story.wall()) == {
        "productive_s": pytest.approx(200.0, abs=0.6), "checkpoint_s": pytest.approx(40.0, abs=0.1)
    }  # fmt: skip


def test_what_follows_the_newest_commit_is_the_step_in_progress_then_a_stall_and_else_recovery():
    story = Story().steps(100, 1.0).wait(1.0)
    assert seconds(story.wall())["degraded_s"] == pytest.approx(1.0, abs=0.5)
    story.wait(59.0)
    assert seconds(story.wall())["stalled_s"] == pytest.approx(60.0)
    assert seconds(story.wall(training=False))["recovery_s"] == pytest.approx(60.0)


def test_told_again_changes_nothing_and_it_comes_back_from_json():
    story = Story().steps(50, 1.0)
    before = msgspec.to_builtins(story.spent)
    for commit in story.told[-20:]:
        count_spent(story.spent, commit, story.pace)
    assert msgspec.to_builtins(story.spent) == before
    assert msgspec.convert(msgspec.json.decode(msgspec.json.encode(before)), Spent) == story.spent
