"""Whatever happened: each second of each device is counted once, in one class, and as the effective time has it."""

import random
from collections import defaultdict

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.policy.goodput import effective_ratio
from controlplane.policy.ledger.account import Account, Key, account
from controlplane.policy.ledger.facts import Cause, Facts, Hold, JobFacts, Role, Turn, end_s
from controlplane.policy.pace import undisturbed_step
from controlplane.policy.spent import wall
from controlplane.protocol.ledger import TimeClass
from tests.properties.policy.ledger_worlds import UNTIL_S, Counted, worlds
from tests.properties.policy.test_spent import stories
from tests.unit.policy.test_spent import BEGAN_S, Story

WINDOWS = st.tuples(st.integers(0, UNTIL_S), st.integers(0, UNTIL_S)).map(sorted)


def by(found: Account, *names: str) -> dict[tuple[object, ...], float]:
    sums = defaultdict[tuple[object, ...], float](float)
    for key, amount in found.amounts.items():
        sums[tuple(getattr(key, name) for name in names)] += amount
    return {name: amount for name, amount in sums.items() if abs(amount) > 1e-6}


def role_at(facts: Facts, hold: Hold, second: int) -> str:
    before = [turn for turn in sorted(facts.turns.get(hold.replica, ())) if turn.from_s <= second]
    return before[-1].role if before else Role.JOINING


def held_at(facts: Facts, node: str, second: int) -> list[Hold]:
    """Who holds devices there in that second, looked up one by one."""
    found = [h for h in facts.holds if h.node == node and h.from_s <= second < end_s(h.until_s)]
    standing = next((s for s in facts.standings if s.node == node and s.from_s <= second < end_s(s.until_s)), None)
    gone = standing is not None and standing.down >= standing.devices
    return [h for h in found if not (gone and role_at(facts, h, second) == Role.LEAVING)]


@given(worlds(), WINDOWS)
@settings(max_examples=150, deadline=None)
def test_each_second_of_each_device_is_counted_once(facts, window):
    since, until = window[0], min(window[1], int(facts.judged_s))
    devices = held = 0
    for node in ("node-a", "node-b"):
        for second in range(since, until):
            holds = sum(hold.devices for hold in held_at(facts, node, second))
            known = sum(s.devices for s in facts.standings if s.node == node and s.from_s <= second < end_s(s.until_s))
            devices, held = devices + max(known, holds), held + holds
    for found in (account(facts, since, until), account(facts, since, until, by_node=True)):
        assert found.known_gpu_s == pytest.approx(devices, abs=1e-6)
        assert sum(found.amounts.values()) == pytest.approx(devices, abs=1e-6)
        assert sum(amount for key, amount in found.amounts.items() if key.job) == pytest.approx(held, abs=1e-6)


@given(worlds(), WINDOWS)
@settings(max_examples=80, deadline=None)
def test_each_node_and_each_job_sums_to_what_it_had(facts, window):
    since, until = window[0], min(window[1], int(facts.judged_s))
    found = by(account(facts, since, until, by_node=True), "node", "job")
    for node in ("node-a", "node-b"):
        for job in ("job_1", "job_2"):
            mine = [h.devices for s in range(since, until) for h in held_at(facts, node, s) if h.job == job]
            assert found.get((node, job), 0.0) == pytest.approx(sum(mine), abs=1e-6)


@given(worlds(), WINDOWS, st.integers(0, UNTIL_S))
@settings(max_examples=80, deadline=None)
def test_a_window_in_two_parts_says_the_same(facts, window, cut):
    first, last = window
    cut = max(first, min(last, cut))
    whole, one, two = (account(facts, *each) for each in ((first, last), (first, cut), (cut, last)))
    parts = defaultdict[Key, float](float)
    for found in (one, two):
        for key, amount in found.amounts.items():
            parts[key] += amount
    every = whole.amounts.keys() | parts.keys()
    assert {k: parts.get(k, 0.0) for k in every} == pytest.approx({k: whole.amounts.get(k, 0.0) for k in every})
    for at, job in enumerate(whole.jobs):
        assert one.jobs[at].queued_gpu_s + two.jobs[at].queued_gpu_s == pytest.approx(job.queued_gpu_s)


