"""Real ranks: a successor catches up beside one that trains, and one view swaps the two."""

import signal
from collections.abc import Callable

import msgspec
import pytest

from controlplane.protocol.membership import Member, MemberRole
from controlplane.protocol.rank import CaughtUp, StepReport
from tests.integration.trainer.cluster import Cluster, tiny_config
from tests.integration.trainer.test_recovery import SLOW, assert_as_undisturbed, wait_together

pytestmark = pytest.mark.trainer
Make = Callable[..., Cluster]
OLD, NEW = 1, 3


@pytest.fixture
def run(cluster: Make, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """Three replicas train, and no more compute; a fourth has caught up beside them and stands by."""
    config = tiny_config(tmp_path_factory.mktemp("relief"), training=SLOW)
    run = cluster(msgspec.structs.replace(config, max_contributors=3))
    run.start(0, OLD, 2)
    run.wait_committed(3, 0, OLD, 2)
    run.joins_at = run.committed(0) + 2
    run.start(NEW)
    run.wait(lambda: len(run.of(CaughtUp, NEW)) == run.world, "replica 3 has caught up")
    assert {message.role for message in run.of(CaughtUp, NEW)} == {MemberRole.STANDBY}
    return run


def swap(run: Cluster) -> int:
    """The view that leaves the old one out, at a step that is named; which."""
    with run.changed:
        at_step = run.committed(0) + 2
        run.announce("the place of 1 is taken", at_step=at_step, left_out=(run.members.pop(OLD),))
    return at_step


def shares(run: Cluster, replica: int) -> dict[int, int]:
    return {report.step: len(report.micro_batches) for report in run.of(StepReport, replica, 0)}


def test_a_successor_takes_the_place_of_one_that_trains_in_one_view(run: Cluster, reference: list[float]) -> None:
    at_step = swap(run)
    run.wait(lambda: run.installs[-1].epoch == run.epoch, "an install without replica 1")
    assert (run.installs[-1].contributors, run.installs[-1].standbys) == ((0, 2, NEW), ())
    run.wait_committed(at_step + 2, 0, 2, NEW)
    # It was left alone until the view without it had committed steps; now it ends.
    assert not any(key[0] == OLD for key in run.gone)
    run.signal(OLD, signal.SIGKILL)
    together = at_step + 2
    # A step is committed a moment before its report has come.
    run.wait(lambda: len(run.losses()) >= together, "the reports of all steps until then")
    assert_as_undisturbed(run, reference, until=together)
    # Three computed each step; of the one that the swap begins with the old one's share is dealt out.
    swapped_at = run.installs[-1].step
    assert abs(swapped_at - at_step) <= 1
    for step in range(together):
        computing = {index for index in (0, OLD, 2, NEW) if shares(run, index).get(step)}
        assert step == swapped_at or computing == ({0, OLD, 2} if step < swapped_at else {0, 2, NEW}), step
    # Never fewer than three were to compute.
    assert [len(order.contributors) for order in run.installs] == [3, 3, 3]


def test_a_successor_that_dies_in_the_swap_gives_the_place_back(run: Cluster, reference: list[float]) -> None:
    run.signal(NEW, signal.SIGSTOP)
    swap(run)
    run.signal(NEW, signal.SIGKILL)
    run.wait(lambda: NEW not in run.members, "replica 3 is out")
    with run.changed:
        run.members[OLD] = Member(OLD, 1, MemberRole.JOINER)
        run.announce("1 is back", returning=(OLD,))
    together = wait_together(run, OLD)
    assert {key[0] for key in run.gone} == {NEW}
    assert_as_undisturbed(run, reference, until=together)
