"""An agent that ends between any two effects of a command: one effect, one answer, and no command without."""

import pytest

from agents.core import effects as fx
from agents.core import events as ev
from agents.core.records import CommandClosed, CommandSeen, EventKept
from agents.core.restore import restore, snapshot
from agents.core.state import CommandStage
from controlplane.protocol.commands import Body, DeliverView, RequestSave, StartRanks, StopRanks, WarmHost
from controlplane.protocol.frames import CommandAnswer
from controlplane.protocol.membership import Member, MemberRole, View
from controlplane.protocol.signing import SIGNATURE_REJECTED
from tests.properties.agents.world import BOOT, FINAL, World, launch, order

VIEW = View("job_1", 1, 2, (Member(0, 1, MemberRole.CONTRIBUTOR),))
BODIES: tuple[Body, ...] = (
    StartRanks(launch()),
    StopRanks("job_1", 1, 0, 1, 0.0, "gone"),
    DeliverView(VIEW),
    RequestSave("job_1", 1, "manual", "by hand"),
    WarmHost("job_1", 1),
)
MOST_EFFECTS = 80


class _Ended(Exception):
    """The agent's process is gone."""


class _Mortal(World):
    """Its agent ends after `left` more effects; None: never."""

    def __init__(self) -> None:
        self.left: int | None = None
        super().__init__()

    def _carry_out(self, effects: tuple[fx.Effect, ...]) -> None:
        for effect in effects:
            if self.left == 0:
                self.left = None
                raise _Ended
            if self.left is not None:
                self.left -= 1
            super()._carry_out((effect,))


def server_sends(world: World, body: Body) -> None:
    """As a server does: again as long as nothing says that it was journaled, and never after that."""
    for _ in range(3):
        told = [event.body for event in world.received if isinstance(event.body, CommandAnswer)]
        if not told:
            world.feed(ev.OrderReceived(now_s=world.now_s, commands=(order(1, body, 2, 1),)))
        world.settle()


def lived(body: Body, effects: int) -> tuple[World, bool]:
    """A node whose agent ends after so many effects of this command, and is started again; whether it ended."""
    world = _Mortal()
    world.connect()
    world.left = effects
    try:
        server_sends(world, body)
    except _Ended:
        world.restart_agent()
        world.settle()
        server_sends(world, body)
        return world, True
    return world, False


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_an_agent_that_ends_between_two_effects_still_answers_once(body: Body) -> None:
    ends = 0
    for effects in range(MOST_EFFECTS):
        world, ended = lived(body, effects)
        ends += ended
        assert len(world.answers("cmd_1")) == 1, f"ended after {effects} effects: {world.answers('cmd_1')}"
        assert len(set(world.forked)) == len(world.forked)
        if isinstance(body, StartRanks) and world.answers("cmd_1")[0].state == "succeeded":
            assert len(world.alive) == 2
        if not ended:
            break
    assert 4 < ends < MOST_EFFECTS, "every effect of it has been the last one"


def closed() -> World:
    """A command was carried out, and its answer waits for the server."""
    world = World()
    world.connect()
    world.feed(ev.OrderReceived(now_s=world.now_s, commands=(order(1, DeliverView(VIEW), 2, 1),)))
    while world.pending:
        world.deliver(0)
    return world


def test_the_record_of_its_answer_closes_a_command_and_a_compaction_keeps_it_closed() -> None:
    """What is torn off the journal may be the record after it."""
    disk = [record for record in closed().disk if not isinstance(record, CommandClosed)]
    state = restore(disk, boot_id=BOOT, fresh_journal_id="x", now_s=0.0)
    assert state.commands["cmd_1"].stage is CommandStage.SUCCEEDED
    again = restore(snapshot(state), boot_id=BOOT, fresh_journal_id="x", now_s=0.0)
    assert (again.commands, again.events) == (state.commands, state.events)
    assert [kept.body.state for kept in again.events if isinstance(kept.body, CommandAnswer)][-1] in FINAL


def test_a_refused_signature_does_not_close_the_true_command_of_that_name() -> None:
    """A compaction puts commands before events, whichever came first."""
    world = closed()
    (seen,) = [record for record in world.disk if isinstance(record, CommandSeen)]
    refusal = CommandAnswer("cmd_1", "failed", "not signed", SIGNATURE_REJECTED)
    disk = [world.disk[0], seen, EventKept(1, 0.0, refusal)]
    state = restore(disk, boot_id=BOOT, fresh_journal_id="x", now_s=0.0)
    assert state.commands["cmd_1"].stage is CommandStage.ACKNOWLEDGED
