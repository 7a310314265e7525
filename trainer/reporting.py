"""What a rank tells of each committed step, and the clock behind it."""

import time
from dataclasses import dataclass, field

from controlplane.protocol.rank import StepReport
from trainer.core.standing import Standing
from trainer.engine import Engine
from trainer.replica.commit import Commit


@dataclass(slots=True)
class StepClock:
    """Seconds of one step, by part: `exchange_s` of the attempt that committed it, `stall_s` of those
    that came to nothing and of the view changes after them."""

    began_s: float = field(default_factory=time.monotonic)
    exchange_s: float = 0.0
    stall_s: float = 0.0


def step_report(commit: Commit, clock: StepClock, engine: Engine, standing: Standing) -> StepReport:
    """Hashes the state where this step's is wanted, and tells the engine's timings."""
    every = engine.config.training.hash_every_steps
    hashed = every > 0 and standing.committed % every == 0 and not standing.is_joiner
    step_time_s = time.monotonic() - clock.began_s
    report = StepReport(
        step=commit.step,
        epoch=commit.epoch,
        step_time_s=step_time_s,
        tokens=engine.micro_batch_count * engine.tokens_per_micro_batch,
        micro_batches=commit.micro_batches,
        trained=commit.trained if standing.ref.rank == 0 else (),
        loss=commit.applied.loss if commit.applied else None,
        grad_norm=commit.applied.grad_norm if commit.applied else None,
        parameter_hash=engine.state_hash() if hashed else None,
        stall_s=clock.stall_s,
        exchange_s=clock.exchange_s,
        copy_wait_s=commit.copy_wait_s,
    )
    engine.timings.step_over(
        commit.step, step_time_s=step_time_s, exchange_s=clock.exchange_s, stalled=clock.stall_s > 0
    )
    return report
