"""Single rules of the core, each as one story."""

from dataclasses import replace

import msgspec

from agents.core import events as ev
from agents.core import limits
from agents.core.effects import ShutdownHost, ToConnection
from agents.core.session import compose
from agents.core.state import Identity
from agents.core.step import next_deadline_s, step
from controlplane.protocol.commands import (
    DeliverInstall,
    DeliverView,
    InjectLinkFault,
    KeepCheckpoints,
    OrderRecompute,
    RequestSave,
    StartRanks,
    StopRanks,
)
from controlplane.protocol.frames import CommandAnswer, RankExited, RankOverdue
from controlplane.protocol.keeping import KeptSave
from controlplane.protocol.membership import Install, Member, MemberRole, View
from controlplane.protocol.rank import Evicted, InstallView, RankHello, RankProgress, SaveNow, SetView, StopTraining
from controlplane.protocol.recompute import Recompute, Share, Span
from controlplane.protocol.samples import DeviceSample
from controlplane.protocol.states import Phase, Section
from tests.properties.agents.world import World, launch, order

CONTRIBUTOR = MemberRole.CONTRIBUTOR


def running(replica=0):
    """A world with one started replica that is not yet connected."""
    world = World()
    world.connect()
    give(world, order(1, StartRanks(launch(replica=replica)), 1, 1))
    return world


def passes(world, seconds):
    """With a tick each second."""
    for _ in range(int(seconds)):
        world.now_s += 1.0
        world.feed(ev.Tick(now_s=world.now_s))


def give(world, envelope):
    world.feed(ev.OrderReceived(now_s=world.now_s, commands=(envelope,)))
    while world.pending:
        world.deliver(0)


def told(world, event):
    """What the ranks are told because of this event."""
    world.state, effects = step(world.state, event)
    return [effect.message for effect in effects if isinstance(effect, ToConnection)]


def hello(world, rank_index=0, conn_id=1, epoch=0):
    ref = next(ref for ref in world.forked if ref.rank == rank_index)
    pid = world.alive[ref]
    return ev.RankConnected(
        now_s=world.now_s,
        conn_id=conn_id,
        hello=RankHello(ref, pid, epoch),
        peer=Identity(pid, pid),
        session_pid=pid,
    )


def view(epoch, *members):
    return View("job_1", 1, epoch, tuple(Member(replica, life, CONTRIBUTOR) for replica, life in members))


def last_answer(world):
    return [kept.body for kept in world.state.events if isinstance(kept.body, CommandAnswer)][-1]


def test_a_rank_that_says_hello_late_gets_the_newest_view_and_install():
    world = running()
    give(world, order(2, DeliverView(view(2, (0, 1))), 2, 1))
    give(world, order(3, DeliverInstall(Install("job_1", 1, 2, 0, (0,))), 2, 1))
    messages = told(world, hello(world))
    assert [type(message) for message in messages] == [SetView, InstallView]
    assert told(world, hello(world, conn_id=2, epoch=2)) == [], "it has installed that one"


def test_an_install_that_overtakes_its_view_waits_for_it():
    world = running()
    told(world, hello(world))
    give(world, order(2, DeliverInstall(Install("job_1", 1, 2, 0, (0,))), 2, 1))
    world.feed(ev.OrderReceived(now_s=1.0, commands=(order(3, DeliverView(view(2, (0, 1))), 2, 1),)))
    messages = told(world, world.pending.pop()())
    assert [type(message) for message in messages] == [SetView, InstallView]


def test_an_install_whose_view_is_known_to_the_ranks_alone_is_handed_on():
    """The view was handed on while the disk was full, and its agent was restarted since."""
    world = running()
    told(world, hello(world))
    give(world, order(2, DeliverView(view(2, (0, 1))), 2, 1))
    world.feed(ev.OrderReceived(now_s=1.0, commands=(order(3, DeliverInstall(Install("job_1", 1, 3, 0, (0,))), 3, 1),)))
    assert [type(message) for message in told(world, world.pending.pop()())] == [InstallView]
    again = told(world, hello(world, conn_id=2, epoch=2))
    assert [type(message) for message in again] == [InstallView], "and again when it connects"


def test_a_rank_never_admitted_is_not_evicted_by_a_view_without_it():
    world = running(replica=1)
    told(world, hello(world))
    give(world, order(2, DeliverView(view(2, (0, 1))), 2, 1))
    assert all(not rank.expected for rank in world.state.ranks.values())


