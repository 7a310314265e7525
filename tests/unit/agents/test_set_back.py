"""A server whose database was set back: what the agent still obeys, and what it tells it (O3)."""

from agents.core import events as ev
from agents.core.session import hello
from agents.core.step import step
from controlplane.protocol.commands import DeliverView, RequestSave, StartRanks, StopRanks
from controlplane.protocol.frames import CommandAnswer, JobSeen
from controlplane.protocol.membership import Member, MemberRole, View
from controlplane.protocol.rank import TrainingDone
from tests.properties.agents.world import World, launch, order
from tests.unit.agents.test_core_rules import give, running
from tests.unit.agents.test_core_rules import hello as rank_hello


def answers(world: World) -> dict[str, str]:
    """Newest answer to each command."""
    return {
        kept.body.command_id: kept.body.state for kept in world.state.events if isinstance(kept.body, CommandAnswer)
    }


def view(epoch: int) -> View:
    member = Member(replica=0, incarnation=1, role=MemberRole.CONTRIBUTOR)
    return View(job_id="job_1", attempt=1, epoch=epoch, members=(member,), donors=(), reason="test")


def seen(world: World) -> tuple[JobSeen, ...]:
    return hello(world.state, node_name="n1", devices=(), now_s=world.now_s).jobs


def stop(epoch: int, *, attempt: int = 1, final: str = "") -> StopRanks:
    return StopRanks("job_1", attempt, -1, -1, 0.0, "its user cancelled it", final)


def in_epoch_seven() -> World:
    world = running()
    give(world, order(2, DeliverView(view(7)), 7, 1))
    assert world.state.jobs["job_1"].epoch == 7
    return world


def test_an_end_ordered_by_a_server_that_does_not_know_the_epoch_is_carried_out():
    world = in_epoch_seven()
    give(world, order(3, stop(2), 2, 1))
    assert answers(world)["cmd_3"] == "succeeded"
    assert not world.alive
    assert world.state.jobs["job_1"].epoch == 7, "the fence stays where it was"


def test_nothing_else_of_an_older_epoch_is_carried_out():
    world = in_epoch_seven()
    give(world, order(3, DeliverView(view(6)), 6, 1))
    give(world, order(4, RequestSave("job_1", 1, "manual", "test"), 6, 1))
    assert (answers(world)["cmd_3"], answers(world)["cmd_4"]) == ("superseded", "superseded")
    assert world.state.jobs["job_1"].view == view(7)


def test_the_hello_tells_the_newest_fence_of_each_job():
    assert seen(in_epoch_seven()) == (JobSeen(job_id="job_1", attempt=1, epoch=7, incarnations={0: 1}),)


def test_how_a_job_ended_is_told_and_survives_a_restart_of_the_agent():
    world = in_epoch_seven()
    give(world, order(3, stop(7, final="cancelled"), 7, 1))
    assert [job.end for job in seen(world)] == ["cancelled"]
    world.restart_agent()
    assert [(job.end, job.epoch) for job in seen(world)] == [("cancelled", 7)]


def test_the_end_of_an_attempt_is_not_the_end_of_its_job():
    world = in_epoch_seven()
    give(world, order(3, stop(7), 7, 1))
    assert [job.end for job in seen(world)] == [""]


def test_a_rank_that_says_that_all_is_trained_ends_the_job():
    world = running()
    world.state, _ = step(world.state, rank_hello(world))
    world.state, _ = step(world.state, ev.RankMessage(now_s=world.now_s, conn_id=1, message=TrainingDone(20)))
    assert [job.end for job in seen(world)] == ["succeeded"]


def test_a_new_attempt_takes_an_end_back():
    world = in_epoch_seven()
    give(world, order(3, stop(7, final="failed"), 7, 1))
    give(world, order(4, StartRanks(launch(attempt=2, epoch=8)), 8, 2))
    assert [(job.attempt, job.end) for job in seen(world)] == [(2, "")]
