"""What ranks of a large job report of steps goes together, some seconds later; what decisions wait for goes at once,
and takes along what waits. Nothing is lost by it."""

from itertools import pairwise

import msgspec
import pytest

from agents.core import events as ev
from agents.core import limits
from agents.core.session import compose
from agents.core.state import Identity
from agents.core.values import replace
from controlplane.protocol.commands import StartRanks
from controlplane.protocol.frames import RankOverdue, RankSaid
from controlplane.protocol.membership import MemberRole
from controlplane.protocol.rank import Flush, RankHello, RankProgress, StepReport, TrainingDone
from controlplane.protocol.states import Phase, Section
from tests.properties.agents.world import World, launch, order

HOLD_S = 5.0


def training(hold_s: float = HOLD_S) -> World:
    """A node with two ranks of such a job, whose first steps and all before them are acknowledged."""
    world = World()
    world.connect()
    started = msgspec.structs.replace(launch(), step_reports_within_s=hold_s)
    world.feed(ev.OrderReceived(now_s=world.now_s, commands=(order(1, StartRanks(started), 1, 1),)))
    while world.pending:
        world.deliver(0)
    for ref in world.forked:
        pid = world.alive[ref]
        world.feed(
            ev.RankConnected(
                now_s=world.now_s, conn_id=ref.rank, hello=RankHello(ref, pid), peer=Identity(pid, pid), session_pid=pid
            )
        )
        says(world, step(0), ref.rank)
    world.send_frame(lost=False)
    assert not world.state.events
    return world


def step(number: int, loss: float | None = 2.0) -> StepReport:
    return StepReport(number, 1, 1.0, 64, (0,), loss)


def says(world: World, message, rank: int = 0) -> None:
    world.feed(ev.RankMessage(now_s=world.now_s, conn_id=rank, message=message))


def sent(world: World) -> list[object]:
    """What a frame brings now."""
    before = len(world.received)
    world.send_frame(lost=False)
    return [getattr(event.body, "report", event.body) for event in world.received[before:]]


def trains(world: World, seconds: int, first: int = 1) -> list[tuple[float, list[object]]]:
    """A step a second of both ranks, and a frame after each: when frames brought steps, and which."""
    found = []
    for number in range(first, first + seconds):
        world.now_s += 1.0
        says(world, step(number), 0)
        says(world, step(number), 1)
        if brought := sent(world):
            found.append((world.now_s, [said.step for said in brought if isinstance(said, StepReport)]))
    return found


def test_steps_go_together_and_each_goes_once():
    world = training()
    found = trains(world, 20)
    assert 4 <= len(found) <= 5
    steps = [number for _, numbers in found for number in numbers]
    assert steps == [number for number in range(1, max(steps) + 1) for _ in range(2)]
    ages = [event.age_s for event in world.received[-len(found[-1][1]) :]]
    assert ages[-1] == 0.0 and 3.0 <= ages[0] <= HOLD_S, "each is as old as it is"


def test_steps_of_a_job_that_is_not_large_go_at_once():
    world = training(hold_s=0.0)
    assert len(trains(world, 5)) == 5


def test_nodes_take_turns():
    turns = set()
    for number in range(20):
        world = training()
        world.state = replace(world.state, link=replace(world.state.link, node_id=f"node_{number}"))
        turns.add(trains(world, 6)[0][0])
    assert len(turns) >= 4, "there is always one that says which step is the newest"


@pytest.mark.parametrize(
    "message",
    [
        Flush("job_1", 1, 2, 0, 1, 0, 1, False, MemberRole.CONTRIBUTOR),
        TrainingDone(3),
        step(3, float("nan")),
    ],
    ids=["flush", "done", "loss"],
)
def test_what_decisions_wait_for_goes_at_once_and_takes_along_what_waits(message):
    world = training()
    world.state = replace(world.state, link=replace(world.state.link, leaves_s=world.now_s + HOLD_S))
    says(world, step(1))
    assert sent(world) == [], "it waits"
    says(world, message)
    brought = sent(world)
    assert len(brought) == 2
    assert brought[0] == step(1)


def test_a_late_rank_that_moves_again_says_so_at_once():
    world = training()
    said = RankProgress(section=Section.STEP, phase=Phase.COMPUTE, phase_age_s=0.0, section_age_s=0.0, step=1)
    says(world, said)
    while not any(isinstance(kept.body, RankOverdue) for kept in world.state.events):
        world.now_s += 10.0
        says(world, msgspec.structs.replace(said, phase_age_s=world.now_s), 0)
        world.feed(ev.Tick(now_s=world.now_s))
    assert any(isinstance(body, RankOverdue) for body in sent(world))
    says(world, msgspec.structs.replace(said, step=2))
    says(world, step(1))
    assert step(1) in sent(world)
    says(world, step(2))
    world.now_s += 0.2
    assert step(2) not in sent(world), "the next one waits again"


def test_what_waits_outlives_the_agent_and_the_session():
    world = training()
    says(world, step(1))
    assert sent(world) == []
    world.restart_agent()
    says(world, step(2), 1)
    brought = []
    for _ in range(int(HOLD_S) + 2):
        world.now_s += 1.0
        brought += sent(world)
    assert step(1) in brought
    world.feed(ev.LinkDown(now_s=world.now_s))
    world.connect()
    assert not world.state.events or sent(world) != []


def test_no_launch_makes_them_wait_for_longer_than_the_agent_allows():
    world = training(hold_s=1e6)
    found = trains(world, int(2 * limits.LONGEST_HOLD_S) + 1)
    gaps = [later - earlier for (earlier, _), (later, _) in pairwise(found)]
    assert found and max(gaps, default=0.0) <= limits.LONGEST_HOLD_S


def test_an_acknowledgement_brings_no_frame_before_its_time():
    world = training()
    says(world, step(1))
    _, frame, more = compose(world.state, world.now_s)
    assert (frame.events, more) == ((), False)
    assert [kept.body.report for kept in world.state.events if isinstance(kept.body, RankSaid)] == [step(1)]