def test_a_member_left_out_is_told_and_killed_soon_after():
    world = running()
    told(world, hello(world))
    give(world, order(2, DeliverView(view(2, (0, 1), (1, 1))), 2, 1))
    world.feed(ev.OrderReceived(now_s=world.now_s, commands=(order(3, DeliverView(view(3, (1, 1))), 3, 1),)))
    assert any(isinstance(message, Evicted) for message in told(world, world.pending.pop()()))
    assert len(world.alive) == 2
    world.now_s += limits.EVICT_KILL_AFTER_S
    world.feed(ev.Tick(now_s=world.now_s))
    assert not world.alive


def test_a_member_left_out_for_now_is_told_nothing_and_lives_until_it_is_taken_back():
    world = running()
    told(world, hello(world))
    give(world, order(2, DeliverView(view(2, (0, 1), (1, 1))), 2, 1))
    without = msgspec.structs.replace(view(3, (1, 1)), left_out=(Member(0, 1, CONTRIBUTOR),))
    world.feed(ev.OrderReceived(now_s=world.now_s, commands=(order(3, DeliverView(without), 3, 1),)))
    assert not any(isinstance(message, Evicted | SetView) for message in told(world, world.pending.pop()()))
    assert told(world, hello(world, conn_id=2, epoch=2)) == [], "it connects anew, and waits as before"
    world.now_s += 10 * limits.EVICT_KILL_AFTER_S
    world.feed(ev.Tick(now_s=world.now_s))
    assert world.alive
    assert all(not rank.expected for rank in world.state.ranks.values())
    back = msgspec.structs.replace(view(4, (0, 1), (1, 1)), returning=(0,))
    world.feed(ev.OrderReceived(now_s=world.now_s, commands=(order(4, DeliverView(back), 4, 1),)))
    assert [type(message) for message in told(world, world.pending.pop()())] == [SetView]


def test_an_end_without_a_status_is_told_as_unobserved_with_what_the_node_knows():
    world = running()
    told(world, hello(world))
    rank = next(iter(world.state.ranks.values()))
    gone = ev.RankProcessGone(
        now_s=world.now_s, ref=rank.ref, pid=None, exit_code=None, signal=None, known=False, cause="out_of_memory",
        hint="the kernel's log says so",
    )  # fmt: skip
    world.feed(gone)
    passes(world, limits.ADOPT_EXIT_CODE_WAIT_S + limits.EXIT_CODE_WAIT_S)
    said = next(kept.body for kept in world.state.events if isinstance(kept.body, RankExited))
    assert (said.exit_code, said.signal, said.cause, said.hint) == (None, None, "out_of_memory", gone.hint)


def test_a_stranger_that_claims_a_rank_is_refused():
    world = running()
    claim = replace(hello(world), peer=Identity(999, 999), session_pid=999)
    told(world, claim)
    assert not world.state.connections


def test_overdue_is_said_once_for_each_stay_in_a_phase():
    world = running()
    told(world, hello(world))

    def stay(phase, age_s, step_number=1):
        progress = RankProgress(Section.STEP, phase, age_s, age_s, step_number)
        world.feed(ev.RankMessage(now_s=world.now_s, conn_id=1, message=progress))
        world.feed(ev.Tick(now_s=world.now_s))
        return sum(isinstance(kept.body, RankOverdue) for kept in world.state.events)

    assert stay(Phase.COMPUTE, 59.0) == 0
    world.now_s += 2.0
    assert stay(Phase.COMPUTE, 61.0) == 1
    world.now_s += 2.0
    assert stay(Phase.COMPUTE, 63.0) == 1
    assert stay(Phase.EXCHANGE, 500.0) == 1
    passes(world, 50.0)
    assert stay(Phase.COMPUTE, 70.0, step_number=2) == 2


def test_a_busy_rank_is_not_dead_and_a_stuck_one_is_not_alive():
    world = running()
    told(world, hello(world))

    def overdue_after(seconds, *, talks, moves):
        """A minute is the limit of a step; `talks`: a word each second, `moves`: a step each 50 s."""
        since_s = world.now_s
        for _ in range(seconds):
            world.now_s += 1.0
            if moves and world.now_s - since_s >= 50.0:
                since_s = world.now_s
            if talks or since_s == world.now_s:
                age_s = world.now_s - since_s
                word = RankProgress(Section.STEP, Phase.COMPUTE, age_s, age_s, int(since_s))
                world.feed(ev.RankMessage(now_s=world.now_s, conn_id=1, message=word))
            world.feed(ev.Tick(now_s=world.now_s))
        bodies = [kept.body for kept in world.state.events]
        return sum(isinstance(body, RankOverdue) and body.ref.rank == 0 for body in bodies)

    assert overdue_after(300, talks=True, moves=True) == 0
    assert overdue_after(300, talks=False, moves=True) == 0, "silent between its steps, and moving"
    assert overdue_after(300, talks=True, moves=False) == 1, "it answers each second and does not move"


