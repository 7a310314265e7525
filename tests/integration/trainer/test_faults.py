"""Each fault of S1.5 on real ranks: what is seen of it, and that the others train on."""

import os
import signal
from collections.abc import Callable

import msgspec
import pytest

from controlplane.jobs.models import Attempt
from controlplane.protocol import frames
from controlplane.protocol.rank import InjectFault, OuterError, RankProgress, StepReport, ViewInstalled
from controlplane.protocol.spec import Numerics, Parallelism, Training
from controlplane.recovery.models import Decision
from controlplane.recovery.reconcile import reconcile_job
from tests.integration.backend.builders import live_ranks, make_fleet, ref_of, run_job
from tests.integration.trainer.cluster import Cluster

pytestmark = pytest.mark.trainer
Make = Callable[..., Cluster]
# A second from the step that is waited for to the last one: a fault must come in between.
SHORT = Training(steps=10, global_batch=4, step_delay_s=0.05)
SILENT_S = 1.8  # the reporter speaks once a second


def two_replicas(cluster: Make) -> Cluster:
    """Of one rank each, and two steps on their way."""
    run = cluster(parallelism=Parallelism(), training=SHORT)
    run.start(0, 1)
    run.wait_committed(2, 0, 1)
    return run


def assert_whole(run: Cluster) -> None:
    """Every step committed, each sample in it once, replicas bit-equal."""
    assert sorted(run.losses()) == list(range(run.config.training.steps))
    assert all(sorted(ids) == list(range(4)) for ids in run.ledger().values())
    assert all(len(hashes) == 1 for hashes in run.hashes().values())


def last_word_s(run: Cluster, replica: int) -> float:
    with run.changed:
        return max(at_s for at_s, key, message in run.said if key[0] == replica and isinstance(message, RankProgress))


@pytest.mark.parametrize(
    ("fault", "number"), [("abort", signal.SIGABRT), ("segfault", signal.SIGSEGV), ("sigkill", signal.SIGKILL)]
)
def test_a_process_that_dies_names_its_signal_and_the_other_replica_finishes(
    cluster: Make, fault: str, number: int
) -> None:
    run = two_replicas(cluster)
    if fault == "sigkill":
        run.signal(1, number)
    else:
        run.tell(1, InjectFault(fault))
    run.wait_all_done()
    assert (run.gone[(1, 1, 0)].signal, run.gone[(1, 1, 0)].exit_code) == (number, None)
    assert run.gone[(0, 1, 0)].exit_code == 0
    assert_whole(run)


@pytest.mark.parametrize(("fault", "code"), [("exception", 70), ("nan", 16)])
def test_a_computation_that_fails_names_its_exit_code(cluster: Make, fault: str, code: int) -> None:
    run = two_replicas(cluster)
    run.tell(1, InjectFault(fault))
    run.wait_all_done()
    assert run.gone[(1, 1, 0)].exit_code == code
    assert_whole(run)


@pytest.mark.django_db
def test_a_loss_nobody_checks_on_the_ranks_is_found_by_the_control_plane(cluster: Make) -> None:
    unchecked = msgspec.structs.replace(SHORT, steps=1000, numerics=Numerics(check_nan=False))
    run = cluster(parallelism=Parallelism(), training=unchecked)
    run.start(0, 1)
    run.wait_committed(2, 0, 1)
    run.tell(1, InjectFault("nan"))
    run.wait(lambda: any(report.loss_not_finite for report in run.of(StepReport, 0)), "replica 0's loss is no number")
    assert not run.gone, "both train on: their numbers are wrong alike"
    spoilt = next(report for report in run.of(StepReport, 0) if report.loss_not_finite)
    fleet = make_fleet()
    job = run_job(fleet)
    speaker = live_ranks(job)[0]
    fleet.tell(speaker.node.name, frames.RankSaid(ref_of(speaker), msgspec.structs.replace(spoilt, epoch=job.epoch)))
    reconcile_job(job.id)
    made = Decision.objects.get(job=job, reason_code="nan_loss")
    assert (made.choice, Attempt.objects.filter(job=job).count()) == ("restart", 2)


@pytest.mark.parametrize("fault", ["sigstop", "gil_lock"])
def test_a_frozen_rank_lives_says_nothing_and_is_left_out(cluster: Make, fault: str) -> None:
    run = two_replicas(cluster)
    if fault == "sigstop":
        run.signal(1, signal.SIGSTOP)
    else:
        run.tell(1, InjectFault(fault))
    run.wait(
        lambda: last_word_s(run, 0) - last_word_s(run, 1) > SILENT_S, "1 is silent, and 0 that waits for it is not"
    )
    os.kill(run.pids[(1, 1, 0)], 0)
    assert (1, 1, 0) not in run.gone
    run.drop(1, "overdue")
    run.wait_gone((0, 1, 0))
    run.signal(1, signal.SIGKILL)
    run.wait_all_done()
    assert_whole(run)


def test_a_hung_computation_still_speaks(cluster: Make) -> None:
    run = two_replicas(cluster)
    run.tell(1, InjectFault("hang"))
    run.wait(lambda: _age_of_phase_s(run, 1) > SILENT_S, "it says that its phase grows old")
    run.drop(1, "overdue")
    run.wait_gone((0, 1, 0))
    assert_whole(run)


def test_broken_connections_fail_the_exchange_with_nobody_dead(cluster: Make) -> None:
    run = two_replicas(cluster)
    run.tell(1, InjectFault("communication"))
    run.wait(lambda: run.of(OuterError, 1), "the exchange fails at the cut rank")
    run.wait(lambda: run.of(OuterError, 0), "and at its peer")
    assert not run.gone
    run.announce("the exchange failed")
    run.wait_all_done()
    assert {gone.exit_code for gone in run.gone.values()} == {0}
    assert {message.epoch for message in run.of(ViewInstalled)} == {1, 2}
    assert_whole(run)


def test_a_slow_rank_costs_time_and_nothing_else(cluster: Make) -> None:
    run = two_replicas(cluster)
    run.tell(1, InjectFault("slow", 0.6))
    run.wait_all_done()
    took_s = [report.step_time_s for report in run.of(StepReport, 0)]
    assert min(took_s) < 0.6 <= took_s[-1]
    assert {gone.exit_code for gone in run.gone.values()} == {0}
    assert_whole(run)


def _age_of_phase_s(run: Cluster, replica: int) -> float:
    return max(message.phase_age_s for message in run.of(RankProgress, replica)[-1:])
