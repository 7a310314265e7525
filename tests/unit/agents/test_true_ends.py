"""What ended before we ended it did not end by our order, however late its end is told."""

from agents.core import events as ev
from agents.core import limits
from agents.core.events import RankProcessGone
from controlplane.protocol.commands import StartRanks, StopRanks
from controlplane.protocol.frames import RankExited
from controlplane.protocol.launch import RankRef
from controlplane.protocol.states import EXIT_PEER_LOST
from tests.properties.agents.world import World, launch, order


def running() -> World:
    """Both ranks of a replica are up."""
    world = World()
    world.connect()
    give(world, StartRanks(launch()), 1)
    assert len(world.alive) == 2
    return world


def give(world: World, body: StartRanks | StopRanks, number: int) -> None:
    world.feed(ev.OrderReceived(now_s=world.now_s, commands=(order(number, body, 1, 1),)))
    drain(world)


def end_of(ref: RankRef, code: int | None) -> RankProcessGone:
    """Its process is gone; `code` None: its host has not told the status yet."""
    return RankProcessGone(now_s=0.0, ref=ref, pid=None, exit_code=code, signal=None, known=code is not None)


def drain(world: World) -> None:
    while world.pending:
        world.deliver(0)


def ends(world: World) -> dict[int, tuple[int | None, bool]]:
    """(signal or code, as ordered) of each rank whose end was told."""
    told = [kept.body for kept in world.state.events if isinstance(kept.body, RankExited)]
    return {body.ref.rank: (body.exit_code, body.expected) for body in told}


def test_the_one_that_was_killed_is_told_as_such_though_its_peer_noticed_first() -> None:
    """A killed process is gone a tenth of a second after its sockets; its peer has ended with 71 by then."""
    world = running()
    killed, peer = sorted(world.alive, key=lambda ref: ref.rank)
    world.kill_rank(peer, EXIT_PEER_LOST)
    drain(world)
    assert killed in world.alive, "it is left the time to be gone"
    world.now_s += 0.1
    world.kill_rank(killed, 137)
    drain(world)
    assert ends(world) == {peer.rank: (EXIT_PEER_LOST, False), killed.rank: (137, False)}


def test_one_that_lives_on_is_ended_by_us_when_that_time_is_over() -> None:
    world = running()
    lives, peer = sorted(world.alive, key=lambda ref: ref.rank)
    world.kill_rank(peer, EXIT_PEER_LOST)
    drain(world)
    world.now_s += limits.PEERS_MAY_END_S
    world.feed(ev.Tick(now_s=world.now_s))
    drain(world)
    assert lives not in world.alive
    assert ends(world)[lives.rank][1] is True


def test_peers_of_one_that_failed_by_itself_are_ended_at_once() -> None:
    world = running()
    failed, peer = sorted(world.alive, key=lambda ref: ref.rank)
    world.kill_rank(failed, 1)
    drain(world)
    assert peer not in world.alive and ends(world) == {failed.rank: (1, False), peer.rank: (137, True)}


def test_an_order_to_end_what_is_gone_already_makes_it_no_end_by_order() -> None:
    world = running()
    gone = min(world.alive, key=lambda ref: ref.rank)
    world.alive.pop(gone)
    world.feed(end_of(gone, None))
    give(world, StopRanks("job_1", 1, 0, 1, 0.0, "its peer said 71"), 2)
    world.feed(end_of(gone, 137))
    drain(world)
    assert ends(world)[gone.rank] == (137, False)
