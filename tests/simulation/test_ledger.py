"""The ledger of worlds in which the real policy recovers a job: its ETTR against a stopwatch beside the world."""

import os

import pytest

from controlplane.policy.ledger.account import account
from controlplane.policy.ledger.facts import Facts, Hold, JobFacts, Role, Turn
from controlplane.policy.pace import Commit, undisturbed_step
from controlplane.protocol.ledger import TimeClass
from controlplane.simulator.effective import RECOVERIES, REPLICAS, WARM_UP_S, Recovery, plan_for
from controlplane.simulator.meter import Meter
from controlplane.simulator.world import World
from tests.properties.policy.ledger_worlds import Counted

WHOLE, REPLICA, _, OURS = RECOVERIES
FAILURES, APART_S = 3, 1100.0


class Watched:
    """A world with a stopwatch (`Meter`) and, beside it, commits counted as ingest counts them."""

    def __init__(self, recovery: Recovery, seed: int) -> None:
        self.world = World(seed, plan=plan_for(recovery))
        self.meter, self.counted = Meter(self.world.kernel), Counted(0.0)
        self.world.trainer.on_commit = self.commit
        self.world.start()
        self.world.kernel.run(recovery.start_s + WARM_UP_S)
        self.step_s = self.meter.step_s()
        for _ in range(FAILURES):
            alive = [process for process in self.world.trainer.processes.values() if process.able()]
            self.world.faults.kill_rank(self.world.kernel.random.choice(alive))
            self.world.kernel.run(self.world.kernel.now_s + APART_S)

    def commit(self, committed: int) -> None:
        self.meter.commit(committed)
        rows = self.world.server.rows
        attempt = rows.attempt
        assert attempt is not None
        said = Commit(
            attempt=attempt.number, step=committed - 1, epoch=rows.epoch, at_s=self.world.kernel.now_s, gpus=REPLICAS,
            kept=committed,
        )  # fmt: skip
        self.counted.commit(said, resume_step=attempt.resume_step)


@pytest.mark.parametrize("recovery", [WHOLE, REPLICA, OURS], ids=lambda recovery: recovery.name)
@pytest.mark.parametrize("seed", [7, 11] if "HOLDFAST_TEST_RELEASE" in os.environ else [7])
def test_its_effective_time_is_that_of_a_stopwatch_within_half_a_point(recovery: Recovery, seed: int) -> None:
    watched = Watched(recovery, seed)
    end_s = watched.meter.moments[-1][0]
    step = undisturbed_step(watched.counted.pace, wanted_gpus=REPLICAS)
    assert step is not None
    job = JobFacts(
        id="job", project="default", gpus=REPLICAS, step_s=step.step_s, created_s=0.0, began_s=0.0, finished_s=None,
        training=True,
    )  # fmt: skip
    hold = Hold(job="job", node="node", replica=1, from_s=0.0, until_s=None, devices=REPLICAS)
    turns = {1: (Turn(0.0, Role.TRAINING),)}
    facts = Facts(judged_s=end_s, jobs=(job,), runs=watched.counted.facts("job"), holds=(hold,), turns=turns)
    found = account(facts, 0.0, end_s)
    stopwatch = watched.meter.newest * watched.step_s / end_s
    assert found.jobs[0].ettr == pytest.approx(stopwatch, abs=0.005)
    assert found.known_gpu_s == pytest.approx(REPLICAS * end_s), "each second once"
    sums = {of: sum(amount for key, amount in found.amounts.items() if key.of == of) for of in TimeClass}
    paused_s = (recovery.start_s if recovery.whole else recovery.stall_s + recovery.rejoin_s) * FAILURES
    stood = (sums[TimeClass.RECOVERY] + sums[TimeClass.STALL]) / REPLICAS
    assert stood == pytest.approx(paused_s + recovery.start_s, rel=0.25, abs=40.0), "starts and stalls are called that"
