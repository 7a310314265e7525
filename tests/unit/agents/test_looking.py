"""A look at a hung rank comes before its end, and never holds it up for long."""

from dataclasses import replace

import msgspec
import pytest

from agents.core import events as ev
from agents.core import limits
from agents.core.effects import Signal, TakeStacks, ToConnection
from agents.core.step import step
from controlplane.protocol.commands import CollectStacks, DeliverView, StopRanks
from controlplane.protocol.frames import CommandAnswer, StacksCollected
from controlplane.protocol.rank import Evicted
from tests.properties.agents.world import World, order
from tests.unit.agents.test_core_rules import give, hello, last_answer, running, told, view

STOP = StopRanks("job_1", 1, 0, 1, 0.0, "hung")


def looking(look: str = "hang", *, rank: int = -1, number: int = 2) -> tuple[World, list[TakeStacks]]:
    """A replica of two connected ranks whose looks are under way."""
    world = running()
    told(world, hello(world, 0, conn_id=1))
    told(world, hello(world, 1, conn_id=2))
    return world, order_look(world, look, rank=rank, number=number)


def order_look(world: World, look: str, *, rank: int = -1, number: int = 2) -> list[TakeStacks]:
    body = CollectStacks("job_1", 0, 1, rank, look, 1.0)
    world.feed(ev.OrderReceived(now_s=world.now_s, commands=(order(number, body, 1, 1),)))
    world.state, effects = step(world.state, world.pending.pop()())
    return [effect for effect in effects if isinstance(effect, TakeStacks)]


def answer(world: World, asked: TakeStacks) -> list[Signal]:
    taken = ev.StacksTaken(
        now_s=world.now_s, ref=asked.ref, command_id=asked.command_id, text="here", method="kernel", look=asked.look
    )
    world.state, effects = step(world.state, taken)
    return [effect for effect in effects if isinstance(effect, Signal)]


def test_a_hang_is_looked_at_in_two_ways_at_each_rank() -> None:
    _, asked = looking()
    assert sorted((effect.ref.rank, effect.look) for effect in asked) == [
        (0, "flight_recorder"), (0, "stacks"), (1, "flight_recorder"), (1, "stacks"),
    ]  # fmt: skip


def test_an_order_for_all_leaves_out_whom_somebody_looks_at() -> None:
    world, _ = looking(rank=0)
    everybody = CollectStacks("job_1", -1, -1, -1, "stacks", 0.0)
    for number, found in ((3, [(1, "stacks")]), (4, [])):
        world.feed(ev.OrderReceived(now_s=world.now_s, commands=(order(number, everybody, 1, 1),)))
        world.state, effects = step(world.state, world.pending.pop()())
        assert [(e.ref.rank, e.look) for e in effects if isinstance(e, TakeStacks)] == found
    assert last_answer(world).state == "succeeded", "nobody else lives here"


def test_each_look_is_told_and_the_last_one_closes_the_command() -> None:
    world, asked = looking()
    for effect in asked[:-1]:
        answer(world, effect)
    assert last_answer(world).state == "acknowledged"
    answer(world, asked[-1])
    told_looks = [kept.body.look for kept in world.state.events if isinstance(kept.body, StacksCollected)]
    assert sorted(told_looks) == ["flight_recorder", "flight_recorder", "stacks", "stacks"]
    assert last_answer(world).state == "succeeded"


def test_a_stop_waits_for_the_looks_at_all_ranks_of_the_replica_and_no_longer() -> None:
    """A rank that lost its peer may be gone before its own look."""
    world, asked = looking()
    give(world, order(3, STOP, 1, 1))
    assert len(world.alive) == 2
    for effect in asked[:-1]:
        assert answer(world, effect) == []
    assert sorted(effect.ref.rank for effect in answer(world, asked[-1])) == [0, 1]


def test_a_replica_on_several_nodes_waits_for_the_looks_of_the_others_a_bounded_time() -> None:
    """What is done there is not known here: whoever went first would take its peers out of the look."""
    world, asked = looking()
    wide = {
        ref: replace(rank, launch=msgspec.structs.replace(rank.launch, world_size=4))
        for ref, rank in world.state.ranks.items()
    }
    world.state = replace(world.state, ranks=wide)
    give(world, order(3, STOP, 1, 1))
    assert [signal for effect in asked for signal in answer(world, effect)] == []
    assert len(world.alive) == 2
    world.now_s += limits.LOOK_BEFORE_KILL_S
    world.feed(ev.Tick(now_s=world.now_s))
    assert not world.alive


def test_a_rank_that_ends_by_itself_does_not_take_its_peers_out_of_the_look() -> None:
    world, asked = looking()
    ended = next(rank for rank in world.state.ranks.values() if rank.ref.rank == 0)
    gone = ev.RankProcessGone(
        now_s=world.now_s, ref=ended.ref, exit_code=1, signal=None, log_tail="", known=True, pid=None
    )
    world.state, effects = step(world.state, gone)
    assert [effect for effect in effects if isinstance(effect, Signal)] == []
    killed = [signal.ref.rank for effect in asked for signal in answer(world, effect)]
    assert killed == [1]


def test_a_look_that_never_ends_holds_a_stop_up_for_a_moment_only() -> None:
    world, _ = looking()
    give(world, order(3, STOP, 1, 1))
    world.now_s += limits.LOOK_BEFORE_KILL_S
    world.feed(ev.Tick(now_s=world.now_s))
    assert not world.alive


def test_a_hung_member_left_out_is_not_told_before_it_was_looked_at() -> None:
    def told_to_leave(world: World) -> int:
        left_out = order(4, DeliverView(view(3, (1, 1))), 3, 1)
        world.feed(ev.OrderReceived(now_s=world.now_s, commands=(left_out,)))
        world.state, effects = step(world.state, world.pending.pop()())
        return len([e for e in effects if isinstance(e, ToConnection) and isinstance(e.message, Evicted)])

    world, _ = looking("ping", rank=0, number=3)
    give(world, order(2, DeliverView(view(2, (0, 1), (1, 1))), 2, 1))
    assert told_to_leave(world) == 1, "rank 1 is told, rank 0 is being looked at"
    assert all(rank.expected for rank in world.state.ranks.values())


def test_nobody_is_killed_for_having_been_looked_at() -> None:
    world, asked = looking()
    assert [signal for effect in asked for signal in answer(world, effect)] == []


@pytest.mark.parametrize(
    ("look", "rank", "detail"),
    [("soul", -1, "unknown look 'soul': use ping, stacks, flight_recorder, wait_counters, profile, log"),
     ("ping", 7, "no such rank is running here")],
)  # fmt: skip
def test_what_cannot_be_looked_at_is_refused_with_words(look: str, rank: int, detail: str) -> None:
    world, asked = looking(look, rank=rank)
    assert asked == []
    assert last_answer(world) == CommandAnswer("cmd_2", "failed", detail)


def test_a_rank_is_looked_at_by_one_person_at_a_time() -> None:
    world, asked = looking("profile", rank=1)
    assert [(effect.ref.rank, effect.duration_s) for effect in asked] == [(1, 1.0)]
    assert order_look(world, "ping", rank=1, number=3) == []
    assert "is already running" in last_answer(world).detail
    assert len(order_look(world, "ping", rank=0, number=4)) == 1
    assert len(order_look(world, "hang", number=5)) == 4, "a hang is looked at whoever else looks"
