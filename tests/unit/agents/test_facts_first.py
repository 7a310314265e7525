"""An agent that ends between any two records of what a rank said: the server hears of it all the same."""

import pytest

from agents.core import events as ev
from agents.core.effects import ToConnection
from agents.core.step import step
from controlplane.protocol.commands import DeliverInstall, StartRanks
from controlplane.protocol.frames import RankJoined, RankSaid
from controlplane.protocol.launch import RankRef
from controlplane.protocol.membership import Flush, Install, MemberRole
from controlplane.protocol.rank import InstallView, RankHello, RankProgress, TrainingDone
from controlplane.protocol.states import Phase, Section
from tests.properties.agents.world import World, launch, order

REF = RankRef("job_1", 1, 0, 1, 0)


def started() -> World:
    """A node with one replica whose ranks have just been forked."""
    world = World()
    world.connect()
    world.feed(ev.OrderReceived(now_s=world.now_s, commands=(order(1, StartRanks(launch()), 1, 1),)))
    world.settle()
    assert REF in world.alive
    return world


def says(world: World, conn_id: int, message: RankProgress | TrainingDone | Flush) -> None:
    """Rank 0 connects and says something."""
    pid = world.alive[REF]
    identity = next(rank.identity for rank in world.state.ranks.values() if rank.ref == REF)
    world.feed(
        ev.RankConnected(
            now_s=world.now_s, conn_id=conn_id, hello=RankHello(REF, pid, 0), peer=identity, session_pid=pid
        )
    )
    world.feed(ev.RankMessage(now_s=world.now_s, conn_id=conn_id, message=message))


def ends_after(records: int, message: RankProgress | TrainingDone) -> tuple[World, int]:
    """The agent ends when so many records of the message are written, and is started again; and how many there are."""
    world = started()
    before = len(world.disk)
    says(world, 1, message)
    count = len(world.disk) - before
    del world.disk[before + records :]
    world.restart_agent()
    return world, count


JOINS = RankProgress(Section.SETUP, Phase.PARKED, 0.0, 0.0, 0)
DONE = TrainingDone(step=60)


@pytest.mark.parametrize("records", range(3))
def test_that_a_rank_has_joined_is_told_whatever_record_the_agent_ends_after(records: int) -> None:
    world, count = ends_after(records, JOINS)
    assert count == 2
    says(world, 2, JOINS)  # A rank's reporter says each second where it is.
    world.settle()
    assert REF in {event.body.ref for event in world.received if isinstance(event.body, RankJoined)}
    assert world.state.ranks[REF].joined


@pytest.mark.parametrize("records", range(1, 4))
def test_that_a_rank_is_done_is_told_once_anything_of_it_is_kept(records: int) -> None:
    world, count = ends_after(records, DONE)
    assert count == 3, "the report, the rank, the job"
    world.settle()
    told = [event.body for event in world.received if isinstance(event.body, RankSaid)]
    assert told == [RankSaid(REF, DONE)]


def test_a_rank_that_answers_its_first_view_was_admitted_though_a_full_disk_kept_nothing_of_it():
    world = started()
    says(world, 1, Flush("job_1", 1, 2, 0, 1, 0, committed_step=0, prepared=False, role=MemberRole.CONTRIBUTOR))
    installed = DeliverInstall(Install("job_1", 1, 2, 0, (0,)))
    world.feed(ev.OrderReceived(now_s=world.now_s, commands=(order(3, installed, 2, 1),)))
    world.state, effects = step(world.state, world.pending.pop()())
    assert [type(each.message) for each in effects if isinstance(each, ToConnection)] == [InstallView]
