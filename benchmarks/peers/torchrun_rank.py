"""One rank under torchrun: plain Megatron-core with data and pipeline parallelism.

All ranks form one world; Megatron reduces the gradients over the data-parallel group.
When any rank dies, torchrun ends all of them and starts all again from the newest
checkpoint. Started by `benchmarks.peers.torchrun`, never by people.
"""

import argparse
from pathlib import Path

from trainer import device

device.prepare_import()

import msgspec  # noqa: E402
import torch.distributed as dist  # noqa: E402 - Megatron must be imported after prepare_import
from megatron.core import parallel_state  # noqa: E402

from benchmarks.peers import saves, workload  # noqa: E402
from benchmarks.peers.engine import build_engine  # noqa: E402
from benchmarks.processes import die_with_parent  # noqa: E402
from benchmarks.records import Recorder  # noqa: E402


def main() -> None:
    """Train until killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=Path, required=True)
    parser.add_argument("--saves", type=Path, required=True)
    parser.add_argument("--save-every", type=int, required=True)
    parser.add_argument("--delay-s", type=float, required=True)
    args = parser.parse_args()
    die_with_parent()
    dist.init_process_group(device.backend())
    parallel_state.initialize_model_parallel(1, workload.PIPELINE, create_gloo_process_groups=False)
    replica, stage = parallel_state.get_data_parallel_rank(), parallel_state.get_pipeline_model_parallel_rank()
    recorder = Recorder(args.records, replica=replica, rank=stage)
    recorder.write("start")
    config = workload.trainer_config(delay_s=args.delay_s, interval_steps=args.save_every)
    # To the engine it is one replica whose data parallelism is all inside.
    inside = msgspec.structs.replace(config.parallelism, replica_dp=workload.REPLICAS)
    config = msgspec.structs.replace(config, parallelism=inside)
    engine = build_engine(config, device.activate(0))
    step = saves.newest(args.saves, stages=workload.PIPELINE)
    if step:
        saves.load(engine, args.saves, stage=stage, step=step)
    recorder.write("ready", step=step)
    whole = range(engine.micro_batch_count)
    while step < config.training.steps:
        engine.clear()
        engine.compute(step, whole)
        applied = engine.apply(engine.stage(whole, leaving=()))
        step += 1
        recorder.write("step", step=step, contributors=workload.REPLICAS, loss=applied.loss)
        if step % args.save_every == 0:
            if replica == 0:
                saves.save(engine, args.saves, stage=stage, step=step)
            dist.barrier()


if __name__ == "__main__":
    main()
