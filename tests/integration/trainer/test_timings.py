"""Real ranks tell how long their own work takes; who is slow shows in it, and nobody else does."""

import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from controlplane.policy.stragglers import RankWork, Score, scores
from controlplane.protocol.rank import InjectFault, StopTraining, TimingReport
from controlplane.protocol.spec import Checkpoint, Stragglers, Training
from tests.integration.trainer.cluster import Cluster, Key, tiny_config

pytestmark = pytest.mark.trainer
Make = Callable[..., Cluster]
INTERVAL_S = 2.0
UNDISTURBED_INTERVALS = 3
WISH = Stragglers(interval_s=INTERVAL_S)
ALONE = Stragglers(interval_s=INTERVAL_S, relative=False)
ASLEEP_S = 0.06
"""Of each micro-batch: most of it, so that a busy host makes nobody much slower than he was at his best."""
SLOWER = 3.0
"""Times the longest micro-batch that anybody had undisturbed are added to each of the slow one's."""
LONG = 512
"""Tokens of a sample that takes several times as long to compute as one of the others' 32."""


def work(key: Key, told: TimingReport, best_s: float | None) -> RankWork:
    """As `controlplane.recovery.speed` makes it of a row."""
    replica, incarnation, rank = key
    return RankWork(
        replica=replica,
        incarnation=incarnation,
        rank=rank,
        stage=rank,
        samples=told.compute.count,
        compute_s=told.compute.median_s,
        data_s=told.data.median_s,
        step_s=told.step.median_s,
        best_s=best_s,
        micro_batches=4.0,
    )


def scored(run: Cluster, *, after_s: float = 0.0, settings: Stragglers = WISH) -> list[tuple[Score, ...]]:
    """The k-th windows of all ranks, scored together, for each k; those that began after `after_s`."""
    windows: dict[Key, list[RankWork]] = {key: [] for key in run.started}
    best: dict[Key, float] = {}
    for at_s, key, message in run.said:
        if isinstance(message, TimingReport):
            told = work(key, message, best.get(key))
            best[key] = min(told.work_s, best.get(key, told.work_s))
            if at_s - INTERVAL_S / 2 >= after_s:
                windows[key].append(told)
    return [scores(window, settings) for window in zip(*windows.values(), strict=False)]


def test_a_slow_rank_is_found_within_an_interval_and_an_undisturbed_job_has_none(cluster: Make, tmp_path: Path) -> None:
    training = Training(steps=100_000, global_batch=12, step_delay_s=ASLEEP_S)
    config = tiny_config(tmp_path, training=training, checkpoint=Checkpoint(interval_steps=0))
    run = cluster(msgspec.structs.replace(config, timing_interval_s=INTERVAL_S))
    run.start(0, 1, 2)
    windows = 2 * UNDISTURBED_INTERVALS
    run.wait(lambda: len(scored(run)) >= windows, "undisturbed windows")
    assert [score.work for window in scored(run) for score in window if score.straggler] == []
    undisturbed_s = max(score.work.work_s for window in scored(run) for score in window)
    run.tell(1, InjectFault("slow", SLOWER * undisturbed_s))
    began_s = time.monotonic()
    run.wait(lambda: bool(scored(run, after_s=began_s)), "a window with the fault in it")
    slow = [score for score in scored(run, after_s=began_s)[0] if score.straggler]
    assert {score.work.replica for score in slow} == {1}
    assert {(score.straggler, score.cause) for score in slow} == {("relative", "data")}
    assert max(score.lowest for score in slow) < WISH.relative_threshold
    own = [score for score in scored(run, after_s=began_s, settings=ALONE)[0] if score.straggler]
    assert {(s.work.replica, s.straggler, s.cause) for s in own} == {(1, "individual", "data")}
    stop(run)


def test_a_rank_that_computes_longer_is_slow_in_its_computation(cluster: Make, tmp_path: Path) -> None:
    """Its samples are longer; rotary positions have no weights, so its gradient fits the others'."""
    training = Training(steps=100_000, global_batch=12, step_delay_s=0.005)
    config = tiny_config(tmp_path, training=training, checkpoint=Checkpoint(interval_steps=0))
    run = cluster(msgspec.structs.replace(config, timing_interval_s=INTERVAL_S))
    run.start(0, 1)
    run.config = msgspec.structs.replace(
        run.config, model=msgspec.structs.replace(run.config.model, sequence_length=LONG)
    )
    run.start(2)
    run.wait(lambda: len(scored(run)) >= 2, "windows of all")
    # One that has become slower than it was itself, as on a machine that others use, is no business of this test.
    slow = [score for score in scored(run)[1] if score.straggler == "relative"]
    assert {(score.work.replica, score.cause) for score in slow} == {(2, "compute")}
    stop(run)


def stop(run: Cluster) -> None:
    """All ranks leave."""
    run.auto = False
    for replica in run.members:
        run.tell(replica, StopTraining(save=False, reason="seen enough"))
    run.wait_all_done()
