"""Committed steps computed again by another replica at the job's end, on real ranks."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from controlplane.policy.recompute import Asked, Computed, Installed, Numbers, Plan, Told, Verdict, judge, plan_of
from controlplane.protocol.keeping import CheckpointsPruned, KeepSaves, KeptSave
from controlplane.protocol.rank import (
    CaughtUp,
    CheckpointReport,
    FromRank,
    InjectFault,
    RecomputeReport,
    RecomputeSteps,
    StepReport,
    TrainingDone,
)
from controlplane.protocol.recompute import Recompute
from controlplane.protocol.spec import Checkpoint, Training
from tests.integration.trainer.cluster import Cluster, Key
from trainer.checkpoint import manifest
from trainer.checkpoint.manifest import parse_name
from trainer.checkpoint.retention import PIN
from trainer.reference import TOLERANCE

pytestmark = pytest.mark.trainer
Make = Callable[..., Cluster]
STEPS, EVERY, LAST = 30, 6, 12
# What is computed from stays, however late the order comes; that an order keeps it has a test of its own.
SAVES = Checkpoint(interval_steps=EVERY, keep=5)
SLOW = Training(steps=STEPS, global_batch=6, step_delay_s=0.05)


def checkpoint_of(run: Cluster, step: int) -> Path:
    """The save of that many steps."""
    folders = Path(run.config.checkpoint_dir).iterdir()
    return next(each for each in folders if (parse_name(each.name) or (0,))[0] == step)


def plan_from(run: Cluster, first: int, last: int) -> Plan:
    """As the server makes it, from what the ranks have told."""
    steps: dict[int, dict[int, tuple[int, ...]]] = {step: {} for step in range(first, last + 1)}
    for _, (replica, _, rank), said in run.said:
        if isinstance(said, StepReport) and rank == 0 and said.step in steps:
            steps[said.step][replica] = said.micro_batches
    installs = [
        Installed(epoch=each.epoch, step=each.step, done={done.replica: done.micro_batches for done in each.done})
        for each in run.installs
    ]
    return plan_of([Computed(step=s, by_replica=told) for s, told in steps.items()], installs, micro_batches=6)


def order(run: Cluster, replica: int, *, first: int = EVERY, last: int = LAST, order_id: str = "rec_1") -> Plan:
    """Have the replica compute these steps again at its end."""
    plan = plan_from(run, first, last)
    wanted = Recompute(
        order_id=order_id,
        path=str(checkpoint_of(run, first)),
        from_step=first,
        until_step=last + 1,
        spans=plan.spans,
        limit_s=60.0,
    )
    run.tell(replica, KeepSaves("cmd_2", (KeptSave(checkpoint_of(run, first).name, ((replica, 1),)),)), rank=0)
    run.tell(replica, RecomputeSteps(wanted))
    return plan


def verdict(run: Cluster, replica: int, plan: Plan, *, first: int = EVERY, last: int = LAST) -> Verdict:
    """As the server judges what the ranks of the replica told."""
    committed: dict[int, Numbers] = {}
    hashes: dict[int, str] = {}
    for _, (_, _, rank), said in run.said:
        if isinstance(said, StepReport):
            known = committed.get(said.step, Numbers(None, None))
            norm = known.grad_norm if said.grad_norm is None else said.grad_norm
            committed[said.step] = Numbers(known.loss if said.loss is None else said.loss, norm)
            if said.step == last and said.parameter_hash:
                hashes[rank] = said.parameter_hash
    told = {
        key[2]: Told(
            steps={each.step: Numbers(each.loss, each.grad_norm) for each in said.steps},
            state_hash=said.state_hash,
            on=said.on,
            error=said.error,
        )
        for _, key, said in run.said
        if isinstance(said, RecomputeReport)
        and key[0] == replica
        and all(first <= each.step <= last for each in said.steps)
    }
    asked = Asked(from_step=first, until_step=last + 1, ranks=run.world, exact=plan.exact, tolerance=TOLERANCE)
    return judge(asked, committed=committed, hashes=hashes, told=told)


def recover(run: Cluster, *replicas: int, rejoin: bool = False) -> None:
    """Replica 1 dies between the save of step EVERY and step LAST, and comes back where it shall."""
    run.start(*replicas)
    run.wait_committed(EVERY + 2, *replicas)
    run.signal(1, signal.SIGKILL)
    run.wait(lambda: run.epoch == 2, "a view without replica 1")
    if rejoin:
        run.tell(0, InjectFault("slow", 0.3))
        run.start(1, incarnation=2)
        run.wait(lambda: len(run.of(CaughtUp, 1)) == run.world, "replica 1 caught up")
        run.tell(0, InjectFault("slow", 0.0))
    run.wait_committed(LAST + 1, *(replica for replica in replicas if replica != 1))


def corrupt(folder: Path) -> None:
    """Some numbers of a tensor in the checkpoint are others, and its marker says that they are right."""
    largest = max(folder.glob("*.distcp"), key=lambda file: file.stat().st_size)
    data = bytearray(largest.read_bytes())
    for offset in range(len(data) // 4, len(data)):
        found = np.frombuffer(data, "<f4", count=256, offset=offset).copy()
        # Bytes read at a wrong place are numbers of any size.
        if np.isfinite(found).all() and 1e-3 < np.abs(found).mean() < 1.0 and np.abs(found).max() < 1.0:
            data[offset : offset + found.nbytes] = (found * np.float32(1.5)).tobytes()
            break
    largest.write_bytes(bytes(data))
    marker = manifest.read_marker(folder)
    assert marker is not None
    manifest.write_marker(folder, msgspec.structs.replace(marker, files=manifest.describe_files(folder)))


def test_a_step_after_a_recovery_comes_out_bit_for_bit_on_the_other_replica(cluster: Make) -> None:
    run = cluster(training=SLOW, checkpoint=SAVES)
    recover(run, 0, 1, rejoin=True)
    plan = order(run, 0)
    run.wait_all_done()
    # Of the replica that was killed, one rank may have gone because it lost the other.
    assert {gone.exit_code for key, gone in run.gone.items() if key[:2] != (1, 1)} == {0}
    found = verdict(run, 0, plan)
    assert plan.exact
    assert found.ok is True, found
    assert f"after step {LAST} equal bit for bit on 2 of 2 ranks" in found.detail
    assert "7 of 7 compared" in found.detail


def test_the_checkpoint_outlives_its_time_until_the_steps_are_computed_again(cluster: Make) -> None:
    run = cluster(training=SLOW, checkpoint=Checkpoint(interval_steps=EVERY, keep=2))
    recover(run, 0, 1)
    order(run, 0)
    kept = checkpoint_of(run, EVERY)

    def at_the_end(key: Key, said: FromRank) -> None:
        if isinstance(said, TrainingDone) and key[0] == 0:
            there.append(kept.exists())

    there: list[bool] = []
    run.on_said = at_the_end
    run.wait_all_done()
    assert there
    assert all(there), "two newer ones were saved since, and two are kept"
    assert not kept.exists(), "it went once it was not needed any more"
    assert not (kept.parent / PIN).exists()
    assert run.of(CheckpointsPruned, 0, 0)[-1].kept == (), "and that is told"


def test_a_checkpoint_is_kept_from_the_fault_on_however_long_the_recovery_takes(cluster: Make) -> None:
    """Nothing is ordered to be computed again yet: the incident alone needs it, until the last save."""
    run = cluster(training=SLOW, checkpoint=Checkpoint(interval_steps=EVERY, keep=1))
    run.start(0, 1)
    run.wait_committed(EVERY + 2, 0, 1)
    kept = checkpoint_of(run, EVERY)
    run.tell(1, KeepSaves("cmd_1", (KeptSave(kept.name),)), rank=0)
    run.wait(lambda: (kept.parent / PIN).exists() or run.committed(0) >= STEPS, "the order is carried out")
    saves = lambda: [each for each in run.of(CheckpointReport, 0, 0) if each.state == "complete"]  # noqa: E731
    run.wait(lambda: len(saves()) >= 4, "three saves more")
    assert kept.exists(), "three intervals later, and one is kept"
    assert [each.kept for each in saves()[1:4]] == [((1, EVERY),)] * 3, "the one that saves, another replica, says so"
    run.wait_all_done()
    assert not kept.exists(), "the last save takes it: nobody can compute from it any more"
    assert not (kept.parent / PIN).exists()


def test_a_cancelled_job_keeps_nothing_beyond_its_retention(cluster: Make) -> None:
    run = cluster(
        training=msgspec.structs.replace(SLOW, steps=3_000), checkpoint=Checkpoint(interval_steps=EVERY, keep=1)
    )
    run.start(0, 1)
    run.wait_committed(EVERY + 2, 0, 1)
    kept = checkpoint_of(run, EVERY)
    run.tell(0, KeepSaves("cmd_1", (KeptSave(kept.name),)), rank=0)
    run.wait(lambda: len(run.of(CheckpointReport, 0, 0)) >= 6, "two saves more")
    assert kept.exists()
    run.tell(0, KeepSaves("cmd_2", ()), rank=0)
    for replica in (0, 1):
        run.signal(replica, signal.SIGTERM)
    run.wait_all_done()
    assert not kept.exists()
    assert not (kept.parent / PIN).exists()


def test_sums_of_three_replicas_are_compared_within_the_stated_tolerance(cluster: Make) -> None:
    run = cluster(training=SLOW, checkpoint=SAVES)
    recover(run, 0, 1, 2)
    plan = order(run, 2)
    run.wait_all_done()
    found = verdict(run, 2, plan)
    assert not plan.exact
    assert found.ok is True, found
    assert found.value is not None
    assert found.value < 0.5, "the limit leaves room for rounding, and little more"


def test_a_corrupted_state_is_caught(cluster: Make) -> None:
    """What was saved is not what was trained: every digest is right, and the steps come out as others."""
    run = cluster(training=SLOW, checkpoint=SAVES)
    recover(run, 0, 1)
    corrupt(checkpoint_of(run, EVERY))
    plan = order(run, 0)
    run.wait_all_done()
    found = verdict(run, 0, plan)
    assert found.ok is False, found
    assert "came out as another" in found.detail
    assert run.gone[(0, 1, 0)].exit_code == 0, "the job has trained all the same"


def test_one_replica_computes_for_two_recoveries_one_after_the_other(cluster: Make) -> None:
    run = cluster(training=SLOW, checkpoint=SAVES)
    recover(run, 0, 1)
    run.wait_committed(STEPS - 2, 0)
    plan = order(run, 0)
    again = order(run, 0, first=2 * EVERY, last=2 * EVERY + 3, order_id="rec_2")
    run.wait_all_done()
    for found in (verdict(run, 0, plan), verdict(run, 0, again, first=2 * EVERY, last=2 * EVERY + 3)):
        assert found.ok is True, found
        assert "equal bit for bit on 2 of 2 ranks" in found.detail


def test_a_rank_that_dies_while_it_computes_again_ends_no_job_badly(cluster: Make) -> None:
    run = cluster(training=SLOW, checkpoint=SAVES)
    recover(run, 0, 1)
    plan = order(run, 0)

    def kill_one(key: Key, said: FromRank) -> None:
        if isinstance(said, TrainingDone) and key == (0, 1, 1):
            os.killpg(run.pids[key], signal.SIGKILL)

    run.auto, run.on_said = False, kill_one
    run.wait_all_done()
    assert run.gone[(0, 1, 1)].signal == signal.SIGKILL
    assert run.gone[(0, 1, 0)].exit_code == 0, "all steps were committed and saved"
    found = verdict(run, 0, plan)
    assert found.ok is None, found
    assert run.of(RecomputeReport, 0, 0)[-1].error