def test_a_rank_that_falls_silent_while_it_waits_for_others_is_overdue_too():
    world = running()
    told(world, hello(world))

    def overdue_after(silent_s):
        passes(world, silent_s)
        return [kept.body for kept in world.state.events if isinstance(kept.body, RankOverdue)]

    waits = RankProgress(Section.STEP, Phase.EXCHANGE, 1.0, 1.0, 1)
    world.feed(ev.RankMessage(now_s=world.now_s, conn_id=1, message=waits))
    assert overdue_after(59.0) == []
    world.feed(ev.RankMessage(now_s=world.now_s, conn_id=1, message=waits))
    assert overdue_after(59.0) == [], "it spoke: it still waits"
    (found,) = overdue_after(2.0)
    assert found.phase is Phase.EXCHANGE
    assert found.silent_s >= 60.0


def test_an_expired_or_misaddressed_order_is_not_carried_out():
    world = World()
    world.connect()
    start = order(1, StartRanks(launch()), 1, 1)
    give(world, msgspec.structs.replace(start, age_s=61.0))
    assert last_answer(world).state == "superseded"
    give(world, msgspec.structs.replace(start, command_id="cmd_2", node_id="node_02"))
    assert last_answer(world).state == "failed"
    assert not world.forked


def test_an_order_that_cannot_be_journaled_is_not_carried_out():
    world = World()
    world.connect()
    world.feed(ev.OrderReceived(now_s=1.0, commands=(order(1, StartRanks(launch()), 1, 1),)))
    world.pending.clear()
    world.feed(ev.Journaled(now_s=1.0, command_ids=("cmd_1",), error="disk full"))
    assert "disk full" in last_answer(world).detail
    assert not world.host_alive


def test_the_same_incarnation_is_never_started_by_a_second_command():
    world = running()
    give(world, order(2, StartRanks(launch()), 1, 1))
    assert last_answer(world).state == "superseded"
    assert len(world.forked) == 2


def test_a_start_waiting_while_cut_off_is_given_up_after_the_lease():
    world = World()
    world.connect()
    world.feed(ev.OrderReceived(now_s=world.now_s, commands=(order(1, StartRanks(launch()), 1, 1),)))
    world.feed(world.pending.pop()())
    world.pending.clear()
    world.feed(ev.LinkDown(now_s=world.now_s))
    world.now_s += limits.LEASE_S
    assert next_deadline_s(world.state) <= world.now_s
    world.feed(ev.Tick(now_s=world.now_s))
    assert last_answer(world).state == "failed"
    assert not world.state.launches


def test_link_faults_belong_to_demos():
    world = World()
    world.connect()
    give(world, order(1, InjectLinkFault(1.0), 0, 0))
    assert last_answer(world).state == "failed"


def test_cut_off_and_hot_saves_once_per_cooldown():
    world = running()
    told(world, hello(world))
    hot = (DeviceSample(index=0, temperature_c=97.0), DeviceSample(index=1, temperature_c=60.0))
    assert told(world, ev.DevicesSampled(now_s=world.now_s, samples=hot)) == [], "the server decides while it can"
    world.feed(ev.LinkDown(now_s=world.now_s))
    world.now_s += limits.CUT_OFF_RULE_S
    saves = told(world, ev.DevicesSampled(now_s=world.now_s, samples=hot))
    assert [(type(save), save.kind) for save in saves] == [(SaveNow, "emergency")]
    assert told(world, ev.DevicesSampled(now_s=world.now_s + 1.0, samples=hot)) == []
    later_s = world.now_s + limits.EMERGENCY_COOLDOWN_S
    assert len(told(world, ev.DevicesSampled(now_s=later_s, samples=hot))) == 1


def test_a_save_that_reaches_nobody_says_so():
    world = running()
    give(world, order(2, RequestSave("job_1", 1, "manual", "test"), 1, 1))
    assert last_answer(world).state == "failed"


