"""One table of commands to a rank: each is offered, explained, carried out by a handler, and answered once."""

import re
from pathlib import Path

import pytest

from agents.core import events as ev
from agents.core.effects import Effect, ToConnection
from agents.core.state import CommandStage
from agents.core.step import step
from controlplane.protocol.commands import CommandRank
from controlplane.protocol.frames import CommandAnswer
from controlplane.protocol.rank_commands import BY_NAME, TABLE, CarriedOut, CarryOut, RankCommand, named
from tests.properties.agents.world import World, order
from tests.unit.agents.test_core_rules import give, hello, running, told
from trainer.control.rank_commands import HANDLERS

ROOT = Path(__file__).resolve().parents[3]
GIVEN = CommandRank("job_1", 1, 0, 1, 1, "collect_garbage", 0.0)


def given() -> World:
    """A replica of two ranks, and a command to rank 1 of it."""
    world = running()
    for index in (0, 1):
        told(world, hello(world, index, conn_id=index + 1))
    give(world, order(2, GIVEN, 2, 1))
    return world


def say(world: World, conn_id: int, answer: CarriedOut) -> list[Effect]:
    world.state, effects = step(world.state, ev.RankMessage(now_s=world.now_s, conn_id=conn_id, message=answer))
    return effects


def answers(world: World) -> list[tuple[str, str]]:
    """What the server hears of the command, in its sequence."""
    bodies = [kept.body for kept in world.state.events]
    return [
        (body.state, body.detail) for body in bodies if isinstance(body, CommandAnswer) and body.command_id == "cmd_2"
    ]


@pytest.mark.parametrize("command", TABLE, ids=lambda command: command.name)
def test_a_command_has_words_a_handler_and_its_place_in_the_documents(command: RankCommand) -> None:
    assert command.what and command.name in HANDLERS and command.name in named()
    text = (ROOT / "docs" / "debugging.md").read_text(encoding="ascii")
    assert re.search(rf"^\| `{command.name}` \|", text, re.MULTILINE)
    (line,) = [row for row in (ROOT / "docs" / "cli.md").read_text().splitlines() if "`holdfast rank command" in row]
    assert command.name in line


@pytest.mark.parametrize("name", BY_NAME)
def test_a_command_is_given_by_a_test_of_its_rank(name: str) -> None:
    folder = ROOT / "tests" / "unit" / "trainer"
    assert any(f'carried_out("{name}"' in path.read_text(encoding="utf-8") for path in folder.glob("test_*.py"))


def test_no_handler_waits_for_a_command_that_the_table_lacks() -> None:
    assert set(HANDLERS) == set(BY_NAME)


def test_it_reaches_the_one_rank_and_stays_open_until_that_answers() -> None:
    world = given()
    world.state, effects = step(world.state, ev.OrderReceived(now_s=world.now_s, commands=(order(3, GIVEN, 2, 1),)))
    world.state, effects = step(world.state, ev.Journaled(now_s=world.now_s, command_ids=("cmd_3",)))
    sent = [(effect.conn_id, effect.message) for effect in effects if isinstance(effect, ToConnection)]
    assert sent == [(2, CarryOut("cmd_3", "collect_garbage", 0.0))]
    assert world.state.commands["cmd_3"].stage is CommandStage.ACKNOWLEDGED


@pytest.mark.parametrize(("ok", "state"), [(True, "succeeded"), (False, "failed")])
def test_its_answer_ends_it_once(ok: bool, state: str) -> None:
    world = given()
    say(world, 2, CarriedOut("cmd_2", ok, "12 objects"))
    say(world, 2, CarriedOut("cmd_2", not ok, "again"))
    assert answers(world) == [("acknowledged", ""), (state, "12 objects")]
    assert all(rank.refused.told_s is None for rank in world.state.ranks.values())


def test_no_other_rank_can_answer_for_it() -> None:
    world = given()
    say(world, 1, CarriedOut("cmd_2", True, "I did"))
    assert answers(world) == [("acknowledged", "")]


def test_an_answer_to_what_nobody_asked_is_refused() -> None:
    world = given()
    say(world, 2, CarriedOut("cmd_9", True, "done"))
    refused = {ref.rank: rank.refused.told_s is not None for ref, rank in world.state.ranks.items()}
    assert refused == {0: False, 1: True}


def test_where_the_rank_ends_first_the_command_fails() -> None:
    world = given()
    (ref,) = [ref for ref in world.state.ranks if ref.rank == 1]
    gone = ev.RankProcessGone(now_s=world.now_s, ref=ref, pid=None, known=True, exit_code=1, signal=None, log_tail="")
    world.state, _ = step(world.state, gone)
    assert answers(world)[-1] == ("failed", "the rank ended before it answered")


def test_where_it_does_not_listen_the_command_fails_at_once() -> None:
    world = running()
    give(world, order(2, GIVEN, 2, 1))
    assert answers(world)[-1] == ("failed", "no such rank runs here and listens")
