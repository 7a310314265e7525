"""One table of commands to a rank: each is offered, explained, carried out by a handler, and answered once."""

import re
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import pytest

from agents.core import events as ev
from agents.core.effects import Effect, ToConnection
from agents.core.state import CommandStage
from agents.core.step import step
from controlplane.protocol import rank_commands
from controlplane.protocol.commands import Body, CommandRank
from controlplane.protocol.frames import CommandAnswer
from controlplane.protocol.rank_commands import BY_NAME, TABLE, CarriedOut, CarryOut
from tests.properties.agents.world import World, order
from tests.unit.agents.test_core_rules import give, hello, running, told
from trainer.control.rank_commands import HANDLERS

ROOT = Path(__file__).resolve().parents[3]
TELL = "controlplane/protocol/rank_commands.py"
GIVEN = CommandRank("job_1", 1, 0, 1, 1, "trace_allocations", {"duration_s": 2.0})


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


def answers(world: World) -> list[tuple[str, str, str]]:
    """What the server hears of the command, in its sequence."""
    bodies = [kept.body for kept in world.state.events]
    return [
        (body.state, body.detail, body.data)
        for body in bodies
        if isinstance(body, CommandAnswer) and body.command_id == "cmd_2"
    ]


@pytest.mark.parametrize("name", BY_NAME)
def test_a_command_has_words_and_its_place_in_the_documents(name: str) -> None:
    kind = BY_NAME[name]
    assert kind.__doc__ and not kind.__doc__.startswith(kind.__name__), f"{TELL}: its docstring is its help"
    hints = get_type_hints(kind, include_extras=True)
    for field in msgspec.structs.fields(kind):
        metas = getattr(hints[field.name], "__metadata__", ())
        assert any(meta.description for meta in metas), f"{TELL}: give {name}.{field.name} a Meta(description=...)"
    text = (ROOT / "docs" / "debugging.md").read_text(encoding="ascii")
    assert re.search(rf"^\| `{name}` \|", text, re.MULTILINE), f"{name} needs its row in docs/debugging.md"


def test_every_struct_of_a_command_is_in_the_table_with_its_answer_and_its_handler() -> None:
    written = [kind for kind in vars(rank_commands).values() if isinstance(kind, type)]
    commands = {
        kind
        for kind in written
        if issubclass(kind, rank_commands._RankCommand) and kind is not rank_commands._RankCommand
    }
    assert commands == set(TABLE), f"{TELL}: `RankCommand` names them"
    assert {kind.ANSWER for kind in TABLE} == set(get_args(rank_commands.Answer)), f"{TELL}: `Answer` names them"
    assert set(HANDLERS) == commands, "a command needs its handler in HANDLERS of trainer/control/rank_commands.py"


@pytest.mark.parametrize("name", BY_NAME)
def test_a_command_and_its_answer_and_its_handler_belong_together(name: str) -> None:
    kind = BY_NAME[name]
    assert kind.ANSWER.__struct_config__.tag == name, f"{TELL}: {kind.ANSWER.__name__} has the tag of its command"
    hints = get_type_hints(HANDLERS[kind])
    assert hints.pop("return") is kind.ANSWER and set(hints.values()) == {kind}
    msgspec.convert({"command_id": "c", "name": name}, CarryOut)


@pytest.mark.parametrize("name", BY_NAME)
def test_a_command_is_given_by_a_test_of_its_rank(name: str) -> None:
    folder = ROOT / "tests" / "unit" / "trainer"
    given = f"carried_out({BY_NAME[name].__name__}("
    asked = any(given in path.read_text(encoding="utf-8") for path in folder.glob("test_*.py"))
    assert asked, f"{name}: no test of tests/unit/trainer has `{given}...)`"


@pytest.mark.parametrize(
    ("name", "fields", "why"),
    [
        ("collect_garbage", {"hot": True}, "unknown field `hot`"),
        ("trace_allocations", {"duration_s": 99.0}, "<= 20"),
        ("trace_allocations", {"group_by": "colour"}, "'colour'"),
    ],
)
def test_fields_that_the_table_does_not_have_are_refused_where_the_command_enters(
    name: str, fields: dict[str, Any], why: str
) -> None:
    with pytest.raises(msgspec.ValidationError, match=why):
        CommandRank("job_1", 1, 0, 1, 1, name, fields)
    body = msgspec.to_builtins(GIVEN) | {"name": name, "fields": fields}
    with pytest.raises(msgspec.ValidationError, match=why):
        msgspec.msgpack.decode(msgspec.msgpack.encode(body), type=Body)


def test_a_command_that_a_newer_server_has_is_handed_on_to_a_rank_that_may_know_it() -> None:
    body = msgspec.to_builtins(GIVEN) | {"name": "tea", "fields": {"sugar": 2, "milk": True, "cup": "blue"}}
    read = msgspec.msgpack.decode(msgspec.msgpack.encode(body), type=Body)
    assert read.message("cmd_1") == CarryOut("cmd_1", "tea", {"sugar": 2, "milk": True, "cup": "blue"})


def test_it_reaches_the_one_rank_and_stays_open_until_that_answers() -> None:
    world = given()
    world.state, effects = step(world.state, ev.OrderReceived(now_s=world.now_s, commands=(order(3, GIVEN, 2, 1),)))
    world.state, effects = step(world.state, ev.Journaled(now_s=world.now_s, command_ids=("cmd_3",)))
    sent = [(effect.conn_id, effect.message) for effect in effects if isinstance(effect, ToConnection)]
    assert sent == [(2, CarryOut("cmd_3", "trace_allocations", {"duration_s": 2.0}))]
    assert world.state.commands["cmd_3"].stage is CommandStage.ACKNOWLEDGED


@pytest.mark.parametrize(("ok", "state"), [(True, "succeeded"), (False, "failed")])
def test_its_answer_ends_it_once(ok: bool, state: str) -> None:
    world = given()
    say(world, 2, CarriedOut("cmd_2", ok, "12 objects", '{"objects":12}'))
    say(world, 2, CarriedOut("cmd_2", not ok, "again", '{"objects":13}'))
    assert answers(world) == [("acknowledged", "", ""), (state, "12 objects", '{"objects":12}')]
    assert all(rank.refused.told_s is None for rank in world.state.ranks.values())


def test_no_other_rank_can_answer_for_it() -> None:
    world = given()
    say(world, 1, CarriedOut("cmd_2", True, "I did"))
    assert answers(world) == [("acknowledged", "", "")]


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
    assert answers(world)[-1] == ("failed", "the rank ended before it answered", "")


def test_where_it_does_not_listen_the_command_fails_at_once() -> None:
    world = running()
    give(world, order(2, GIVEN, 2, 1))
    assert answers(world)[-1] == ("failed", "no such rank runs here and listens", "")
