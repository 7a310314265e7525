"""What a node whose journal takes nothing still does: it hears of views and ends what it runs."""

import pytest

from agents.core import events as ev
from agents.core.effects import RenewJournal
from agents.core.records import EventKept, Opened
from agents.core.restore import restore
from agents.core.step import step
from controlplane.protocol.commands import Body, DeliverInstall, DeliverView, RequestSave, StartRanks, StopRanks
from controlplane.protocol.frames import CommandAnswer, NodeCheck, NodeChecked, Welcome
from controlplane.protocol.membership import Install, Member, MemberRole, View
from controlplane.protocol.states import UNFIT
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


@pytest.mark.parametrize(("body", "data"), [(StartRanks(launch()), UNFIT), (RequestSave("job_1", 1, "manual", ""), "")])
def test_a_start_is_refused_as_by_a_node_that_fails_its_checks(body: Body, data: str) -> None:
    """A replica that cannot begin there has not failed: it says nothing about the next start of it."""
    world = World()
    world.connect()
    world.feed(ev.OrderReceived(now_s=world.now_s, commands=(order(1, body, 2, 1),)))
    world.pending.clear()
    world.feed(ev.Journaled(now_s=world.now_s, command_ids=("cmd_1",), error="no space left on device"))
    (said,) = (kept.body for kept in world.state.events if isinstance(kept.body, CommandAnswer))
    assert (said.state, said.data) == ("failed", data)


def test_what_was_sent_and_is_not_on_the_disk_lends_its_number_to_nothing_new() -> None:
    """The server has other events by these numbers: it would take the new ones for repeats, and drop them."""
    kept = tuple(EventKept(seq, 1.0, NodeChecked(failed=())) for seq in (6, 7))
    state = restore([Opened("journal", "boot", 1), *kept], boot_id="boot", fresh_journal_id="new", now_s=5.0)
    for failed in ((), (NodeCheck("storage", "not mounted"),)):
        state, _ = step(state, ev.NodeRead(now_s=6.0, failed=failed, command_id=""))
    mine = [event.body for event in state.events if event.seq > 7]
    assert mine
    state, effects = step(state, ev.LinkUp(now_s=7.0, welcome=welcome(acked_seq=7 + len(mine))))
    assert any(isinstance(effect, RenewJournal) for effect in effects)
    state, _ = step(state, ev.JournalRenewed(now_s=8.0, journal_id="new"))
    assert [(event.seq, event.body) for event in state.events] == list(enumerate(mine, start=1))


def test_where_the_disk_has_all_that_was_sent_the_journal_stays() -> None:
    state = restore([Opened("journal", "boot", 8)], boot_id="boot", fresh_journal_id="new", now_s=5.0)
    state, _ = step(state, ev.NodeRead(now_s=6.0, failed=(NodeCheck("storage", "not mounted"),), command_id=""))
    told = state.events
    state, effects = step(state, ev.LinkUp(now_s=7.0, welcome=welcome(acked_seq=7)))
    assert (state.events, any(isinstance(effect, RenewJournal) for effect in effects)) == (told, False)
    assert told


def welcome(*, acked_seq: int) -> Welcome:
    return Welcome(
        protocol=1,
        node_id="n1",
        session_id="s",
        acked_seq=acked_seq,
        frame_interval_s=1.0,
        sample_interval_s=1.0,
    )
