"""What a node whose journal takes nothing still does: it hears of views and ends what it runs."""

import pytest

from agents.core import events as ev
from controlplane.protocol.commands import Body, DeliverInstall, DeliverView, RequestSave, StartRanks, StopRanks
from controlplane.protocol.frames import CommandAnswer
from controlplane.protocol.membership import Install, Member, MemberRole, View
from tests.properties.agents.world import World, launch, order

VIEW = View("job_1", 1, 2, (Member(0, 1, MemberRole.CONTRIBUTOR),))
INSTALL = Install(job_id="job_1", attempt=1, epoch=2, step=0, contributors=(0,), standbys=(), done=())


def answers_to(body: Body) -> list[tuple[str, str]]:
    """Every answer to the order, none of which the disk took."""
    world = World()
    world.connect()
    world.feed(ev.OrderReceived(now_s=world.now_s, commands=(order(1, body, 2, 1),)))
    world.pending.clear()
    world.feed(ev.Journaled(now_s=world.now_s, command_ids=("cmd_1",), error="no space left on device"))
    return [(kept.body.state, kept.body.detail) for kept in world.state.events if isinstance(kept.body, CommandAnswer)]


@pytest.mark.parametrize("body", [DeliverView(VIEW), DeliverInstall(INSTALL), StopRanks("job_1", 1, 0, 1, 0.0, "gone")])
def test_what_is_right_any_number_of_times_is_carried_out_and_answered_when_done(body: Body) -> None:
    """It is not acknowledged before: the server sends it again to an agent that restarts meanwhile."""
    assert [state for state, _ in answers_to(body)] == ["succeeded"]


@pytest.mark.parametrize("body", [StartRanks(launch()), RequestSave("job_1", 1, "manual", "by hand")])
def test_what_must_not_happen_twice_is_refused_with_the_reason(body: Body) -> None:
    ((state, detail),) = answers_to(body)
    assert state == "failed" and "no space left on device" in detail
