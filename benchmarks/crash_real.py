"""Real saves that are killed: one rank of Megatron with the trainer's own saver.

A forked process trains a tiny model and saves after every step; it is killed with its
writers at a random moment, and another process loads what is newest. Used by `crashpoints`.
"""

import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.processes import STORE_KEY, die_with_parent, rendezvous_store
from controlplane.protocol.launch import RankRef, TrainerConfig
from controlplane.protocol.spec import Checkpoint, Model, Parallelism, Training
from controlplane.protocol.store_keys import store_token

MAX_DELAY_S = 0.6
START_LIMIT_S = 120.0


def config_of(root: Path, store: str, *, hidden: int = 64, layers: int = 2) -> TrainerConfig:
    """One rank, a save every step."""
    return TrainerConfig(
        model=Model(layers=layers, hidden=hidden, heads=2, sequence_length=16),
        parallelism=Parallelism(),
        training=Training(steps=10_000, global_batch=2),
        checkpoint=Checkpoint(interval_steps=1, keep=2),
        checkpoint_dir=str(root),
        replicas=1,
        store=store,
    )


def run(root: Path, kills: int, *, seed: int) -> list[str]:
    """Kill that many lives; what was wrong afterwards, nothing when all is well."""
    chance, faults = random.Random(seed), []
    with rendezvous_store() as address:
        config = config_of(root, address)
        for life in range(1, kills + 1):
            acked = _one_life(config, life, chance.uniform(0.0, MAX_DELAY_S))
            loaded = load_newest(config, life)
            if loaded < acked:
                faults.append(f"kill {life}: step {acked} was complete, step {loaded} could be loaded")
    return faults


def _one_life(config: TrainerConfig, life: int, delay_s: float) -> int:
    """Newest step that the life said was complete before it was killed."""
    hear, say = os.pipe()
    pid = fork(lambda: _train(config, life, say), group=True)
    os.close(say)
    acked = 0
    with open(hear, "rb") as stream:
        acked = int(stream.readline() or 0)
        time.sleep(delay_s)
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        # The writers hold the pipe as well; they end with their parent.
        for line in stream:
            acked = int(line)
    return acked


def _train(config: TrainerConfig, life: int, say: int) -> None:
    from controlplane.protocol.rank import CheckpointReport
    from trainer.checkpoint.fence import Fence
    from trainer.checkpoint.saver import SaveOrder, Saver
    from trainer.checkpoint.state import load

    engine, votes, store = rank_of(config, life)
    newest = _newest(config)
    step = load(engine, Path(newest)) if newest else 0
    fence = Fence(config.checkpoint_dir)
    fence.raise_now(1, life)

    def heard(message: Any) -> None:
        if isinstance(message, CheckpointReport) and message.state == "complete":
            os.write(say, f"{message.step}\n".encode())

    ref = RankRef("job_crash", 1, 0, life, 0)
    saver = Saver(ref, config, engine, votes=votes, fence=fence, store=store, send=heard)
    while True:
        engine.clear()
        engine.compute(step, range(engine.micro_batch_count))
        engine.apply(engine.stage(range(engine.micro_batch_count), leaving=[False]))
        step += 1
        saver.finish()
        saver.save(SaveOrder(step=step, epoch=life, kind="interval", blocking=False))


def load_newest(config: TrainerConfig, life: int) -> int:
    """The step that a fresh process loads from what is newest; 0 when there is nothing, -1 when it cannot."""
    newest = _newest(config)
    if newest is None:
        return 0

    def check() -> None:
        from trainer.checkpoint.manifest import verify
        from trainer.checkpoint.state import load

        assert verify(newest).ok, verify(newest).faults
        engine, _, _ = rank_of(config, -life)
        load(engine, Path(newest))

    _, status = os.waitpid(fork(check), 0)
    return int(Path(newest).name.split("_")[1].split("-")[0]) if status == 0 else -1


def _newest(config: TrainerConfig) -> str | None:
    from trainer.checkpoint.manifest import newest_complete

    found = newest_complete(config.checkpoint_dir)
    return str(found[0]) if found else None


def rank_of(config: TrainerConfig, life: int, *, rank: int = 0, world: int = 1) -> Any:
    """(engine, votes, store) of one rank of `world` data-parallel ones, in this process."""
    from trainer import device
    from trainer.config import RankSettings
    from trainer.control.faults import Faults
    from trainer.engine import Engine
    from trainer.parallel import Votes, connect_store, enter_inner_world

    my_device = device.activate(rank)
    layout = msgspec.structs.replace(config.parallelism, replica_dp=world)
    ref = RankRef("job_bench", 1, 0, life, rank)
    config = msgspec.structs.replace(config, parallelism=layout, store_token=store_token(STORE_KEY, ref.job_id))
    settings = RankSettings(
        ref=ref,
        world_size=world,
        device_index=rank,
        agent_socket="",
        config=config,
    )
    store = connect_store(settings)
    enter_inner_world(settings, store)
    return Engine(config, my_device, Faults(allowed=False)), Votes(), store


def fork(body: Callable[[], None], *, group: bool = False) -> int:
    """Run `body` in a child (in a process group of its own) that ends with this process at the
    latest; exit 0 when it returns."""
    sys.stdout.flush()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        die_with_parent(parent)
        if group:
            os.setsid()
        body()
        code = 0
    except BaseException:  # The child ends here; the parent sees the code.
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
