"""What every contestant trains: the demo's job, turned into the trainer's own configuration.

Called by runners and ranks; imports no torch. The model, the data order, the optimizer and
the arithmetic are the trainer's (`engine.py`); only who keeps the ranks together differs.
"""

import msgspec

from controlplane.demo.job import demo_job
from controlplane.protocol.launch import TrainerConfig
from controlplane.protocol.spec import JobSpec, replica_count

REPLICAS = 3
PIPELINE = 2
DELAY_S = 0.05
NO_SAVES = 1_000_000


def job_document(*, delay_s: float, interval_steps: int) -> dict[str, object]:
    """The job that Holdfast is given; `delay_s` more for each micro-batch."""
    return demo_job(nodes=REPLICAS, pp=PIPELINE, delay_s=delay_s, interval_steps=interval_steps)


def trainer_config(*, delay_s: float, interval_steps: int) -> TrainerConfig:
    """The same job as the configuration of one rank. No store, no control plane."""
    spec = msgspec.convert(job_document(delay_s=delay_s, interval_steps=interval_steps), JobSpec).spec
    return TrainerConfig(
        model=spec.model,
        parallelism=spec.parallelism,
        training=spec.training,
        checkpoint=spec.checkpoint,
        checkpoint_dir="",
        replicas=replica_count(spec),
        store="",
    )
