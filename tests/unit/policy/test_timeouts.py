"""A section's limit is given or learned; the grace of an end is never less than a save takes."""

import pytest

from controlplane.policy.failures import find_failures
from controlplane.policy.plan import EndAttempt
from controlplane.policy.snapshot import LearnedTimes
from controlplane.policy.timeouts import (
    MIN_STEPS,
    NEVER_S,
    Observed,
    Seen,
    Source,
    lease_s,
    section_timeouts,
    setup_limit_s,
    step_floor_s,
    timeout_of,
)
from controlplane.protocol.spec import Scheduling, Timeouts
from controlplane.protocol.states import ReplicaState, Section
from tests.unit.policy.builders import CONFIG, NOW_S, action, job, only, running, spec, with_replica

STEP = Section.STEP


def step(wish: Timeouts, longest_s: float | None, count: int) -> tuple[float, Source]:
    found = section_timeouts(wish, Observed(steps=Seen(longest_s=longest_s, samples=count)))
    return timeout_of(found, STEP), next(timeout.source for timeout in found if timeout.section is STEP)


def test_a_given_limit_is_never_learned():
    assert step(Timeouts(step_s=7.0), 9.0, 500) == (7.0, Source.GIVEN)


def test_a_learned_limit_is_five_times_the_longest_step():
    assert step(Timeouts(), 3.0, MIN_STEPS) == (15.0, Source.LEARNED)


def test_sixteen_steps_are_needed_to_learn():
    assert step(Timeouts(), 3.0, MIN_STEPS - 1) == (180.0, Source.DEFAULT)
    assert step(Timeouts(), None, 0) == (180.0, Source.DEFAULT)


def test_nothing_is_learned_below_the_floor():
    assert step(Timeouts(step_floor_s=5.0), 0.1, 99) == (5.0, Source.LEARNED)


SIX = Seen(longest_s=6.0, samples=1)
AUTO = Timeouts(setup_s="auto", checkpoint_s="auto", out_of_section_s="auto")


def limits(wish: Timeouts, seen: Observed) -> list[tuple[float, Source]]:
    """Of setup, checkpointing and out of section."""
    return [(t.value_s, t.source) for t in section_timeouts(wish, seen) if t.section is not STEP]


def test_each_section_is_learned_from_what_counts_for_it():
    seen = Observed(setups=SIX, saves=Seen(longest_s=4.0, samples=2), closes=SIX, blocking_saves=True)
    learned = Source.LEARNED
    assert limits(AUTO, seen) == [(30.0, learned), (20.0, learned), (30.0, learned)]
    before = [(600.0, Source.DEFAULT), (420.0, Source.DEFAULT), (300.0, Source.DEFAULT)]
    assert limits(AUTO, Observed()) == before


def test_asynchronous_saves_teach_nothing_about_checkpointing():
    asynchronous = Observed(saves=SIX, blocking_saves=False)
    assert limits(AUTO, asynchronous)[1] == (420.0, Source.DEFAULT)


def test_a_short_setup_does_not_make_a_busy_host_look_hung():
    assert limits(AUTO, Observed(setups=Seen(longest_s=0.2, samples=3)))[0] == (30.0, Source.LEARNED)


def test_the_control_planes_own_patience_with_a_setup_is_the_learned_one_where_that_is_longer():
    assert [setup_limit_s(AUTO, learned_s) for learned_s in (None, 40.0, 750.0)] == [600.0, 600.0, 750.0]
    assert setup_limit_s(Timeouts(setup_s=9.0), 750.0) == 9.0


@pytest.mark.parametrize(
    ("wish", "transfer_s", "setup_s", "source"),
    [
        (Timeouts(), None, 600.0, Source.GIVEN),
        (Timeouts(), 100.0, 600.0, Source.GIVEN),
        (Timeouts(), 850.0, 4250.0, Source.LEARNED),
        (AUTO, 850.0, 4250.0, Source.LEARNED),
        (Timeouts(setup_s=900.0), 850.0, 900.0, Source.GIVEN),
        (Timeouts(watchdog="heartbeat"), 850.0, 1800.0, Source.GIVEN),
    ],
)
def test_a_checkpoint_that_takes_long_to_read_has_long_to_be_loaded_before_any_setup_was_measured(
    wish: Timeouts, transfer_s: float | None, setup_s: float, source: Source
):
    """85 GB at 100 MB/s take 850 s: with 600 s it could never be restarted from."""
    found = section_timeouts(wish, Observed(transfer_s=transfer_s))
    setup = next(limit for limit in found if limit.section is Section.SETUP)
    assert (setup.value_s, setup.source) == (setup_s, source)
    assert setup_limit_s(wish, setup.value_s) == setup_s, "the control plane waits as long as the agent"
    assert ("850 s to write, read back or load" in setup.why) is (source is Source.LEARNED)


