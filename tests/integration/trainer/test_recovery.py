"""Every recovery ends with replicas bit-equal, each sample once, and the undisturbed losses."""

import os
import signal
from collections.abc import Callable

import pytest

from controlplane.protocol.membership import Flush, MemberRole
from controlplane.protocol.rank import CaughtUp, FromRank, InjectFault, OuterError, StepReport, ViewInstalled
from controlplane.protocol.spec import Training
from tests.integration.trainer.cluster import Cluster, Key
from trainer.reference import TOLERANCE

pytestmark = pytest.mark.trainer
Make = Callable[..., Cluster]
# Long enough for a joiner to arrive before the job ends; the delay changes no number.
SLOW = Training(steps=36, global_batch=6, step_delay_s=0.06)
# Long enough for what a test does between two steps.
PACED = Training(steps=36, global_batch=6, step_delay_s=0.02)
STEPS_MORE = 4


def wait_some_steps(cluster: Cluster, *, after: int | None = None) -> int:
    """Until every rank of each member has told of STEPS_MORE steps beyond `after` committed ones
    (None: those of now): their losses and hashes show whose state is not whole, the optimizer's
    included. How many steps all have told of."""
    committed = max(map(cluster.committed, cluster.members)) if after is None else after
    steps = min(committed + STEPS_MORE, cluster.config.training.steps)
    ranks = [(replica, rank) for replica in cluster.members for rank in range(cluster.world)]
    cluster.wait(lambda: all(_told(cluster, *each) >= steps for each in ranks), f"{steps} steps of all")
    return steps


def wait_together(cluster: Cluster, *replicas: int) -> int:
    """The same, after every rank of these that came back holds the state."""
    cluster.wait(lambda: all(len(cluster.of(CaughtUp, each)) == cluster.world for each in replicas), "all caught up")
    return wait_some_steps(cluster, after=max(message.step for message in cluster.of(CaughtUp)))


def _told(cluster: Cluster, replica: int, rank: int) -> int:
    """Steps of which the rank has told, or one that had its place before."""
    return max((message.step + 1 for message in cluster.of(StepReport, replica, rank)), default=0)


def assert_as_undisturbed(cluster: Cluster, reference: list[float], *, until: int | None = None) -> None:
    """Losses (`until`: of the steps before), ledger and parameter hashes of every committed step."""
    losses = {step: loss for step, loss in cluster.losses().items() if until is None or step < until}
    assert len(losses) >= (until or 0)
    assert sorted(losses) == list(range(len(losses)))
    assert max(abs(losses[step] - reference[step]) for step in losses) <= TOLERANCE
    micro_batches = cluster.config.training.global_batch // cluster.config.training.micro_batch
    assert all(sorted(ids) == list(range(micro_batches)) for ids in cluster.ledger().values())
    assert all(len(hashes) == 1 for hashes in cluster.hashes().values())


def steps_installed(cluster: Cluster, epoch: int) -> list[int]:
    """Where each rank that installed the epoch stood."""
    return [message.step for message in cluster.of(ViewInstalled) if message.epoch == epoch]


def test_undisturbed_run_equals_the_reference(cluster: Make, reference: list[float]) -> None:
    run = cluster()
    run.start(0, 1, 2)
    run.wait_all_done()
    assert {gone.exit_code for gone in run.gone.values()} == {0}
    assert len(run.losses()) == run.config.training.steps
    assert_as_undisturbed(run, reference)


def test_killed_rank_loses_no_step_and_its_replica_rejoins(cluster: Make, reference: list[float]) -> None:
    run = cluster()
    run.start(0, 1, 2)
    run.wait_committed(4, 0, 1, 2)
    for replica in (0, 2):  # Until the joiner is there; at full speed to the end of the job then.
        run.tell(replica, InjectFault("slow", SLOW.step_delay_s))
    run.signal(1, signal.SIGKILL, rank=1)
    run.wait(lambda: run.epoch == 2, "a view without replica 1")
    run.wait(lambda: len(steps_installed(run, 2)) == 2 * run.world, "replicas 0 and 2 in that view")
    run.start(1, incarnation=2)
    run.wait(lambda: len(run.of(CaughtUp, 1)) == run.world, "replica 1 caught up")
    for replica in (0, 2):
        run.tell(replica, InjectFault("slow", 0.0))
    run.wait_all_done()
    assert len(set(steps_installed(run, 2))) == 1
    assert len(run.of(CaughtUp, 1)) == run.world
    assert any(report.micro_batches for report in run.of(StepReport, 1, 0)[-1:])
    assert_as_undisturbed(run, reference)


