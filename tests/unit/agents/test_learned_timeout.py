"""A hang is found after five of the rank's own longest steps, whatever happened before."""

import msgspec
import pytest

from agents.core import events as ev
from agents.core.learn import (
    FACTOR,
    MIN_STEPS,
    NEVER_ASIDE,
    NO_STEPS,
    UNWATCHED,
    WARM_UP_STEPS,
    StepTimes,
    TimeAside,
    step_timeout_s,
)
from agents.core.state import Identity
from controlplane.protocol.commands import StartRanks
from controlplane.protocol.frames import RankExited
from controlplane.protocol.launch import ReplicaLaunch
from controlplane.protocol.rank import RankHello, RankProgress, StepReport
from controlplane.protocol.states import Phase, Section
from tests.properties.agents.world import World, launch, order


def report(step_time_s: float, stall_s: float = 0.0) -> StepReport:
    return StepReport(step=0, epoch=1, step_time_s=step_time_s, tokens=1, micro_batches=(0,), stall_s=stall_s)


def after(*steps: StepReport) -> StepTimes:
    times = NO_STEPS
    for step in steps:
        times = times.after(step)
    return times


ENOUGH = [report(0.4)] * (WARM_UP_STEPS + MIN_STEPS)


def ordered(timeout_s: float, floor_s: float | None) -> ReplicaLaunch:
    return msgspec.structs.replace(launch(), step_timeout_s=timeout_s, step_floor_s=floor_s)


LEARNS = ordered(60.0, 1.0)


def test_the_order_holds_until_enough_steps_are_seen() -> None:
    assert step_timeout_s(LEARNS, after(*ENOUGH[:-1])) == 60.0
    assert step_timeout_s(LEARNS, after(*ENOUGH)) == pytest.approx(0.4 * FACTOR)


def test_a_step_with_a_membership_change_teaches_nothing() -> None:
    times = after(*ENOUGH, report(12.0, stall_s=0.3))
    assert step_timeout_s(LEARNS, times) == pytest.approx(0.4 * FACTOR)


def test_the_first_steps_of_a_process_teach_nothing() -> None:
    times = after(report(9.0), report(9.0), *[report(0.4)] * MIN_STEPS)
    assert step_timeout_s(LEARNS, times) == pytest.approx(0.4 * FACTOR)


def test_a_slow_step_widens_the_timeout_up_to_what_was_ordered() -> None:
    assert step_timeout_s(LEARNS, after(*ENOUGH, report(3.0))) == pytest.approx(15.0)
    assert step_timeout_s(LEARNS, after(*ENOUGH, report(30.0))) == 60.0


def test_the_floor_holds_below() -> None:
    assert step_timeout_s(LEARNS, after(*[report(0.01)] * 40)) == 1.0


def test_a_timeout_that_was_given_is_never_learned() -> None:
    assert step_timeout_s(ordered(60.0, None), after(*ENOUGH)) == 60.0


WARM = StepTimes(seen=WARM_UP_STEPS + 1, counted=1, longest_s=1.0)
ASIDE, STEP = Section.OUT_OF_SECTION, Section.STEP


def heard(times: TimeAside, *said: tuple[float, Section, float], steps: StepTimes = WARM) -> TimeAside:
    """Words of a rank: (now, where it is, for how long)."""
    for now_s, section, age_s in said:
        times = times.after(RankProgress(section, Phase.IDLE, age_s, age_s, 7), now_s, steps)
    return times


def test_the_longest_time_between_sections_is_told_when_a_rank_ends_well() -> None:
    times = heard(NEVER_ASIDE, (10.0, ASIDE, 0.0), (11.0, ASIDE, 1.0), (12.5, STEP, 0.25), (13.0, ASIDE, 0.5))
    assert times.at_close(13.5, WARM) == pytest.approx(2.25)
    assert times.at_close(20.0, WARM) == pytest.approx(7.5), "the last one ends with the rank"


def test_time_aside_before_the_warm_up_is_over_teaches_nothing() -> None:
    times = heard(NEVER_ASIDE, (10.0, ASIDE, 9.0), (11.0, STEP, 0.0), steps=NO_STEPS)
    assert times.at_close(12.0, WARM) == 0.0
    assert times.at_close(12.0, NO_STEPS) is None, "it never left its warm-up"


def test_a_rank_that_was_not_watched_from_its_start_teaches_nothing_about_time_aside() -> None:
    assert heard(UNWATCHED, (10.0, ASIDE, 9.0), (11.0, STEP, 0.0)).at_close(12.0, WARM) is None


@pytest.mark.parametrize(("code", "told"), [(0, True), (15, True), (1, False), (137, False)])
def test_only_a_rank_that_ended_well_tells_its_time_aside(code: int, told: bool) -> None:
    world = World()
    world.connect()
    world.feed(ev.OrderReceived(now_s=world.now_s, commands=(order(1, StartRanks(launch()), 1, 1),)))
    while world.pending:
        world.deliver(0)
    ref = world.forked[0]
    pid = world.alive[ref]
    peer = Identity(pid, pid)
    world.feed(ev.RankConnected(now_s=world.now_s, conn_id=1, hello=RankHello(ref, pid, 0), peer=peer, session_pid=pid))
    for said in (*[report(1.0)] * 4, RankProgress(ASIDE, Phase.IDLE, 3.0, 3.0, 4)):
        world.feed(ev.RankMessage(now_s=world.now_s, conn_id=1, message=said))
    world.kill_rank(ref, code)
    world.deliver(0)
    exits = [kept.body for kept in world.state.events if isinstance(kept.body, RankExited) and kept.body.ref == ref]
    assert [body.out_of_section_s for body in exits] == [pytest.approx(3.0) if told else None]
