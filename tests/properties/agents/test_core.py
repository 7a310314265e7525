"""Safety at every step, liveness once the faults stop, for any order of things."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agents.core import events as ev
from agents.core.limits import MEMORY_POLL_S, MEMORY_WAIT_S
from agents.core.restore import restore, snapshot
from agents.core.step import next_deadline_s
from controlplane.protocol.commands import CommandEnvelope, StartRanks, StopRanks
from tests.properties.agents.world import BOOT, World, launch, living, order

FULL_BYTES = 40 << 30
MAX_TURNS = 10 * int(MEMORY_WAIT_S / MEMORY_POLL_S)
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
        return restore(records, boot_id=BOOT, fresh_journal_id="x", now_s=world.now_s)

    assert restored(snapshot(restored(world.disk))) == restored(world.disk)


@SETTINGS
@given(st.permutations([(1, 1), (1, 2), (2, 2), (2, 3), (3, 1)]), st.permutations([1, 2, 3, 4, 5]))
def test_a_start_of_an_old_attempt_or_of_a_life_that_is_not_new_never_begins_whatever_its_epoch(
    lives: list[tuple[int, int]], epochs: list[int]
) -> None:
    """`lives`: attempt and incarnation."""
    world = World()
    world.connect()
    newest = (0, 0)
    for number, (life, epoch) in enumerate(zip(lives, epochs, strict=True)):
        attempt, incarnation = life
        body = StartRanks(launch(replica=0, attempt=attempt, incarnation=incarnation, epoch=epoch))
        before = len(world.forked)
        world.feed(ev.OrderReceived(now_s=world.now_s, commands=(order(number, body, epoch, attempt),)))
        while world.pending:
            world.deliver(0)
        assert (len(world.forked) > before) == (life > newest)
        newest = max(newest, life)


readings = st.tuples(
    st.booleans(),
    st.lists(st.fixed_dictionaries({0: st.sampled_from([None, 0, FULL_BYTES]), 1: st.sampled_from([0, FULL_BYTES])})),
)


@SETTINGS
@given(st.lists(readings, min_size=1, max_size=4), st.lists(st.integers(0, 3), max_size=10))
def test_each_start_comes_once_its_devices_are_empty_or_the_time_is_up_whatever_the_driver_says(
    drivers: list[tuple[bool, list[dict[int, int | None]]]], tape: list[int]
) -> None:
    """`drivers`, for each new start: whether it hangs, and what it reads, the last of it for ever."""
    world = World()
    world.connect()
    world.feed(ev.OrderReceived(now_s=world.now_s, commands=(order(1, StartRanks(launch()), 1, 1),)))
    _deliver_all(world, tape)
    for incarnation, (hangs, told) in enumerate(drivers, start=2):
        world.driver_hangs, world.used_bytes = hangs, {}
        began_s, left = world.now_s, list(told)
        start = order(incarnation, StartRanks(launch(incarnation=incarnation)), 1, 1)
        world.feed(ev.OrderReceived(now_s=world.now_s, commands=(start,)))
        for _ in range(MAX_TURNS):
            world.used_bytes = left.pop(0) if left else world.used_bytes
            _deliver_all(world, tape)
            if any(ref.incarnation == incarnation for ref in world.alive):
                break
            world.now_s = min(next_deadline_s(world.state) or world.now_s, began_s + MEMORY_WAIT_S)
            world.feed(ev.Tick(now_s=world.now_s))
        else:
            raise AssertionError(f"not started {world.now_s - began_s:.2f} s after its order")
        if world.now_s - began_s < MEMORY_WAIT_S and not hangs:
            assert FULL_BYTES not in world.used_bytes.values(), "it did not wait for a full device"


def _deliver_all(world: World, tape: list[int]) -> None:
    turns = iter(tape)
    while world.pending:
        world.deliver(next(turns, 0))
