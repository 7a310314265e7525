"""A replica that was left out comes back as the processes that it is, with the others' state (R30)."""

from collections.abc import Callable

import pytest

from controlplane.protocol.membership import Member, MemberRole
from controlplane.protocol.rank import CaughtUp
from tests.integration.trainer.cluster import Cluster
from tests.integration.trainer.test_recovery import SLOW, assert_as_undisturbed, wait_together

pytestmark = pytest.mark.trainer
Make = Callable[..., Cluster]


def leave_out(run: Cluster, replica: int) -> None:
    """Go on without it for now: it is told nothing, and nothing of it is ended."""
    with run.changed:
        run.announce(f"without {replica}", left_out=(run.members.pop(replica),))


def take_back(run: Cluster, replica: int) -> None:
    """One that was left out is a member again, as the processes that it is."""
    with run.changed:
        run.members[replica] = Member(replica, 1, MemberRole.JOINER)
        run.announce(f"{replica} is back", returning=(replica,))


@pytest.mark.parametrize("away", [1, 4], ids=["a step", "four steps"])
def test_who_was_left_out_returns_without_a_new_process(cluster: Make, reference: list[float], away: int) -> None:
    run = cluster(training=SLOW)
    run.start(0, 1, 2)
    run.wait_committed(3, 0, 1, 2)
    before = dict(run.pids)
    leave_out(run, 2)
    run.wait_committed(run.committed(2) + away + 1, 0, 1)
    take_back(run, 2)
    together = wait_together(run, 2)
    assert run.pids == before
    assert not run.gone
    assert run.of(CaughtUp, 2)
    assert_as_undisturbed(run, reference, until=together)


def test_one_that_returns_while_a_donor_is_lost_fetches_from_the_other(cluster: Make, reference: list[float]) -> None:
    run = cluster(training=SLOW)
    run.start(0, 1, 2)
    run.wait_committed(3, 0, 1, 2)
    leave_out(run, 2)
    run.wait_committed(run.committed(2) + 2, 0, 1)
    take_back(run, 2)
    run.signal(0, 9)
    together = wait_together(run, 2)
    assert {key[0] for key in run.gone} == {0}
    assert_as_undisturbed(run, reference, until=together)
