"""A replica that slept through its own eviction neither joins nor commits."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from controlplane.protocol.rank import CheckpointReport, StepReport
from controlplane.protocol.spec import Checkpoint, Training
from tests.integration.trainer.cluster import Cluster
from trainer.checkpoint.manifest import list_complete
from trainer.reference import TOLERANCE

pytestmark = pytest.mark.trainer
Make = Callable[..., Cluster]


def test_stopped_saver_wakes_up_evicted_and_commits_no_checkpoint(cluster: Make, reference: list[float]) -> None:
    slow = Training(steps=36, global_batch=6, step_delay_s=0.04)
    run = cluster(checkpoint=Checkpoint(interval_steps=2, keep=100), training=slow)
    root = Path(run.config.checkpoint_dir)
    run.start(0, 1, 2)
    run.wait(lambda: any(m.state == "complete" for m in run.of(CheckpointReport, 0)), "a first checkpoint by 0")
    run.signal(0, signal.SIGSTOP)
    run.drop(0, "silent")
    stood = run.committed(1)
    run.wait_committed(stood + 4, 1, 2)
    old = {path for path, found in list_complete(root) if found.epoch == 1}
    said = len(run.of(StepReport, 0))
    run.signal(0, signal.SIGCONT)
    run.wait_gone((0, 1, 0), (0, 1, 1))
    # The first to leave by itself has its sibling killed, as by an agent, unless that was as quick.
    codes = {run.gone[(0, 1, rank)].exit_code for rank in (0, 1)}
    assert 9 in codes
    assert codes <= {9, None}
    assert {path for path, found in list_complete(root) if found.epoch == 1} == old
    assert len(run.of(StepReport, 0)) <= said + 1 * run.world
    run.wait(
        lambda: any(m.state == "complete" and m.epoch == 2 for m in run.of(CheckpointReport, 1)), "a checkpoint by 1"
    )
    losses = run.losses()
    assert max(abs(losses[step] - reference[step]) for step in losses) <= TOLERANCE
