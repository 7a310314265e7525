"""What an agent concludes from its journal: after its machine was started again, and of a rank that says nothing."""

from agents.core import events as ev
from agents.core.records import CommandSeen, JobKept, Opened, RankKept
from agents.core.restore import restore
from agents.core.state import CommandStage
from agents.core.step import resume
from controlplane.protocol.commands import StartRanks
from controlplane.protocol.states import Section
from tests.properties.agents.world import BOOT, World, launch, order


def started() -> World:
    """One replica was started and has come up."""
    world = World()
    world.connect()
    world.feed(ev.OrderReceived(now_s=world.now_s, commands=(order(1, StartRanks(launch()), 1, 1),)))
    world.settle()
    assert world.forked
    return world


def test_a_start_whose_end_was_lost_with_the_power_is_not_carried_out_a_second_time() -> None:
    """The order is forced to the disk; that it succeeded is only written, and what ranks trained since is gone."""
    forced = [record for record in started().disk if isinstance(record, Opened | JobKept | CommandSeen)]
    state = restore(forced, boot_id="boot-2", fresh_journal_id="jrn_2", now_s=0.0)
    state, _ = resume(state, 0.0)
    assert state.launches == ()
    assert state.commands["cmd_1"].stage is CommandStage.FAILED
    same = restore(forced, boot_id=BOOT, fresh_journal_id="jrn_2", now_s=0.0)
    same, _ = resume(same, 0.0)
    assert len(same.launches) == 1, "where the machine went on, the start goes on"


def test_a_rank_that_had_come_up_and_is_not_heard_again_is_late_in_a_step() -> None:
    """Taken to be in its start, it would end the finding that a step of it is overdue."""
    world = started()
    (kept, *_) = [record for record in world.disk if isinstance(record, RankKept) and record.pid]
    for joined, section in ((True, Section.STEP), (False, Section.SETUP)):
        record = type(kept)(**{name: getattr(kept, name) for name in kept.__struct_fields__} | {"joined": joined})
        state = restore([*world.disk, record], boot_id=BOOT, fresh_journal_id="x", now_s=0.0)
        assert state.ranks[kept.ref].section is section
