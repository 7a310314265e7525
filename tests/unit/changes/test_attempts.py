"""Attempts and views: what placing, announcing, installing and ending change, and in which order."""

import pytest

from controlplane.changes import kinds
from controlplane.changes.kinds import AttemptKey, ReplicaKey
from controlplane.policy.plan import (
    AnnounceView,
    EndAttempt,
    PlaceAttempt,
    ResolveIncident,
    SendInstall,
    SetJobState,
)
from controlplane.protocol.commands import DeliverInstall, DeliverView, StartRanks, StopRanks, WarmHost
from controlplane.protocol.spec import Parallelism
from controlplane.protocol.states import AttemptState, JobState, ReplicaState

from .builders import NODES, SENTENCE, World, home, install, placed, training, view


def kinds_of(changes: list[kinds.Change]) -> list[str]:
    return [type(change).__name__ for change in changes]


def sent(changes: list[kinds.Change]) -> list[kinds.Enqueue]:
    return [change for change in changes if isinstance(change, kinds.Enqueue)]


def place(world: World, epoch: int, **fields: object) -> PlaceAttempt:
    number = world.rows.attempt.number + 1 if world.rows.attempt else 1
    placements = (home(0), home(1))
    return PlaceAttempt(number=number, epoch=epoch, layout=Parallelism(tp=2), placements=placements, **fields)  # type: ignore[arg-type]


def test_an_attempt_is_fenced_before_it_is_a_row_and_its_row_is_there_before_its_orders() -> None:
    world = World()
    changes = kinds_of(world.told(place(world, 4)))
    assert (
        changes.index("Fence")
        < changes.index("CreateAttempt")
        < changes.index("CreateReplica")
        < changes.index("Enqueue")
    )
    assert changes.index("Release") < changes.index("CreateReplica") < changes.index("Reserve")


def test_a_placed_attempt_begins_at_its_checkpoint_and_forgets_what_came_after() -> None:
    world = training()
    world.rows.committed_step = 40
    world.place(resume_step=20, resume_path="/checkpoints/job/20")
    attempt = world.rows.attempt
    assert attempt is not None
    assert (world.rows.committed_step, attempt.number, attempt.resume_path) == (20, 2, "/checkpoints/job/20")
    launch = world.commands(StartRanks)[0][1].launch
    assert launch.config.resume is not None
    assert (launch.config.resume.step, launch.config.resume.path) == (20, "/checkpoints/job/20")


def test_an_attempt_that_is_followed_ends_with_its_replicas_first() -> None:
    world = training()
    changes = world.told(place(world, 9))
    ended = [change for change in changes if isinstance(change, kinds.Transition)]
    assert [change.subject for change in ended] == [AttemptKey(1), *(ReplicaKey(1, index, 1) for index in range(3))]
    assert {change.to for change in ended} == {AttemptState.ENDED, ReplicaState.ENDED}
    assert all(change.columns["contributing"] is False for change in ended[1:])
    assert kinds_of(changes).index("Fence") == len(ended)


def test_incarnations_are_counted_over_all_attempts() -> None:
    world = training()
    world.place()
    assert {row.incarnation for row in world.rows.replicas.values()} == {2}
    assert world.checkers.violations == []


def test_each_node_is_told_its_own_ranks_at_the_new_epoch() -> None:
    world = placed()
    orders = world.commands(StartRanks)
    assert [node for node, _ in orders] == list(NODES[:3])
    for index, (_, body) in enumerate(orders):
        launch = body.launch
        assert (launch.replica, launch.incarnation, launch.epoch, launch.world_size) == (index, 1, 1, 2)
        assert [(rank.rank, rank.device_index) for rank in launch.ranks] == [(0, 0), (1, 1)]
        assert launch.master_host == ""


def test_ranks_on_several_nodes_meet_at_the_node_of_the_first() -> None:
    world = World()
    split = (home(4)[0], home(2)[1])
    layout = Parallelism(tp=2)
    world.do(PlaceAttempt(number=1, epoch=1, layout=layout, placements=(split,)))
    orders = world.commands(StartRanks)
    assert [(node, body.launch.master_host) for node, body in orders] == [("node-2", "node-4"), ("node-4", "node-4")]
    assert [len(body.launch.ranks) for _, body in orders] == [1, 1]


def test_spares_are_reserved_and_their_hosts_warmed_where_the_job_wants_them_warm() -> None:
    world = World()
    world.place(spare_nodes=("node-3",))
    assert [name for name, node in world.rows.nodes.items() if node.reserved_for] == ["node-3"]
    warm = world.rows.spec.resources.spares.warm
    assert [node for node, _ in world.commands(WarmHost)] == (["node-3"] if warm else [])


@pytest.mark.parametrize("standing_by", [0, 1])
def test_no_more_compute_than_were_placed_or_than_the_job_wants(standing_by: int) -> None:
    world = placed(standing_by=standing_by)
    config = world.commands(StartRanks)[0][1].launch.config
    assert (config.replicas, config.max_contributors) == (3, 3 - standing_by)


def test_a_view_is_a_row_before_it_is_told_and_is_told_to_who_is_left_out() -> None:
    world = training()
    changes = world.told(AnnounceView(view=view(world, 0, 2)))
    assert kinds_of(changes) == ["Fence", "CreateView", "Publish", "Enqueue"]
    assert [node for node, _ in sent(changes)[0].commands] == list(NODES[:3])
    assert isinstance(changes[2], kinds.Publish)
    assert changes[2].sentence == "View 3: 2 replicas. One is left out."