def test_one_survivor_of_three_goes_on_alone(cluster: Make, reference: list[float]) -> None:
    run = cluster(training=SLOW)
    run.start(0, 1, 2)
    run.wait_committed(3, 0, 1, 2)
    run.signal(0, signal.SIGKILL)
    run.signal(2, signal.SIGKILL)
    run.wait(lambda: list(run.members) == [1], "a view of replica 1 alone")
    run.wait_committed(run.committed(1) + 2, 1)
    run.start(0, 2, incarnation=2)
    together = wait_together(run, 0, 2)
    assert len(run.of(CaughtUp)) == 2 * run.world
    assert_as_undisturbed(run, reference, until=together)


def test_a_death_while_others_flush_ends_in_the_view_after(cluster: Make, reference: list[float]) -> None:
    run = cluster(training=PACED)

    def kill_at_first_flush(key: Key, message: FromRank) -> None:
        if isinstance(message, Flush) and message.epoch == 2 and (2, 1, 0) not in run.gone:
            os.killpg(run.pids[(2, 1, 0)], signal.SIGKILL)

    run.start(0, 1, 2)
    run.wait_committed(3, 0, 1, 2)
    run.on_said = kill_at_first_flush
    run.signal(1, signal.SIGKILL)
    run.wait(lambda: list(run.members) == [0], "a view of replica 0 alone")
    alone = wait_some_steps(run)
    assert_as_undisturbed(run, reference, until=alone)


def test_donor_death_during_the_fetch_gives_the_joiner_another_donor(cluster: Make, reference: list[float]) -> None:
    run = cluster(training=SLOW)

    def kill_the_donor(key: Key, message: FromRank) -> None:
        """All of it: each rank of it could still serve its own shard. Nobody has the install yet."""
        if isinstance(message, Flush) and message.role is MemberRole.JOINER:
            run.on_said = None
            run.signal(0, signal.SIGKILL)

    run.start(0, 1, 2)
    run.wait_committed(3, 0, 1, 2)
    run.signal(1, signal.SIGKILL)
    run.wait_committed(6, 0, 2)
    run.on_said = kill_the_donor
    run.start(1, incarnation=2)
    together = wait_together(run, 1)
    assert {message.donor for message in run.of(CaughtUp)} == {2}
    assert_as_undisturbed(run, reference, until=together)


def test_reissued_views_of_the_same_members_change_nothing(cluster: Make, reference: list[float]) -> None:
    run = cluster(training=PACED)
    run.start(0, 1, 2)
    for step in (2, 5, 8, 11):
        run.wait_committed(step, 0, 1, 2)
        run.announce("again")
        run.announce("and again")
    run.wait_all_done()
    assert {gone.exit_code for gone in run.gone.values()} == {0}
    assert_as_undisturbed(run, reference)


@pytest.mark.parametrize("fault", ["exception", "nan"])
def test_a_fault_in_one_replica_costs_that_replica_only(cluster: Make, reference: list[float], fault: str) -> None:
    run = cluster(training=PACED)
    run.start(0, 1, 2)
    run.wait_committed(3, 0, 1, 2)
    run.tell(2, InjectFault(fault))
    run.wait(lambda: sorted(run.members) == [0, 1], "a view without replica 2")
    afterwards = wait_some_steps(run)
    assert {key[0] for key, gone in run.gone.items() if gone.exit_code != 0} == {2}
    codes = {gone.exit_code for key, gone in run.gone.items() if key[0] == 2}
    assert codes & ({70} if fault == "exception" else {16})
    assert_as_undisturbed(run, reference, until=afterwards)


def test_training_goes_on_without_an_agent_and_tells_it_later(cluster: Make, reference: list[float]) -> None:
    run = cluster(training=PACED)
    run.start(0, 1, 2)
    run.wait_committed(3, 0, 1, 2)
    run.cut_agent()
    before = run.committed(0)
    run.open_host()
    run.wait(lambda: True, "the host answers its next agent")
    run.open_agent()
    run.wait_all_done()
    assert run.committed(0) == run.config.training.steps > before
    assert not run.of(OuterError)
    assert_as_undisturbed(run, reference)


def test_a_rank_whose_replica_is_torn_says_that_it_is_not_the_culprit(cluster: Make) -> None:
    run = cluster(training=SLOW)  # It is computing nearly all the time, as the sibling is that dies.
    run.auto = False
    run.start(0, 1)
    run.wait_committed(3, 0, 1)
    run.signal(1, signal.SIGKILL, rank=1)
    run.wait_gone((1, 1, 0))
    assert run.gone[(1, 1, 0)].exit_code == 71
