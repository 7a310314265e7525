"""Joiners come in while others die: no step is redone, no gradient lost, nothing fetched twice."""

import os
import signal
from collections.abc import Callable

import pytest

from controlplane.protocol.membership import Flush, Member, MemberRole
from controlplane.protocol.rank import (
    CaughtUp,
    FromRank,
    InjectFault,
    OuterError,
    RankHello,
    StepReport,
    ViewInstalled,
)
from controlplane.protocol.spec import Training
from tests.integration.trainer.cluster import Cluster, Key
from tests.integration.trainer.test_recovery import (
    PACED,
    SLOW,
    assert_as_undisturbed,
    wait_some_steps,
    wait_together,
)

pytestmark = pytest.mark.trainer
# Time for a joiner to arrive and for a step that is awaited in vain.
LONG = Training(steps=36, global_batch=6, step_delay_s=0.12)
NEVER = 10**6
Make = Callable[..., Cluster]


def kill(run: Cluster, *keys: Key) -> None:
    """SIGKILL these ranks at one moment."""
    for key in keys:
        os.killpg(run.pids[key], signal.SIGKILL)


def test_a_joiner_fetches_from_two_donors_and_holds_up_nobody(cluster: Make, reference: list[float]) -> None:
    run = cluster(training=SLOW)
    run.start(0, 1, 2)
    run.wait_committed(3, 0, 1, 2)
    run.signal(2, signal.SIGKILL)
    run.wait(lambda: run.epoch == 2, "a view without replica 2")
    run.start(2, incarnation=2)
    together = wait_together(run, 2)
    assert [(pair.joiner, pair.donor) for pair in run.views[-1][1].donors] == [(2, 0), (2, 1)]
    (level, *_), joined = run.of(CaughtUp, 2), run.of(ViewInstalled, 2, 0)[-1]
    assert level.fetch_bytes > 0
    assert level.harmed_chunks == 0
    assert level.replayed_steps == level.step - joined.step
    survivor = run.of(ViewInstalled, 0, 0)[-1]
    assert min(survivor.install_s, survivor.build_s) > 0
    assert survivor.install_s + survivor.build_s <= survivor.waited_s
    assert_as_undisturbed(run, reference, until=together)


def test_a_join_and_a_death_in_one_view(cluster: Make, reference: list[float]) -> None:
    run = cluster(training=SLOW)

    def kill_one_as_the_joiner_says_hello(key: Key, message: FromRank) -> None:
        if isinstance(message, RankHello) and key == (2, 2, 1):
            kill(run, (0, 1, 0))
            run.members.pop(0)  # Told of in the same breath: the view that admits 2 leaves 0 out.

    run.start(0, 1, 2)
    run.wait_committed(3, 0, 1, 2)
    run.signal(2, signal.SIGKILL)
    run.wait(lambda: run.epoch == 2, "a view without replica 2")
    run.on_said = kill_one_as_the_joiner_says_hello
    run.start(2, incarnation=2)
    run.wait(lambda: run.epoch == 3, "a view that changes both ways")
    members = [(member.replica, member.role) for member in run.views[2][1].members]
    assert members in ([(1, MemberRole.CONTRIBUTOR), (2, MemberRole.JOINER)], [(1, MemberRole.CONTRIBUTOR)])
    together = wait_together(run, 2)
    assert len(run.of(CaughtUp, 2)) == run.world
    assert_as_undisturbed(run, reference, until=together)


def test_donor_and_joiner_die_at_the_same_time(cluster: Make, reference: list[float]) -> None:
    run = cluster(training=SLOW)

    def kill_both(key: Key, message: FromRank) -> None:
        if isinstance(message, ViewInstalled) and key == (2, 2, 0):
            kill(run, (0, 1, 0), (2, 2, 1))

    run.start(0, 1, 2)
    run.wait_committed(3, 0, 1, 2)
    run.signal(2, signal.SIGKILL)
    run.wait(lambda: run.epoch == 2, "a view without replica 2")
    run.on_said = kill_both
    run.start(2, incarnation=2)
    run.wait(lambda: list(run.members) == [1], "replica 1 alone")
    run.on_said = None
    run.start(0, 2, incarnation=3)
    together = wait_together(run, 0, 2)
    assert {gone.exit_code for key, gone in run.gone.items() if key[0] == 1} <= {0}
    assert len(run.of(CaughtUp)) == 2 * run.world
    assert_as_undisturbed(run, reference, until=together)