def test_a_view_is_told_to_nodes_of_older_incarnations_too() -> None:
    world = training()
    row = world.rows.replicas[1]
    row.state = ReplicaState.EVICTED
    world.store.commit([kinds.CreateReplica(ReplicaKey(1, 1, 2), home(3))])
    world.do(AnnounceView(view=view(world, 0, 2)))
    assert [node for node, _ in world.commands(DeliverView)] == list(NODES[:4])


def test_a_node_whose_processes_are_gone_is_told_nothing() -> None:
    world = training()
    world.rows.replicas[1].exited = {0, 1}
    world.do(AnnounceView(view=view(world, 0, 2)))
    assert [node for node, _ in world.commands(DeliverView)] == ["node-0", "node-2"]


def test_an_install_goes_to_the_members_alone() -> None:
    world = training()
    world.do(AnnounceView(view=view(world, 0, 2)))
    world.do(SendInstall(install=install(world, 7, (0, 2))))
    assert [node for node, _ in world.commands(DeliverInstall)] == ["node-0", "node-2"]
    assert {index: row.contributing for index, row in world.rows.replicas.items()} == {0: True, 1: False, 2: True}


def test_the_first_install_has_the_attempt_run_and_later_ones_leave_it() -> None:
    world = placed()
    world.do(AnnounceView(view=view(world, 0, 1, 2)))
    order = install(world, 0, (0, 1, 2))
    moved = [change for change in world.told(SendInstall(install=order)) if isinstance(change, kinds.Transition)]
    assert [(change.subject, change.to) for change in moved] == [(AttemptKey(1), AttemptState.RUNNING)]
    world.do(SendInstall(install=order))
    world.do(AnnounceView(view=view(world, 0, 1)))
    again = world.told(SendInstall(install=install(world, 3, (0, 1))))
    assert not [change for change in again if isinstance(change, kinds.Transition)]


def test_an_install_writes_only_the_replicas_that_it_changes() -> None:
    world = training()
    world.do(AnnounceView(view=view(world, 0, 2)))
    changes = world.told(SendInstall(install=install(world, 7, (0, 2))))
    written = [change.subject for change in changes if isinstance(change, kinds.Observe)]
    assert written == [kinds.ViewKey(3), ReplicaKey(1, 1, 1)]


def test_who_stands_by_holds_the_state_and_does_not_count() -> None:
    world = placed(standing_by=1)
    world.do(AnnounceView(view=view(world, 0, 1, 2)))
    world.do(SendInstall(install=install(world, 0, (0, 1), (2,))))
    row = world.rows.replicas[2]
    assert (row.contributing, row.contributed) == (False, True)


def test_an_attempt_stops_first_and_has_ended_when_its_processes_are_gone() -> None:
    world = training()
    world.do(EndAttempt(number=1, grace_s=5.0))
    attempt = world.rows.attempt
    assert attempt is not None
    assert (attempt.state, attempt.end_code, attempt.end_reason) == (AttemptState.STOPPING, "rank_exit", SENTENCE)
    assert [(node, body.replica, body.grace_s) for node, body in world.commands(StopRanks)] == [
        (node, -1, 5.0) for node in NODES[:3]
    ]
    for row in world.rows.replicas.values():
        world.store.settle()
        assert attempt.state is AttemptState.STOPPING
        row.exited = {0, 1}
    world.store.settle()
    assert attempt.state is AttemptState.ENDED
    assert (attempt.ended_s, attempt.end_reason) == (1000.0, SENTENCE)
    assert {row.state for row in world.rows.replicas.values()} == {ReplicaState.ENDED}
    assert world.checkers.violations == []


def test_an_attempt_does_not_wait_for_a_node_out_of_reach() -> None:
    world = training()
    for index in (0, 2):
        world.rows.replicas[index].exited = {0, 1}
    world.do(EndAttempt(number=1, grace_s=5.0))
    world.rows.nodes["node-1"].close(990.0)
    world.store.settle()
    assert world.rows.attempt is not None and world.rows.attempt.state is AttemptState.ENDED


def test_an_attempt_of_which_nothing_runs_ends_at_once() -> None:
    world = training()
    for row in world.rows.replicas.values():
        row.exited = {0, 1}
    world.do(EndAttempt(number=1, grace_s=5.0))
    assert world.rows.attempt is not None and world.rows.attempt.state is AttemptState.ENDED
    assert world.commands(StopRanks) == []


@pytest.mark.parametrize("to", [JobState.SUCCEEDED, JobState.FAILED])
def test_the_last_stop_says_how_the_job_ends(to: JobState) -> None:
    world = training()
    world.do(EndAttempt(number=1, grace_s=0.0), SetJobState(to=to), ResolveIncident(note="It is over."))
    assert {body.final for _, body in world.commands(StopRanks)} == {str(to)}


def test_a_stop_that_ends_no_job_says_so() -> None:
    world = training()
    world.do(EndAttempt(number=1, grace_s=0.0), SetJobState(to=JobState.RECOVERING))
    assert {body.final for _, body in world.commands(StopRanks)} == {""}


def test_a_plan_about_an_attempt_that_is_not_there_is_refused() -> None:
    world = training()
    with pytest.raises(LookupError):
        world.told(EndAttempt(number=7, grace_s=0.0))
    with pytest.raises(LookupError):
        world.told(SendInstall(install=install(world, 0, (0,)).__class__("job_sim", 1, 99, 0, (0,))))