def test_setups_that_loaded_one_count_for_the_default_too_and_by_themselves_where_they_are_learned():
    slow, quick = Seen(longest_s=700.0, samples=1), Seen(longest_s=8.0, samples=1)
    assert limits(Timeouts(), Observed(setups=slow))[0] == (3500.0, Source.LEARNED)
    assert limits(Timeouts(), Observed(setups=quick))[0] == (600.0, Source.GIVEN)
    assert limits(AUTO, Observed(setups=quick, transfer_s=850.0))[0] == (40.0, Source.LEARNED)


def test_a_replica_has_as_long_to_catch_up_as_the_state_that_it_fetches_asks_for():
    def fate(age_s: float, **learned: float) -> list[str]:
        world = running(learned=LearnedTimes(**learned))
        late = with_replica(world, 1, state=ReplicaState.CATCHING_UP, contributing=False, state_since_s=NOW_S - age_s)
        return [failure.kind for failure in find_failures(late, CONFIG)]

    assert fate(601.0) == fate(601.0, save_p95_s=100.0) == ["catch_up_timeout"]
    assert fate(4249.0, save_p95_s=850.0) == fate(4249.0, catch_up_s=850.0) == []
    assert fate(4251.0, save_p95_s=850.0) == ["catch_up_timeout"]


def test_a_program_that_only_beats_has_one_limit_until_the_first_beat_and_one_between_beats():
    beats = Timeouts(watchdog="heartbeat", first_heartbeat_s=1800.0, heartbeat_s=300.0)
    found = section_timeouts(beats, Observed(steps=Seen(longest_s=1.0, samples=99)))
    assert [t.value_s for t in found] == [1800.0, 300.0, 300.0, 300.0]
    assert {t.source for t in found} == {Source.GIVEN}
    assert (setup_limit_s(beats, 9999.0), step_floor_s(beats), step_floor_s(Timeouts())) == (1800.0, None, 5.0)
    for_ever = section_timeouts(Timeouts(watchdog="heartbeat", first_heartbeat_s=None, heartbeat_s=None), Observed())
    assert all(t.value_s == NEVER_S for t in for_ever)


def test_the_other_sections_are_as_given():
    given = Timeouts(setup_s=1.0, checkpoint_s=2.0, out_of_section_s=3.0)
    assert limits(given, Observed(setups=SIX, saves=SIX, closes=SIX, blocking_saves=True)) == [
        (1.0, Source.GIVEN), (2.0, Source.GIVEN), (3.0, Source.GIVEN),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("given_s", "p95_s", "grace_s"), [(60.0, None, 60.0), (60.0, 10.0, 60.0), (5.0, 10.0, 17.0), (0.0, 10.0, 0.0)]
)
def test_a_grace_that_is_shorter_than_a_save_is_extended_and_says_so(given_s, p95_s, grace_s):
    wanted = spec(scheduling=Scheduling(preempt_grace_s=given_s))
    world = running(job=job(spec=wanted, cancel_requested=True), learned=LearnedTimes(save_p95_s=p95_s))
    decision = only(world, "lifecycle")
    assert action(decision, EndAttempt).grace_s == grace_s
    assert decision.evidence == {
        "grace_given_s": given_s, "save_p95_s": p95_s, "grace_extended": grace_s > given_s,
    }  # fmt: skip
    assert ("is less than its saves take" in decision.sentence) == (grace_s > given_s)


def test_before_anything_was_learned_each_section_has_the_limit_of_nvidia_resiliency_ext():
    found = {limit.section: limit.value_s for limit in section_timeouts(Timeouts(), Observed())}
    assert found == {
        Section.SETUP: 600.0,
        Section.STEP: 180.0,
        Section.CHECKPOINTING: 420.0,
        Section.OUT_OF_SECTION: 300.0,
    }


def test_a_first_step_of_more_than_a_minute_is_waited_for_and_a_silent_node_is_not_waited_for_as_long():
    first_step_s = 170.0
    assert timeout_of(section_timeouts(Timeouts(), Observed()), Section.STEP) > first_step_s
    assert lease_s(Timeouts(), None, floor_s=10.0) == 60.0
