"""What keeps a start from being carried out: its attempt and its incarnation, never a view that came meanwhile."""

import pytest

from agents.core import events as ev
from agents.core.restore import restore, snapshot
from controlplane.protocol.bounds import JobEnd
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


@pytest.mark.parametrize("final", ["", "cancelled"])
def test_a_start_that_comes_after_the_end_of_its_whole_attempt_is_not_carried_out(final: JobEnd) -> None:
    """The job was cancelled while the order was on its way: its ranks lived on, of a job that was over."""
    end = StopRanks("job_1", 1, -1, -1, 0.0, "it is over", final=final)
    late = StartRanks(launch(replica=0, incarnation=2, epoch=4))
    world, answers = given((start(1), 1), (end, 5), (late, 4))
    assert answers["cmd_3"] == "superseded"
    assert {ref.incarnation for ref in world.forked} == {1}
    again, _ = given((start(1), 1), (end, 5), (StartRanks(launch(replica=0, incarnation=2, epoch=6)), 6))
    assert {ref.incarnation for ref in again.forked} == {1, 2}, "a server that was set back goes on in later epochs"


def test_the_end_of_an_attempt_fences_its_starts_after_the_agent_was_started_again() -> None:
    world, _ = given((StopRanks("job_1", 1, -1, -1, 0.0, "it is over"), 5))
    after = restore(snapshot(world.state), boot_id="boot-1", fresh_journal_id="jrn", now_s=0.0)
    assert after.jobs["job_1"].ended_epoch == 5


def test_the_next_attempt_is_started_in_any_epoch() -> None:
    world, answers = given(
        (StopRanks("job_1", 1, -1, -1, 0.0, "all start again"), 5), (StartRanks(launch(attempt=2, epoch=3)), 3)
    )
    assert {ref.attempt for ref in world.forked} == {2}, answers


def test_the_life_after_one_that_was_ended_is_started() -> None:
    world, _ = given((stop(12), 47), (start(13), 46))
    assert {ref.incarnation for ref in world.forked} == {13}


def test_a_view_of_an_older_epoch_is_still_refused() -> None:
    _, answers = given((view(48), 48), (view(47), 47))
    assert answers["cmd_2"] == "superseded"
