"""What keeps a start from being carried out: its attempt and its incarnation, never a view that came meanwhile."""

import pytest

from agents.core import events as ev
from controlplane.protocol.commands import Body, DeliverView, StartRanks, StopRanks
from controlplane.protocol.frames import CommandAnswer
from controlplane.protocol.membership import Member, MemberRole, View
from tests.properties.agents.world import World, launch, order


def given(*orders: tuple[Body, int]) -> tuple[World, dict[str, str]]:
    """A node after these orders, each with its epoch; their last answers."""
    world = World()
    world.connect()
    for number, (body, epoch) in enumerate(orders, 1):
        world.feed(ev.OrderReceived(now_s=world.now_s, commands=(order(number, body, epoch, 1),)))
        while world.pending:
            world.deliver(0)
    told = [kept.body for kept in world.state.events if isinstance(kept.body, CommandAnswer)]
    return world, {answer.command_id: answer.state for answer in told}


def view(epoch: int) -> DeliverView:
    return DeliverView(View("job_1", 1, epoch, (Member(1, 1, MemberRole.CONTRIBUTOR),)))


def start(incarnation: int) -> StartRanks:
    return StartRanks(launch(replica=0, incarnation=incarnation))


def stop(incarnation: int) -> StopRanks:
    return StopRanks("job_1", 1, 0, incarnation, 0.0, "gone")


def test_a_start_that_a_newer_view_has_overtaken_is_carried_out() -> None:
    """Its order was on the way while another replica failed. Refused, its slot stood empty until the time
    for its set-up was over."""
    world, answers = given((view(48), 48), (start(12), 47))
    assert answers["cmd_2"] == "acknowledged" or answers["cmd_2"] == "succeeded"
    assert {(ref.replica, ref.incarnation) for ref in world.forked} == {(0, 12)}
    assert world.state.jobs["job_1"].epoch == 48, "the fence of views stays where it was"


@pytest.mark.parametrize("late", [11, 12])
def test_a_start_that_comes_after_its_end_was_ordered_is_not(late: int) -> None:
    world, answers = given((stop(12), 47), (start(late), 47))
    assert answers["cmd_2"] == "superseded" and not world.forked


@pytest.mark.parametrize(("late", "state"), [(12, "superseded"), (13, "succeeded")])
def test_a_stop_without_an_epoch_of_a_job_that_is_not_known_here_fences_its_start_too(late: int, state: str) -> None:
    world, answers = given((stop(12), 0), (start(late), 47))
    assert answers["cmd_2"] == state and bool(world.forked) == (late == 13)


def test_the_life_after_one_that_was_ended_is_started() -> None:
    world, _ = given((stop(12), 47), (start(13), 46))
    assert {ref.incarnation for ref in world.forked} == {13}


def test_a_view_of_an_older_epoch_is_still_refused() -> None:
    _, answers = given((view(48), 48), (view(47), 47))
    assert answers["cmd_2"] == "superseded"
