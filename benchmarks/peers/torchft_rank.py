"""One rank of one replica group under torchft: the group is its own world, as in Holdfast.

The outer dimension is torchft's: one Manager a rank, gradients averaged over the
participating groups, a vote before each optimizer step, state of a returning group
fetched from a peer. The global batch shrinks while a group is away; the gradient is
scaled to a whole batch, which is torchft's own average. Started by
`benchmarks.peers.torchft`, never by people.
"""

import argparse
from datetime import timedelta
from pathlib import Path
from typing import Any

from trainer import device

device.prepare_import()

import torch  # noqa: E402 - Megatron must be imported after prepare_import
import torch.distributed as dist  # noqa: E402
from megatron.core import parallel_state  # noqa: E402
from torchft import Manager, ProcessGroupGloo  # noqa: E402

from benchmarks.peers import workload  # noqa: E402
from benchmarks.peers.engine import build_engine, fill_engine  # noqa: E402
from benchmarks.peers.launch import LOOPBACK  # noqa: E402
from benchmarks.processes import die_with_parent  # noqa: E402
from benchmarks.records import Recorder  # noqa: E402
from trainer.core.shares import share  # noqa: E402
from trainer.engine import Engine  # noqa: E402

HEARTBEAT_S = 0.1
QUORUM_TIMEOUT_S = 60.0
CONNECT_TIMEOUT_S = 10.0
QUORUM_RETRIES = 10


def arguments() -> argparse.Namespace:
    """Command line, as `benchmarks.peers.torchft` writes it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=Path, required=True)
    parser.add_argument("--replica", type=int, required=True)
    parser.add_argument("--lighthouse", required=True)
    parser.add_argument("--outer-timeout-s", type=float, required=True)
    parser.add_argument("--delay-s", type=float, required=True)
    return parser.parse_args()


def group_store(rank: int) -> tuple[dist.TCPStore, int]:
    """A store of this incarnation of the group: the launcher's would still hold the
    address of the manager before. Returns my handle and the port."""
    server = dist.TCPStore(LOOPBACK, 0, is_master=True, wait_for_workers=False) if rank == 0 else None
    port: list[Any] = [server.port if server else 0]
    dist.broadcast_object_list(port, src=0)
    mine = server or dist.TCPStore(LOOPBACK, port[0], is_master=False, wait_for_workers=False)
    return mine, int(port[0])


def make_manager(args: argparse.Namespace, engine: Engine, *, rank: int, port: int) -> Manager:
    """torchft's manager over this rank's state. The step is part of the state."""

    def load(state: dict[str, Any]) -> None:
        fill_engine(engine, state["tensors"], int(state["step"]))

    def state() -> dict[str, Any]:
        return {"tensors": [tensor.detach().clone() for tensor in engine.state()], "step": engine.schedule.num_steps}

    return Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=args.outer_timeout_s)),
        load_state_dict=load,
        state_dict=state,
        min_replica_size=1,
        use_async_quorum=True,
        timeout=timedelta(seconds=args.outer_timeout_s),
        quorum_timeout=timedelta(seconds=QUORUM_TIMEOUT_S),
        connect_timeout=timedelta(seconds=CONNECT_TIMEOUT_S),
        rank=rank,
        world_size=workload.PIPELINE,
        store_addr=LOOPBACK,
        store_port=port,
        lighthouse_addr=args.lighthouse,
        replica_id=f"replica_{args.replica}_",
        hostname=LOOPBACK,
        heartbeat_interval=timedelta(seconds=HEARTBEAT_S),
        quorum_retries=QUORUM_RETRIES,
    )


def make_whole(engine: Engine, averaged: torch.Tensor, participants: int) -> float:
    """Scale torchft's average in place so that it stands for a whole global batch; the share
    of the batch that it was made of."""
    averaged.mul_(participants)
    share = len(engine.tail(averaged).trained) / engine.micro_batch_count
    averaged.div_(share)
    first = engine.gradient_elements
    averaged[first : first + engine.micro_batch_count] = 1.0
    return share


def main() -> None:
    """Train until killed."""
    args = arguments()
    die_with_parent()
    dist.init_process_group(device.backend())
    rank = dist.get_rank()
    recorder = Recorder(args.records, replica=args.replica, rank=rank)
    recorder.write("start")
    parallel_state.initialize_model_parallel(1, workload.PIPELINE, create_gloo_process_groups=False)
    config = workload.trainer_config(delay_s=args.delay_s, interval_steps=workload.NO_SAVES)
    engine = build_engine(config, device.activate(0))
    _store, port = group_store(rank)
    manager = make_manager(args, engine, rank=rank, port=port)
    recorder.write("ready")
    mine = share(range(engine.micro_batch_count), range(workload.REPLICAS), args.replica)
    while manager.current_step() < config.training.steps:
        manager.start_quorum()
        engine.clear()
        engine.compute(manager.current_step(), mine)
        staged = engine.stage(mine, leaving=())
        manager.allreduce(staged).wait()
        if not manager.should_commit():
            recorder.write("discard", step=manager.current_step())
            continue
        participants = manager.num_participants()
        batch = make_whole(engine, staged, participants)
        applied = engine.apply(staged)
        recorder.write("step", step=manager.current_step(), contributors=participants, batch=batch, loss=applied.loss)


if __name__ == "__main__":
    main()
