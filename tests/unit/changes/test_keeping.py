"""The checkpoint from before a fault: which is kept, who is ordered to, and when it is let go."""

import msgspec

from controlplane.changes.due.keeping import CALM_S, MAX_KEPT, MAX_LOST, SOON_S, ended, tended
from controlplane.changes.due.kinds import KeepFor, KeepNext, Keeps, LetGo, Rebase
from controlplane.policy.snapshot import CheckpointFact
from controlplane.protocol.commands import KeepCheckpoints
from controlplane.protocol.keeping import KeptSave
from controlplane.protocol.spec import Parallelism
from controlplane.protocol.states import CheckpointState, CommandState, JobState
from controlplane.simulator.keeping import Keeping
from controlplane.simulator.rows import NeedRow, SaveRow

from .builders import NODES, World, training


class Kept(World):
    """A job that trains, with a checkpoint at each of some steps."""

    def __init__(self, *steps: int) -> None:
        self.__dict__ = training().__dict__
        self.keeping = Keeping(self.rows, self.store)
        for replica in self.rows.replicas.values():
            replica.contributing = True
        for step in steps:
            self.save(step)

    def save(self, step: int) -> None:
        path = f"/checkpoints/{step}"
        fact = CheckpointFact(
            id=path,
            step=step,
            path=path,
            state=CheckpointState.COMPLETE,
            epoch=2,
            committed_s=900.0,
            layout=Parallelism(),
        )
        self.rows.saves[path] = SaveRow(1, 0, 1, state=CheckpointState.VERIFIED, fact=fact)

    def fault(self) -> str:
        """Another incident opens; the sweep comes by."""
        self.rows.incidents += 1
        self.rows.incident_s = self.kernel.now_s
        self.keeping.sweep()
        return self.store.open_incident()

    def over(self) -> None:
        """It is resolved."""
        self.rows.incident_s = None
        self.keeping.sweep()

    def sweep(self, after_s: float) -> None:
        self.kernel.now_s += after_s
        self.keeping.sweep()

    def sent(self) -> list[tuple[str, KeepCheckpoints]]:
        return self.commands(KeepCheckpoints)

    def answer(self, state: CommandState, detail: str = "") -> None:
        """To everything that was ordered."""
        for row in self.rows.commands.values():
            row.state, row.detail = state, detail


def test_what_is_newest_when_the_incident_opens_is_kept_by_rank_0_of_the_replica_that_saves() -> None:
    world = Kept(5, 7)
    incident = world.fault()
    ((node, body),) = world.sent()
    assert (node, body.replica, body.incarnation, body.saves) == (NODES[0], 0, 1, (KeptSave("7"),))
    world.sweep(SOON_S)
    assert len(world.sent()) == 1, "it is on its way"
    world.answer(CommandState.SUCCEEDED)
    world.save(9)
    world.sweep(CALM_S)
    assert len(world.sent()) == 1 and world.rows.needs[incident].path == "/checkpoints/7"


def test_without_a_checkpoint_nothing_is_kept() -> None:
    world = Kept()
    world.fault()
    assert world.sent() == [] and world.rows.needs == {}


def test_who_takes_the_saving_replicas_place_is_ordered_in_its_turn() -> None:
    world = Kept(7)
    world.fault()
    world.answer(CommandState.SUCCEEDED)
    world.rows.replicas[0].contributing = False
    world.sweep(CALM_S)
    assert [body.replica for _, body in world.sent()] == [0, 1]


def test_it_is_let_go_once_it_is_judged_and_its_ranks_hear_that() -> None:
    world = Kept(7)
    incident = world.fault()
    world.answer(CommandState.SUCCEEDED)
    world.over()
    world.keeping.sweep([incident])
    assert world.rows.needs[incident].let_go and world.sent()[-1][1].saves == ()
    assert world.rows.needs[incident].due_s == world.kernel.now_s + SOON_S, "they have not heard it yet"
    world.answer(CommandState.SUCCEEDED)
    world.sweep(SOON_S)
    assert world.rows.needs[incident].due_s is None and len(world.sent()) == 2


def test_the_oldest_need_gives_way() -> None:
    world = Kept(1)
    first = world.fault()
    for step in range(2, MAX_KEPT + 2):
        world.save(step)
        world.fault()
    kept = world.sent()[-1][1].saves
    assert [save.name for save in kept] == [str(step) for step in range(2, MAX_KEPT + 2)]
    assert world.rows.needs[first].let_go and "given up for those of other faults" in world.rows.needs[first].why


def test_a_command_that_is_lost_again_and_again_is_given_up_with_its_reason() -> None:
    world = Kept(7)
    incident = world.fault()
    for given in range(1, MAX_LOST + 1):
        assert len(world.sent()) == given and not world.rows.needs[incident].let_go
        world.answer(CommandState.FAILED, "the node does not allow it")
        world.sweep(SOON_S)
    assert len(world.sent()) == MAX_LOST
    assert world.rows.needs[incident].why.endswith("failed: the node does not allow it")


def test_what_a_restart_resumed_from_is_what_its_recovery_is_judged_from() -> None:
    world = Kept(5, 7)
    world.rows.needs = {
        "old": NeedRow("/checkpoints/7", 1, 0.0),
        "new": NeedRow("/checkpoints/7", 2, 0.0),
    }
    assert world.rows.attempt is not None
    world.rows.attempt.number, world.rows.attempt.resume_path = 2, "/checkpoints/5"
    changes = list(tended(world.store))
    assert changes[0] == Rebase(("old",), "/checkpoints/5")


def test_a_job_that_is_stopped_lets_go_before_its_ranks_leave_and_is_due_no_more() -> None:
    world = Kept(7)
    incident = world.fault()
    world.answer(CommandState.SUCCEEDED)
    world.keeping.end()
    assert world.sent()[-1][1].saves == ()
    need = world.rows.needs[incident]
    assert (need.why, need.due_s) == ("the job ended before it was judged", None)
    assert list(ended(world.store)) == []


def test_a_job_that_has_trained_or_is_over_orders_nothing() -> None:
    world = Kept(7)
    world.rows.needs = {"one": NeedRow("/checkpoints/7", 1, 0.0)}
    world.rows.trained = True
    kinds: list[type[Keeps]] = [LetGo, KeepNext]  # type: ignore[list-item]
    assert [type(change) for change in ended(world.store)] == kinds
    world.rows.state, world.rows.trained = JobState.FAILED, False
    assert [type(change) for change in tended(world.store)] == kinds


def test_while_nobody_saves_it_is_due_again_soon() -> None:
    world = Kept(7)
    for replica in world.rows.replicas.values():
        replica.contributing = False
    world.rows.needs = {"one": NeedRow("/checkpoints/7", 1, 0.0)}
    assert list(tended(world.store)) == [KeepNext(SOON_S, SOON_S)]
    world.rows.state = JobState.PENDING
    assert list(tended(world.store)) == [KeepNext(CALM_S, CALM_S)]


def test_an_incident_is_written_down_once() -> None:
    world = Kept(7)
    incident = world.fault()
    world.keeping.sweep()
    assert list(world.rows.needs) == [incident]
    assert KeepFor(incident, "/checkpoints/7").checkpoint == world.rows.needs[incident].path
    assert msgspec.to_builtins(world.sent()[0][1])["saves"]
