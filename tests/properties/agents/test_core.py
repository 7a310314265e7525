"""Safety at every step, liveness once the faults stop, for any order of things."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agents.core import events as ev
from agents.core.restore import restore, snapshot
from controlplane.protocol.commands import CommandEnvelope, StartRanks, StopRanks
from tests.properties.agents.world import BOOT, World, launch, living, order

SETTINGS = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])

commands = st.builds(
    lambda number, stop, replica, incarnation, attempt, epoch: order(
        number,
        StopRanks("job_1", attempt, replica, incarnation, 0.0, "test")
        if stop
        else StartRanks(launch(replica, incarnation, attempt, epoch)),
        epoch,
        attempt,
    ),
    number=st.integers(0, 10_000),
    stop=st.integers(0, 3).map(lambda n: n == 0),
    replica=st.integers(0, 1),
    incarnation=st.integers(1, 3),
    attempt=st.integers(1, 2),
    epoch=st.integers(1, 4),
)
orders = st.lists(commands, min_size=1, max_size=7, unique_by=lambda envelope: envelope.command_id)
acts = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 50)), max_size=80)


def play(sent: list[CommandEnvelope], tape: list[tuple[int, int]]) -> World:
    """Orders in any order and number, interleaved with everything else that can happen."""
    world = World()
    world.connect()
    for act, number in tape:
        world.now_s += 0.05
        match act:
            case 0 | 1 | 2:
                envelope = sent[number % len(sent)]
                world.feed(ev.OrderReceived(now_s=world.now_s, commands=(envelope,)))
            case 3 | 4 | 5:
                world.deliver(number)
            case 6:
                world.send_frame(lost=number % 3 == 0)
            case 7:
                if world.alive:
                    world.kill_rank(sorted(world.alive, key=repr)[number % len(world.alive)])
            case 8:
                world.now_s += number * 0.1
                world.feed(ev.Tick(now_s=world.now_s))
            case _:
                if number % 4 == 0:
                    world.restart_agent()
        assert living(world.state) <= set(world.forked), "no rank is believed alive that never was"
    return world


@SETTINGS
@given(orders, acts)
def test_any_order_of_things_never_gives_two_lives_or_a_second_start(
    sent: list[CommandEnvelope], tape: list[tuple[int, int]]
) -> None:
    """The assertions sit in `World._fork` and `World.send_frame`."""
    play(sent, tape)


def test_two_starts_of_one_life_start_it_once_though_the_agent_is_killed_between_them() -> None:
    world = World()
    world.connect()
    for number in (1, 2):
        world.feed(ev.OrderReceived(now_s=world.now_s, commands=(order(number, StartRanks(launch()), 1, 1),)))
    world.deliver(0)
    world.restart_agent()
    world.settle()
    answers = [world.answers(f"cmd_{number}")[0].state for number in (1, 2)]
    assert (len(world.forked), answers) == (2, ["succeeded", "superseded"])


@SETTINGS
@given(orders, acts)
def test_every_received_command_is_answered_once_and_every_fact_arrives(
    sent: list[CommandEnvelope], tape: list[tuple[int, int]]
) -> None:
    world = play(sent, tape)
    world.settle()
    assert [event.seq for event in world.received] == list(range(1, len(world.received) + 1))
    for command_id, command in world.state.commands.items():
        answers = {(answer.state, answer.detail) for answer in world.answers(command_id)}
        assert len(answers) == 1, f"{command_id} is {command.stage}, answered {answers}"
    assert living(world.state) == set(world.alive), "what it believes is what is"


@SETTINGS
@given(orders, acts)
def test_the_journal_restores_the_same_state_as_a_compacted_one(
    sent: list[CommandEnvelope], tape: list[tuple[int, int]]
) -> None:
    world = play(sent, tape)

    def restored(records):
        return restore(records, boot_id=BOOT, fresh_journal_id="x", agent_socket="sock", now_s=world.now_s)

    assert restored(snapshot(restored(world.disk))) == restored(world.disk)


@SETTINGS
@given(st.permutations([1, 2, 3, 4]))
def test_a_start_with_a_stale_epoch_never_begins(epochs: list[int]) -> None:
    world = World()
    world.connect()
    newest = 0
    for number, epoch in enumerate(epochs):
        envelope = order(number, StartRanks(launch(replica=number, epoch=epoch)), epoch, 1)
        world.feed(ev.OrderReceived(now_s=world.now_s, commands=(envelope,)))
        while world.pending:
            world.deliver(0)
        started = any(ref.replica == number for ref in world.forked)
        assert started == (epoch >= newest)
        newest = max(newest, epoch)
