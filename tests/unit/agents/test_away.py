"""This process was stopped, or its whole machine stood still: what it did not see accuses nobody."""

import pytest

from agents.core import events as ev
from agents.core import limits
from controlplane.protocol.frames import RankExited, RankOverdue
from controlplane.protocol.rank import RankProgress
from controlplane.protocol.states import Phase, Section
from tests.properties.agents.world import World
from tests.unit.agents.test_core_rules import hello, running, told

LIMIT_S = 60.0


def trains() -> World:
    world = running()
    told(world, hello(world))
    says(world, 0.0)
    return world


def says(world: World, age_s: float, *, step: int = 1, phase: Phase = Phase.COMPUTE) -> None:
    word = RankProgress(Section.STEP, phase, age_s, age_s, step)
    world.feed(ev.RankMessage(now_s=world.now_s, conn_id=1, message=word))


def tick(world: World, after_s: float) -> int:
    """How often a rank was told overdue, after a tick that comes `after_s` from now."""
    world.now_s += after_s
    world.feed(ev.Tick(now_s=world.now_s))
    return sum(isinstance(kept.body, RankOverdue) for kept in world.state.events)


def runs(world: World, seconds: float) -> int:
    """With ticks in time."""
    found = 0
    for _ in range(int(seconds * 2)):
        found = tick(world, 0.5)
    return found


def test_the_tick_after_a_stop_judges_no_rank_whose_word_was_not_read_yet() -> None:
    world = trains()
    assert tick(world, LIMIT_S + 30.0) == 0
    says(world, 0.2, step=9)
    assert runs(world, LIMIT_S - 5.0) == 0, "it went on meanwhile"
    assert runs(world, 10.0) == 1, "and is judged as ever"


@pytest.mark.parametrize("phase", [Phase.COMPUTE, Phase.EXCHANGE])
def test_a_rank_that_stood_still_with_its_machine_has_the_time_that_it_lost(phase: Phase) -> None:
    world = trains()
    says(world, 0.0, phase=phase)
    since_s = world.now_s
    runs(world, 10.0)
    assert tick(world, LIMIT_S + 30.0) == 0
    if phase is Phase.COMPUTE:
        says(world, world.now_s - since_s)
    assert runs(world, 30.0) == 0


def test_one_that_was_stuck_before_is_still_found() -> None:
    world = trains()
    runs(world, 30.0)
    assert tick(world, 100.0) == 0
    assert runs(world, LIMIT_S + limits.WORD_S + 5.0) == 1


def test_a_word_that_comes_first_changes_nothing_of_it() -> None:
    """Of two ranks the word of one is read before the tick."""
    world = trains()
    told(world, hello(world, rank_index=1, conn_id=2))
    word = RankProgress(Section.STEP, Phase.COMPUTE, 0.0, 0.0, 1)
    world.feed(ev.RankMessage(now_s=world.now_s, conn_id=2, message=word))
    runs(world, 10.0)
    world.now_s += LIMIT_S
    says(world, 0.1, step=7)
    assert tick(world, 0.0) == 0


def test_where_nothing_gets_on_ranks_are_judged_all_the_same() -> None:
    world = trains()
    assert tick(world, LIMIT_S) == 0
    late = [tick(world, 10.0) for _ in range(10)]
    assert late[0] == 0 and late[-1] == 1


def test_a_tick_that_is_a_little_late_is_no_stop() -> None:
    world = trains()
    runs(world, LIMIT_S - 1.0)
    assert tick(world, 1.9) == 1


def test_a_limit_that_was_over_when_it_was_reported_is_no_stop() -> None:
    world = trains()
    says(world, 90.0, step=2)
    assert tick(world, 0.0) == 1


def test_an_exit_code_that_waits_in_the_hosts_pipe_is_read_first() -> None:
    world = trains()
    rank = next(iter(world.state.ranks.values()))
    world.feed(ev.RankProcessGone(now_s=world.now_s, ref=rank.ref, pid=None, exit_code=None, signal=None, known=False))
    tick(world, 30.0)
    assert [kept for kept in world.state.events if isinstance(kept.body, RankExited)] == []
    runs(world, limits.WORD_S + limits.ADOPT_EXIT_CODE_WAIT_S + 1.0)
    assert [kept for kept in world.state.events if isinstance(kept.body, RankExited)] != []
