"""Saving never stops training, a torn save is no checkpoint, any layout resumes."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from controlplane.protocol.launch import Resume
from controlplane.protocol.rank import CheckpointReport, FromRank, SaveNow, StepReport, StopTraining
from controlplane.protocol.spec import Checkpoint, Parallelism, Training
from tests.integration.trainer.cluster import Cluster, Key
from tests.integration.trainer.test_recovery import PACED
from trainer.checkpoint.manifest import list_complete, newest_complete, verify
from trainer.reference import TOLERANCE

pytestmark = pytest.mark.trainer
Make = Callable[..., Cluster]
ENDLESS = Training(steps=10_000, global_batch=6)


def complete(run: Cluster) -> list[CheckpointReport]:
    return [message for message in run.of(CheckpointReport) if message.state == "complete"]


def test_interval_saves_are_verified_and_old_ones_pruned(cluster: Make) -> None:
    run = cluster(
        checkpoint=Checkpoint(interval_steps=6, keep=2, asynchronous=False), training=Training(steps=18, global_batch=6)
    )
    run.start(0, 1, 2)
    run.wait_all_done()
    root = Path(run.config.checkpoint_dir)
    assert [found.step for _, found in list_complete(root)] == [18, 12]
    assert all(verify(path).ok for path, _ in list_complete(root))
    assert {message.kind for message in complete(run)} == {"interval", "final"}
    assert all(message.bytes > 0 and message.digest for message in complete(run))


def test_an_ordered_save_happens_once_however_often_it_is_delivered(cluster: Make) -> None:
    run = cluster(training=PACED)
    run.start(0, 1, 2)
    run.wait_committed(3, 0, 1, 2)
    for _ in range(3):
        for replica in (0, 1, 2):
            run.tell(replica, SaveNow("cmd_1", "emergency", "ECC"))
        run.wait_committed(run.committed(0) + 2, 0)
    run.tell(0, SaveNow("cmd_2", "manual", "asked"))
    run.wait(lambda: len(complete(run)) == 2, "two checkpoints")
    assert [(message.command_id, message.kind) for message in complete(run)] == [
        ("cmd_1", "emergency"),
        ("cmd_2", "manual"),
    ]


def test_a_saver_killed_in_the_middle_leaves_no_marker_and_the_previous_one_loads(
    cluster: Make, reference: list[float]
) -> None:
    run = cluster(checkpoint=Checkpoint(interval_steps=4, keep=9), training=PACED)

    def kill_once_one_is_complete(key: Key, message: FromRank) -> None:
        if isinstance(message, CheckpointReport) and message.state == "writing" and complete(run):
            for rank in range(run.world):
                os.killpg(run.pids[(0, 1, rank)], signal.SIGKILL)

    run.on_said = kill_once_one_is_complete
    run.start(0)
    run.wait_gone((0, 1, 0), (0, 1, 1))
    root = Path(run.config.checkpoint_dir)
    torn = run.of(CheckpointReport)[-1]
    assert torn.state == "writing"
    assert not verify(torn.path).ok
    found, saved = newest_complete(root), complete(run)[-1].step
    assert found is not None and found[1].step == saved < torn.step
    again = cluster(msgspec.structs.replace(run.config, resume=Resume(str(found[0]), saved)))
    again.start(0, 1)
    again.wait_committed(saved + 4, 0, 1)
    losses = again.losses()
    assert min(losses) == saved
    assert max(abs(losses[step] - reference[step]) for step in losses) <= TOLERANCE


def test_another_layout_resumes_with_the_same_losses(cluster: Make, reference: list[float]) -> None:
    run = cluster(checkpoint=Checkpoint(interval_steps=6, keep=9, asynchronous=False))
    run.start(0, 1)
    run.wait(lambda: bool(complete(run)), "a checkpoint")
    path = complete(run)[0].path
    run.close()
    for layout in (Parallelism(tp=2, pp=1), Parallelism()):
        config = msgspec.structs.replace(
            run.config, parallelism=layout, resume=Resume(path, 6), checkpoint=Checkpoint(interval_steps=0)
        )
        again = cluster(config)
        again.start(0, 1)
        again.wait_committed(12, 0, 1)
        losses = again.losses()
        assert min(losses) == 6
        assert max(abs(losses[step] - reference[step]) for step in losses) <= TOLERANCE
        assert all(len(hashes) == 1 for hashes in again.hashes().values())
        again.close()


def test_sigterm_to_all_saves_once_and_leaves(cluster: Make) -> None:
    run = cluster(checkpoint=Checkpoint(interval_steps=10_000), training=ENDLESS)
    run.auto = False
    run.start(0, 1, 2)
    run.wait_committed(3, 0, 1, 2)
    for replica in (0, 1, 2):
        run.signal(replica, signal.SIGTERM)
    run.wait_all_done()
    assert {gone.exit_code for gone in run.gone.values()} == {15}
    found = newest_complete(Path(run.config.checkpoint_dir))
    assert found is not None and found[1].step == run.committed(0) == run.committed(2)
    assert verify(found[0]).ok


def test_a_stop_without_saving_leaves_nothing_behind(cluster: Make) -> None:
    run = cluster(checkpoint=Checkpoint(interval_steps=10_000), training=ENDLESS)
    run.auto = False
    run.start(0, 1)
    run.wait_committed(2, 0, 1)
    for replica in (0, 1):
        run.tell(replica, StopTraining(save=False, reason="cancelled"))
    run.wait_all_done()
    assert {gone.exit_code for gone in run.gone.values()} == {14}
    assert newest_complete(run.config.checkpoint_dir) is None


def test_a_save_that_cannot_be_written_is_reported_and_training_goes_on(cluster: Make) -> None:
    run = cluster(checkpoint=Checkpoint(interval_steps=12))
    Path(run.config.checkpoint_dir).write_text("a file is in the way")
    run.start(0, 1)
    run.wait_all_done()
    assert any(message.state == "failed" and message.error for message in run.of(CheckpointReport))
    assert {gone.exit_code for gone in run.gone.values()} == {0}
    assert len(run.of(StepReport, 1, 0)) == run.config.training.steps


def test_a_flipped_bit_in_a_shard_is_found_before_training_on_it(cluster: Make) -> None:
    run = cluster(checkpoint=Checkpoint(interval_steps=3, keep=9, asynchronous=False))
    run.start(0)
    run.wait(lambda: bool(complete(run)), "a checkpoint")
    path = Path(complete(run)[0].path)
    run.close()
    shard = max(path.glob("*.distcp"), key=lambda file: file.stat().st_size)
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(bytes(data))
    again = cluster(msgspec.structs.replace(run.config, resume=Resume(str(path), 3)))
    again.start(0)
    again.wait_gone((0, 1, 0), (0, 1, 1))
    assert {gone.exit_code for gone in again.gone.values()} <= {74, None}
    assert any(gone.exit_code == 74 for gone in again.gone.values())
    # Whichever was first: it takes the other with it.
    assert "content differs" in "".join(log.read_text() for log in again.folder.glob("rank-0.1.*.log"))
    assert not again.of(StepReport)


def test_ranks_whose_file_system_is_not_there_leave_with_75(cluster: Make, tmp_path: Path) -> None:
    """It says nothing of the checkpoint, and the next attempt may see it."""
    run = cluster(resume=Resume(str(tmp_path / "mount" / "job" / "step_00000003-e1"), 3))
    run.start(0)
    run.wait_gone((0, 1, 0), (0, 1, 1))
    codes = [gone.exit_code for gone in run.gone.values()]
    assert 75 in codes
    assert set(codes) <= {75, None}
    assert "is not visible from this node" in (run.folder / "rank-0.1.0.log").read_text()
