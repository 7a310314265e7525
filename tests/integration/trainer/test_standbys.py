"""Replicas that stand by take every step, compute nothing, and take over in the very next view."""

import signal
from collections.abc import Callable

import msgspec
import pytest

from controlplane.protocol.membership import MemberRole
from controlplane.protocol.rank import CaughtUp, StepReport
from tests.integration.trainer.cluster import Cluster, tiny_config
from tests.integration.trainer.test_recovery import SLOW, assert_as_undisturbed, wait_together

pytestmark = pytest.mark.trainer


def test_a_standby_is_promoted_at_once_and_the_one_that_comes_back_stands_by(
    cluster: Callable[..., Cluster], reference: list[float], tmp_path_factory: pytest.TempPathFactory
) -> None:
    config = tiny_config(tmp_path_factory.mktemp("spares"), training=SLOW)
    run = cluster(msgspec.structs.replace(config, max_contributors=2))
    run.start(0, 1, 2)
    run.wait_committed(4, 0, 1, 2)
    assert not any(report.micro_batches for report in run.of(StepReport, 2))
    run.signal(0, signal.SIGKILL, rank=1)
    run.wait(lambda: len(run.installs) == 2, "an install without replica 0")
    assert (run.installs[1].contributors, run.installs[1].standbys) == ((1, 2), ())
    run.start(0, incarnation=2)
    together = wait_together(run, 0)
    assert {message.role for message in run.of(CaughtUp, 0)} == {MemberRole.STANDBY}
    shares = {report.step: len(report.micro_batches) for report in run.of(StepReport, 1, 0)}
    shared = run.installs[1].step  # What the dead one held of this step is computed by both.
    assert {share for step, share in shares.items() if step != shared} == {3}
    back = run.of(CaughtUp, 0)[0].step
    assert not any(report.micro_batches for report in run.of(StepReport, 0) if report.step >= back)
    assert run.hashes()[(together - 1, 0)]
    assert_as_undisturbed(run, reference, until=together)
