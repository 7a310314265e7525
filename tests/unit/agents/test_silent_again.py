"""A rank that waits for others is late for its silence alone, each time."""

from agents.core import events as ev
from controlplane.protocol.frames import RankOverdue
from controlplane.protocol.rank import RankProgress
from controlplane.protocol.states import Phase, Section
from tests.unit.agents.test_core_rules import hello, passes, running, told


def test_a_rank_that_waits_and_falls_silent_a_second_time_is_overdue_a_second_time():
    """What was found is over as soon as it speaks, though it still waits for the same."""
    world = running()
    told(world, hello(world))
    began_s = world.now_s

    def overdue_after(silent_s):
        age_s = world.now_s - began_s
        waits = RankProgress(Section.STEP, Phase.EXCHANGE, age_s, age_s, 1)
        world.feed(ev.RankMessage(now_s=world.now_s, conn_id=1, message=waits))
        passes(world, silent_s)
        return sum(isinstance(kept.body, RankOverdue) for kept in world.state.events)

    assert [overdue_after(61.0), overdue_after(30.0), overdue_after(61.0)] == [1, 1, 2]
