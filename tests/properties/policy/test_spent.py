"""Whatever a job goes through: its wall time is counted in full, and as its raw commits say."""

import random
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.policy.goodput import effective_ratio
from controlplane.policy.pace import STILL, Pace, best_step_s, count, undisturbed_step
from controlplane.policy.spent import begin, wall
from controlplane.policy.spent import count as count_spent
from tests.unit.policy.test_spent import BEGAN_S, Story

GAPS_S = st.sampled_from([0.9, 1.0, 1.0, 1.1, 1.4, 1.9, 5.0, 40.0])


@st.composite
def stories(draw: st.DrawFn) -> Story:
    """Steps, stalls, changes of the membership and restarts from any earlier step."""
    story = Story().wait(draw(st.floats(0.0, 30.0))).steps(10, 1.0)
    for _ in range(draw(st.integers(0, 8))):
        match draw(st.sampled_from(["steps", "wait", "view", "restart"])):
            case "steps":
                for gap_s in draw(st.lists(GAPS_S, max_size=12)):
                    story.steps(1, gap_s)
            case "wait":
                story.wait(draw(st.floats(0.0, 60.0)))
            case "view":
                story.view(draw(st.sampled_from([2, 4, 6])))
            case _:
                story.restart(draw(st.integers(0, story.step)))
    return story


def by_hand(story: Story, *, step_s: float) -> dict[str, float]:
    """From the raw commits alone, each second of each gap on its own: (epoch, step, moment), the best so far
    learned anew for every gap."""
    found = dict.fromkeys(("productive_s", "degraded_s", "stalled_s", "recovery_s", "lost_s"), 0.0)
    trained: dict[int, float] = {}  # What each step brought beyond one undisturbed one is told at once.
    moments = [(None, BEGAN_S), *((commit, commit.at_s) for commit in story.told)]
    for number, ((before, since_s), (commit, at_s)) in enumerate(pairwise(moments), start=1):
        assert commit is not None
        gap_s, again = at_s - since_s, commit.step in trained
        if before is None or (before.attempt, before.epoch) != (commit.attempt, commit.epoch):
            kind = "recovery_s"
        elif again:
            kind = "lost_s"
        else:
            pace = Pace()
            for each in story.told[:number]:
                count(pace, each)
            best_s = best_step_s(pace)
            kind = "stalled_s" if best_s is not None and gap_s > STILL * best_s else "degraded_s"
        found[kind] += gap_s - (0.0 if again else step_s)
        trained[commit.step] = at_s
    found["productive_s"] = story.step * step_s
    found["lost_s"] += len([step for step in trained if step >= story.step]) * step_s
    return found


@given(stories())
@settings(max_examples=60, deadline=None)
def test_it_is_all_of_the_wall_time_and_what_the_raw_commits_say(story):
    undisturbed = undisturbed_step(story.pace, wanted_gpus=6)
    assert undisturbed is not None
    found = story.wall(training=False)
    told: dict[str, float] = msgspec.to_builtins(found)
    wall_s = told.pop("wall_s")
    assert wall_s == story.at_s - BEGAN_S
    assert sum(told.values()) == pytest.approx(wall_s), "each second once"
    share = effective_ratio(committed=story.step, undisturbed_step_s=undisturbed.step_s, wall_s=wall_s)
    assert found.productive_s / wall_s == pytest.approx(share), "the effective time is its productive part"
    raw = by_hand(story, step_s=undisturbed.step_s)
    raw["recovery_s"] += story.at_s - story.told[-1].at_s
    assert {name: told[name] for name in raw} == pytest.approx(raw, abs=1e-6)


@given(stories(), st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_reports_that_come_twice_or_late_change_nothing(story, seed):
    chance = random.Random(seed)
    pace, spent = Pace(), begin(BEGAN_S)
    told = list(story.told)
    for number, commit in enumerate(story.told):
        for each in (commit, chance.choice(told[: number + 1])):
            count(pace, each)
            count_spent(spent, each, pace)
    assert msgspec.to_builtins(spent) == msgspec.to_builtins(story.spent)


@given(stories(), st.floats(0.0, 500.0))
@settings(max_examples=40, deadline=None)
def test_saves_move_time_and_make_none(story, saved_s):
    undisturbed = undisturbed_step(story.pace, wanted_gpus=6)
    assert undisturbed is not None
    story.spent.saved_s = saved_s
    found = wall(story.spent, kept=story.step, undisturbed_step_s=undisturbed.step_s, until_s=story.at_s, training=True)
    told: dict[str, float] = msgspec.to_builtins(found)
    assert 0.0 <= found.checkpoint_s <= saved_s
    assert sum(told.values()) == pytest.approx(2.0 * found.wall_s)