def test_an_order_to_compute_again_is_handed_to_the_ranks_of_that_replica_alone():
    world = running()
    told(world, hello(world))
    again = Recompute(
        order_id="rec_1", path="/c/step_00000001-e1", from_step=1, until_step=3,
        spans=(Span(1, (Share(0, ((0, 1),)),)),), limit_s=60.0,
    )  # fmt: skip
    ref = next(iter(world.state.ranks))
    for number, incarnation in ((2, ref.incarnation), (3, ref.incarnation + 1)):
        body = OrderRecompute(ref.job_id, ref.attempt, ref.replica, incarnation, again)
        world.feed(ev.OrderReceived(now_s=world.now_s, commands=(order(number, body, 1, 1),)))
        handed = [message.order for message in told(world, world.pending.pop(0)())]
        assert handed == ([again] if number == 2 else [])
        assert last_answer(world).state == ("succeeded" if number == 2 else "failed")


def test_an_order_to_keep_checkpoints_reaches_rank_0_of_its_replica_alone():
    world = running()
    told(world, hello(world))
    ref = next(iter(world.state.ranks))
    saves = (KeptSave("step_00000001-e1", ((1, 1),)),)
    for number, incarnation in ((2, ref.incarnation), (3, ref.incarnation + 1)):
        body = KeepCheckpoints(ref.job_id, ref.attempt, ref.replica, incarnation, saves)
        world.feed(ev.OrderReceived(now_s=world.now_s, commands=(order(number, body, 1, 1),)))
        handed = [message.saves for message in told(world, world.pending.pop(0)())]
        assert handed == ([saves] if number == 2 else [])
        assert last_answer(world).state == ("succeeded" if number == 2 else "failed")


def test_unacknowledged_events_are_sent_again_after_a_while():
    world = running()
    world.state, first, _ = compose(world.state, world.now_s)
    world.state, second, _ = compose(world.state, world.now_s)
    assert first.events and not second.events
    world.now_s += limits.RESEND_AFTER_S
    world.feed(ev.Tick(now_s=world.now_s))
    _, again, _ = compose(world.state, world.now_s)
    assert [event.seq for event in again.events] == [event.seq for event in first.events]


def test_an_idle_host_is_sent_home():
    world = running()
    for ref in tuple(world.alive):
        world.kill_rank(ref)
    while world.pending:
        world.deliver(0)
    world.now_s += limits.HOST_IDLE_S
    _, effects = step(world.state, ev.Tick(now_s=world.now_s))
    assert ShutdownHost("job_1") in effects


def own_program():
    """A world with one replica of a program of the job's own."""
    world = World()
    world.connect()
    give(world, order(1, StartRanks(launch(entrypoint=True)), 1, 1))
    return world


def overdue(world, after_s):
    passes(world, after_s)
    return [kept.body.section for kept in world.state.events if isinstance(kept.body, RankOverdue)]


def test_a_program_without_hooks_is_never_overdue():
    assert overdue(own_program(), 10_000.0) == []


def test_a_program_with_hooks_may_hang_in_its_setup_and_is_overdue_then():
    world = own_program()
    told(world, hello(world))
    builds = RankProgress(Section.SETUP, Phase.BUILDING, 1.0, 1.0, 0)
    world.feed(ev.RankMessage(now_s=world.now_s, conn_id=1, message=builds))
    assert overdue(world, 590.0) == []
    assert overdue(world, 20.0) == [Section.SETUP]


def test_a_program_that_beats_in_time_is_never_overdue_and_one_that_stops_beating_is():
    world = own_program()
    told(world, hello(world))

    def beat(age_s=0.0):
        beats = RankProgress(Section.OUT_OF_SECTION, Phase.IDLE, age_s, age_s, 0)
        world.feed(ev.RankMessage(now_s=world.now_s, conn_id=1, message=beats))

    for _ in range(10):
        beat()
        assert overdue(world, 290.0) == []
    beat(290.0)  # its reporter lives and says that the loop does not move
    assert overdue(world, 20.0) == [Section.OUT_OF_SECTION]


def test_a_program_is_told_to_leave_on_its_socket_as_well_as_by_signal():
    world = own_program()
    told(world, hello(world))
    stop = order(2, StopRanks("job_1", 1, 0, 1, 30.0, "preempted"), 1, 1)
    world.feed(ev.OrderReceived(now_s=world.now_s, commands=(stop,)))
    messages = told(world, world.pending.pop()())
    assert messages == [StopTraining(save=True, reason="asked to leave within 30 s")]
