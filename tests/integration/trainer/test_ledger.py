"""Real replicas on an indexed dataset: after kills, a rejoin, and a restart in another layout
with another number of replicas, the ranks' own reports name every sample of every data epoch
once, and the losses are those of a job that nothing happened to."""

import signal
import subprocess
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from controlplane.protocol.launch import Resume
from controlplane.protocol.rank import StepReport
from controlplane.protocol.spec import Checkpoint, Model, Parallelism, Training
from tests.forks import command
from tests.integration.trainer.cluster import Cluster
from trainer.checkpoint.manifest import newest_complete
from trainer.data import load_corpus, micro_batch_samples
from trainer.data.sources import SHIPPED_TEXT
from trainer.reference import TOLERANCE

pytestmark = pytest.mark.trainer
MODEL = Model(layers=2, hidden=32, heads=2, sequence_length=32, vocab_size=264)
STEPS = 24


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """A dataset of 54 windows: 24 steps of 12 samples are five data epochs and a part."""
    (tmp_path / "part.txt").write_bytes(SHIPPED_TEXT.read_bytes()[: 54 * MODEL.sequence_length])
    argv = ["build", "--input", str(tmp_path / "part.txt"), "--output", str(tmp_path / "set")]
    subprocess.run(command("-m", "trainer.data", *argv), check=True, timeout=60)
    return tmp_path / "set"


def trained(run: Cluster) -> dict[int, tuple[int, ...]]:
    """step -> micro-batches in its committed gradient; every rank 0 that tells of a step says the same."""
    found: dict[int, tuple[int, ...]] = {}
    for report in run.of(StepReport, rank=0):
        assert found.setdefault(report.step, report.trained) == report.trained, report.step
    return found


def test_every_sample_is_trained_once_through_kills_a_rejoin_and_a_restart_in_another_layout(
    cluster: Callable[..., Cluster], prefix: Path
) -> None:
    training = Training(steps=STEPS, global_batch=12, data=str(prefix), step_delay_s=0.02)
    changes = {"model": MODEL, "parallelism": Parallelism(), "checkpoint": Checkpoint(interval_steps=9, keep=9)}
    first = cluster(training=training, **changes)
    first.start(0, 1, 2)
    first.wait_committed(3, 0, 1, 2)
    first.signal(1, signal.SIGKILL)
    first.wait_committed(5, 0, 2)
    first.start(1, incarnation=2)
    first.wait_committed(11, 0, 2)
    saved = Path(first.config.checkpoint_dir)
    first.wait(lambda: newest_complete(saved) is not None, "a checkpoint is complete", 60.0)
    first.signal(0, signal.SIGKILL)
    first.signal(2, signal.SIGKILL)
    first.wait_gone((0, 1, 0), (2, 1, 0))
    found = newest_complete(saved)
    assert found is not None
    path, manifest = found
    first.close()

    resume = Resume(str(path), manifest.step)
    second = cluster(msgspec.structs.replace(first.config, resume=resume, replicas=2, parallelism=Parallelism(pp=2)))
    second.start(0, 1)
    second.wait_committed(manifest.step + 4, 0, 1)
    second.signal(0, signal.SIGKILL)
    second.wait_all_done()
    alone = cluster(training=msgspec.structs.replace(training, step_delay_s=0.0), **changes)
    alone.start(0)
    alone.wait_all_done()

    losses = {step: loss for step, loss in first.losses().items() if step < manifest.step} | second.losses()
    assert losses == {step: pytest.approx(loss, abs=TOLERANCE, rel=0) for step, loss in alone.losses().items()}
    ledger = {step: ids for step, ids in trained(first).items() if step < manifest.step} | trained(second)
    assert sorted(ledger) == list(range(STEPS))
    assert all(sorted(ids) == list(range(12)) for ids in ledger.values()), "the global batch is constant"
    assert all(len(hashes) == 1 for run in (first, second) for hashes in run.hashes().values())
    corpus = load_corpus(str(prefix), sequence_length=MODEL.sequence_length, seed=training.seed)
    seen: dict[int, list[int]] = defaultdict(list)
    for step, ids in ledger.items():
        for micro_batch in ids:
            for number in micro_batch_samples(step, micro_batch, global_batch=12, size=1):
                epoch, window = corpus.window_of(number)
                seen[epoch].append(window)
    assert corpus.windows == 54
    assert [sorted(seen[epoch]) for epoch in range(5)] == [list(range(54))] * 5
    assert len(set(seen[5])) == len(seen[5]) == STEPS * 12 - 5 * 54