def test_two_deaths_before_the_first_is_installed_keep_the_finished_gradients(
    cluster: Make, reference: list[float]
) -> None:
    run = cluster(training=PACED)

    def kill_another_at_the_last_flush(key: Key, message: FromRank) -> None:
        if isinstance(message, Flush) and message.epoch == 2 and key == (2, 1, 1) and (2, 1, 0) not in run.gone:
            kill(run, (2, 1, 0))
            run.drop(2, "seen at once")  # The view of epoch 3 voids epoch 2 before its install.

    run.start(0, 1, 2)
    run.wait_committed(3, 0, 1, 2)
    run.on_said = kill_another_at_the_last_flush
    run.signal(1, signal.SIGKILL)
    run.wait(lambda: list(run.members) == [0], "replica 0 alone")
    stood = run.committed(0)
    run.wait_committed(stood + 1, 0)
    alone = wait_some_steps(run)
    steps = [report.step for report in run.of(StepReport, 0, 0)]
    assert steps == sorted(set(steps))
    assert_as_undisturbed(run, reference, until=alone)


def test_a_view_in_mid_transfer_leaves_the_transfer_alone(cluster: Make, reference: list[float]) -> None:
    run = cluster(training=SLOW)

    def announce_again(key: Key, message: FromRank) -> None:
        if isinstance(message, ViewInstalled) and key == (2, 2, 0) and message.epoch == 3:
            run.announce("again")

    run.start(0, 1, 2)
    run.wait_committed(3, 0, 1, 2)
    run.signal(2, signal.SIGKILL)
    run.wait(lambda: run.epoch == 2, "a view without replica 2")
    run.on_said = announce_again
    run.start(2, incarnation=2)
    together = wait_together(run, 2)
    assert run.views[3][1].donors == run.views[2][1].donors
    level = run.of(CaughtUp, 2)[0]
    began = next(message for message in run.of(ViewInstalled, 2, 0) if message.epoch == 3)
    assert level.replayed_steps == level.step - began.step
    assert run.members[2] == Member(2, 2, MemberRole.CONTRIBUTOR)
    assert_as_undisturbed(run, reference, until=together)


def return_of_2(run: Cluster, *, steps_ahead: int) -> None:
    """Replica 2 is lost and comes back, with a view that is due so many steps after it is up."""

    def name_the_step(key: Key, message: FromRank) -> None:
        if isinstance(message, RankHello) and key[:2] == (2, 2):
            run.joins_at = run.committed(0) + steps_ahead

    run.start(0, 1, 2)
    run.wait_committed(3, 0, 1, 2)
    run.signal(2, signal.SIGKILL)
    run.wait(lambda: run.epoch == 2, "a view without replica 2")
    run.on_said = name_the_step
    run.wait_committed(run.committed(0) + 2, 0, 1)
    run.start(2, incarnation=2)
    run.wait(lambda: run.epoch == 3, "the view with replica 2")


def test_a_joiners_view_begins_with_the_step_it_names(cluster: Make, reference: list[float]) -> None:
    run = cluster(training=LONG)
    return_of_2(run, steps_ahead=3)
    at_step = run.views[-1][1].at_step
    together = wait_together(run, 2)
    assert [order.step for order in run.installs[2:]] == [at_step]
    reports = [report for replica in (0, 1) for report in run.of(StepReport, replica)]
    assert {report.epoch for report in reports if 4 < report.step < at_step} == {2}
    assert {report.epoch for report in reports if report.step >= at_step} == {3}
    assert_as_undisturbed(run, reference, until=together)


def test_a_step_that_never_comes_holds_no_joiner_up_for_long(cluster: Make, reference: list[float]) -> None:
    run = cluster(training=LONG)
    return_of_2(run, steps_ahead=NEVER)
    announced = run.committed(0)
    together = wait_together(run, 2)
    assert announced < run.installs[-1].step < NEVER
    assert_as_undisturbed(run, reference, until=together)


def test_an_exchange_that_fails_ends_the_wait_for_a_step(cluster: Make, reference: list[float]) -> None:
    run = cluster(training=LONG)
    return_of_2(run, steps_ahead=NEVER)
    run.tell(1, InjectFault("communication"))
    together = wait_together(run, 2)
    assert run.of(OuterError)
    assert [view.epoch for _, view in run.views] == [1, 2, 3], "no other view was needed"
    assert_as_undisturbed(run, reference, until=together)


def test_a_death_overtakes_a_view_whose_step_is_awaited(cluster: Make, reference: list[float]) -> None:
    run = cluster(training=LONG)
    return_of_2(run, steps_ahead=NEVER)
    kill(run, (1, 1, 0))
    run.wait(lambda: run.epoch == 4, "a view without replica 1")
    together = wait_together(run, 2)
    assert run.installs[-1].epoch == 4
    assert [order.epoch for order in run.installs] == [1, 2, 4]
    assert_as_undisturbed(run, reference, until=together)
