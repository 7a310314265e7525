"""A rank is late by what it says after its limit, or by its silence; never by what it said before."""

from agents.core import events as ev
from agents.core import limits
from controlplane.protocol.frames import RankOverdue
from controlplane.protocol.rank import RankProgress
from controlplane.protocol.states import Phase, Section
from tests.unit.agents.test_core_rules import hello, running, told


def test_a_rank_that_was_done_in_time_is_not_late_for_what_it_said_a_moment_before():
    """It may take 60 s and takes 59.5; its words come each second, at 59.2 and at 60.2."""
    world = running()
    told(world, hello(world))

    def late_after(*words):
        """Of (seconds to pass, where it is then), as the agent hears them; it looks ten times a second."""
        for passed_s, phase, age_s in words:
            for _ in range(round(passed_s * 10)):
                world.now_s += 0.1
                world.feed(ev.Tick(now_s=world.now_s))
            place = RankProgress(Section.STEP, phase, age_s, age_s, 1)
            world.feed(ev.RankMessage(now_s=world.now_s, conn_id=1, message=place))
        return [kept.body.ref.rank for kept in world.state.events if isinstance(kept.body, RankOverdue)]

    assert late_after((0.0, Phase.COMPUTE, 59.2), (1.0, Phase.EXCHANGE, 0.7)) == []
    assert late_after((5.0, Phase.COMPUTE, 59.2), (1.0, Phase.COMPUTE, 60.2), (0.1, Phase.COMPUTE, 60.3)) == [0]


def test_a_rank_that_says_nothing_any_more_is_late_a_word_after_its_limit_and_no_later():
    world = running()
    told(world, hello(world))
    place = RankProgress(Section.STEP, Phase.COMPUTE, 59.2, 59.2, 1)
    world.feed(ev.RankMessage(now_s=world.now_s, conn_id=1, message=place))
    world.feed(ev.Tick(now_s=world.now_s + 1.0))
    assert not any(isinstance(kept.body, RankOverdue) for kept in world.state.events), "its next word may be on its way"
    world.feed(ev.Tick(now_s=world.now_s + limits.NEXT_WORD_S + 0.01))
    assert sum(isinstance(kept.body, RankOverdue) for kept in world.state.events) == 1