@given(worlds(), st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_the_sequence_of_facts_and_their_repetition_change_nothing(facts, seed):
    chance = random.Random(seed)
    names = ("jobs", "runs", "holds", "standings", "reserved")
    mixed = {name: chance.sample(list(getattr(facts, name)), len(getattr(facts, name))) for name in names}
    mixed |= {name: mixed[name] + mixed[name][:1] for name in ("holds", "standings", "reserved")}
    again = msgspec.structs.replace(facts, **{name: tuple(rows) for name, rows in mixed.items()})
    assert account(again, 0, UNTIL_S) == account(facts, 0, UNTIL_S)


@given(worlds(), WINDOWS)
@settings(max_examples=60, deadline=None)
def test_by_node_and_by_cause_are_the_same_seconds(facts, window):
    by_cause, by_node = (account(facts, *window, by_node=each) for each in (False, True))
    assert by(by_node, "job", "of") == pytest.approx(by(by_cause, "job", "of"), abs=1e-6)
    for node in ("node-a", "node-b"):
        alone = {(key.job, key.of): 0.0 for key in by_node.amounts if key.node == node}
        for key, amount in by_node.amounts.items():
            if key.node == node:
                alone[key.job, key.of] += amount
        found = by(account(facts, *window, node=node), "job", "of")
        assert found == pytest.approx({key: amount for key, amount in alone.items() if abs(amount) > 1e-6}, abs=1e-6)


@given(worlds(), st.integers(0, UNTIL_S), WINDOWS)
@settings(max_examples=60, deadline=None)
def test_a_late_fact_restates_its_job_and_its_time_alone(facts, at, window):
    """The first run is judged otherwise: no other job, no free device, and no window beside it changes."""
    if not facts.runs:
        return
    late = msgspec.structs.replace(facts.runs[0], cause=Cause("incident", "inc_late"), restated=True)
    after = msgspec.structs.replace(facts, runs=(late, *facts.runs[1:]))
    first, last = window
    old, new = account(facts, first, last), account(after, first, last)
    others = {key: amount for key, amount in old.amounts.items() if key.job != late.job}
    assert {key: amount for key, amount in new.amounts.items() if key.job != late.job} == others
    assert by(new, "of") == pytest.approx(by(old, "of"), abs=1e-6)
    if last <= late.from_s or first >= late.until_s:
        assert new.amounts == old.amounts


def counted(story: Story) -> Counted:
    """The commits of a story, each restart from the step before its first one."""
    found, attempt = Counted(BEGAN_S), 1
    for commit in story.told:
        found.commit(commit, resume_step=commit.step if commit.attempt != attempt else 0)
        attempt = commit.attempt
    if story.attempt != attempt or story.step < found.spent.step + 1:
        found.take_back(story.attempt, story.step)
    return found


@given(stories(), st.integers(1, 8))
@settings(max_examples=80, deadline=None)
def test_it_is_the_effective_time_and_the_wall_time_by_commits(story, devices):
    """Its productive part over full strength x wall is the one effective time, whatever the job had."""
    step = undisturbed_step(story.pace, wanted_gpus=6)
    assert step is not None
    made = counted(story)
    job = JobFacts(
        id="job_1", project="default", gpus=6, step_s=step.step_s, created_s=BEGAN_S, began_s=BEGAN_S,
        finished_s=None, training=True,
    )  # fmt: skip
    facts = Facts(
        judged_s=story.at_s, jobs=(job,), runs=made.facts("job_1"), turns={1: (Turn(0.0, Role.TRAINING),)},
        holds=(Hold(job="job_1", node="n", replica=1, from_s=BEGAN_S, until_s=None, devices=devices),),
    )  # fmt: skip
    found = account(facts, BEGAN_S, story.at_s)
    wall_s = story.at_s - BEGAN_S
    ratio = effective_ratio(committed=story.step, undisturbed_step_s=step.step_s, wall_s=wall_s)
    assert found.jobs[0].ettr == pytest.approx(ratio, abs=1e-9)
    if devices != 6:
        return
    known = wall(made.spent, kept=story.step, undisturbed_step_s=step.step_s, until_s=story.at_s, training=True)
    mine = {of: amount / 6 for (of,), amount in by(found, "of").items()}
    assert mine.get(TimeClass.DEGRADED, 0.0) == pytest.approx(known.degraded_s, abs=1e-5)
    assert mine.get(TimeClass.STALL, 0.0) == pytest.approx(known.stalled_s, abs=1e-5)
    # The first step of a restart is a step that was trained again: here lost work, there a part of the recovery.
    redone = mine.get(TimeClass.LOST_WORK, 0.0) + mine.get(TimeClass.RECOVERY, 0.0)
    assert redone == pytest.approx(known.lost_s + known.recovery_s, abs=1e-5)
