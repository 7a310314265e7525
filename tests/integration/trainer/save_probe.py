"""Run as a program: ranks forked from one process that has Megatron in memory save, fail to
save, and load; what they found goes to stdout as one JSON object. `test_saves.py` judges it."""

import ctypes
import errno
import json
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import msgspec
import numpy as np

from benchmarks import crash_real
from benchmarks.processes import die_with_parent, rendezvous_store
from controlplane.protocol.launch import RankRef, TrainerConfig
from controlplane.protocol.spec import Checkpoint, LocalTier
from trainer import device

TOO_SMALL_BYTES = 16_384
CLIPPED = 0.1
CLONE_NEWNS = 0x20000  # linux/sched.h


def saver_of(config: TrainerConfig, said: list[Any], life: int, rank: int = 0, world: int = 1) -> Any:
    from trainer.checkpoint.fence import Fence
    from trainer.checkpoint.saver import Saver

    engine, votes, store = crash_real.rank_of(config, life, rank=rank, world=world)
    ref = RankRef("job_probe", 1, 0, life, rank)
    fence = Fence(config.checkpoint_dir)
    return engine, Saver(ref, config, engine, votes=votes, fence=fence, store=store, send=said.append), store


def save(saver: Any, step: int) -> None:
    from trainer.checkpoint.saver import SaveOrder

    saver.save(SaveOrder(step=step, epoch=1, kind="manual", blocking=True))


def train(engine: Any, step: int) -> float:
    everything = range(engine.micro_batch_count)
    engine.clear()
    engine.compute(step, everything)
    return float(engine.apply(engine.stage(everything, leaving=[False])).loss)


def bad_disk(config: TrainerConfig, facts: dict[str, Any]) -> None:
    """Full for a while, then one whose errors come with fsync; both tiers."""
    from trainer.checkpoint.local.tier import LocalOrder
    from trainer.checkpoint.local.tier import LocalTier as Tier

    said: list[Any] = []
    engine, saver, store = saver_of(config, said, 1)
    tier = Tier(saver._ref, config, world=1, node="node0", host="127.0.0.1", store=store, send=said.append)
    places = [config.checkpoint_dir, str(config.checkpoint.local.dir)]

    def both(step: int) -> list[tuple[str, str, str]]:
        said.clear()
        save(saver, step)
        tier.save(engine, LocalOrder(step=step, epoch=1, contributors=(0,)))
        tier.finish()
        return [(message.kind, message.state, message.error) for message in said]

    with too_small(places) as facts["full_says"]:
        facts["full"] = both(1)
        facts["left_behind"] = partials(places)
    facts["loss_after"] = train(engine, 0)
    with broken_sync():
        facts["broken"] = both(2)
        facts["left_behind"] += partials(places)
    facts["mended"] = [state for _, state, _ in both(3)]


def no_memory(config: TrainerConfig, facts: dict[str, Any]) -> None:
    """The local tier wants buffers for a state that no machine holds, then for the real one."""
    import torch

    from trainer.checkpoint.local.tier import LocalOrder
    from trainer.checkpoint.local.tier import LocalTier as Tier

    class Vast:
        def state(self) -> list[torch.Tensor]:
            return [torch.zeros(1), torch.zeros(1).expand(1 << 52)]

    said: list[Any] = []
    engine, saver, store = saver_of(config, said, 61)
    tier = Tier(saver._ref, config, world=1, node="node0", host="127.0.0.1", store=store, send=said.append)
    for step, saved in ((1, Vast()), (2, engine)):
        tier.save(saved, LocalOrder(step=step, epoch=1, contributors=(0,)))  # type: ignore[arg-type]
        tier.finish()
    facts["no_memory"] = [(message.step, message.state, message.error) for message in said]


def partials(places: list[str]) -> list[str]:
    """Files of saves that have failed."""
    return sorted(path.name for place in places for path in Path(place).rglob("step_*/*") if path.is_file())


@contextmanager
def too_small(places: list[str]) -> Iterator[str]:
    """A tmpfs of TOO_SMALL_BYTES over each place, seen by this process alone; where that may not
    be mounted, no file may grow past it. Gives what the system will say."""
    libc = ctypes.CDLL(None, use_errno=True)
    mounted = False
    if libc.unshare(CLONE_NEWNS) == 0:
        subprocess.run(["mount", "--make-rprivate", "/"], check=False, capture_output=True)
        for place in places:
            Path(place).mkdir(parents=True, exist_ok=True)
            argv = ["mount", "-t", "tmpfs", "-o", f"size={TOO_SMALL_BYTES}", "tmpfs", place]
            mounted = subprocess.run(argv, check=False, capture_output=True).returncode == 0
    if not mounted:
        resource.setrlimit(resource.RLIMIT_FSIZE, (TOO_SMALL_BYTES, resource.RLIM_INFINITY))
    yield os.strerror(errno.ENOSPC if mounted else errno.EFBIG)
    if not mounted:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    for place in places if mounted else []:
        subprocess.run(["umount", place], check=True)


@contextmanager
def broken_sync() -> Iterator[None]:
    """The disk takes every byte and fails when it is told to keep them, as one that dies does."""

    def fail(_descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    whole, os.fsync = os.fsync, fail
    yield
    os.fsync = whole


def fully_parallel(config: TrainerConfig, facts: dict[str, Any]) -> None:
    """Two data-parallel ranks hold the same state; each writes its share, each loads all of it."""
    folder = Path(config.checkpoint_dir)
    in_turn(2, lambda rank: _save_share(config, rank))
    saved = folder / "step_00000003-e1"
    facts["shares"] = [sum(path.stat().st_size for path in saved.glob(f"__{rank}_*")) for rank in (0, 1)]
    out = folder / "hashes"
    out.mkdir()
    in_turn(2, lambda rank: _load(config, 12, rank, 2, out))
    in_turn(1, lambda rank: _load(config, 13, rank, 1, out))
    facts["hashes"] = {path.name: path.read_text() for path in out.iterdir()}


def shared_optimizer(config: TrainerConfig, facts: dict[str, Any]) -> None:
    """bf16, clipped: two data-parallel ranks that share the optimizer's state out, and two that
    do not, train the same; each loads what the other has saved, and so does one rank alone."""
    layout = msgspec.structs.replace(config.parallelism, distributed_optimizer=True)
    training = msgspec.structs.replace(config.training, dtype="bf16", clip_grad=CLIPPED)
    alone = msgspec.structs.replace(config, training=training)
    kinds = {"shared": msgspec.structs.replace(alone, parallelism=layout), "plain": alone}
    root, found = Path(config.checkpoint_dir), Path(config.checkpoint_dir) / "found"
    found.mkdir(parents=True)
    for life, (kind, of) in enumerate(kinds.items(), 41):
        mine = msgspec.structs.replace(of, checkpoint_dir=str(root / kind))
        in_turn(2, partial(_train_shared, mine, life, found / f"trained-{kind}"))
    readers = (("shared", "shared", 2), ("shared", "plain", 2), ("plain", "shared", 2), ("shared", "plain", 1))
    for life, (source, kind, world) in enumerate(readers, 51):
        saved = root / source / "step_00000003-e1"
        out = found / f"loaded-{source}-{kind if world > 1 else 'alone'}"
        in_turn(world, partial(_load_shared, kinds[kind], life, saved, out, world))
    facts["optimizers"] = {path.name: json.loads(path.read_text()) for path in found.iterdir()}


def _train_shared(config: TrainerConfig, life: int, out: Path, rank: int) -> None:
    said: list[Any] = []
    engine, saver, _ = saver_of(config, said, life, rank, 2)
    everything, norms = range(engine.micro_batch_count), []
    for step in (1, 2, 3):  # The third save reuses the plan of the first two.
        engine.clear()
        engine.compute(step, everything)
        norms.append(engine.apply(engine.stage(everything, leaving=[False])).grad_norm)
        save(saver, step)
    assert rank or [message.state for message in said] == ["writing", "complete"] * 3, said
    out.with_name(f"{out.name}-{rank}").write_text(json.dumps({**_held(engine), "norms": norms}))


def _load_shared(config: TrainerConfig, life: int, saved: Path, out: Path, world: int, rank: int) -> None:
    from trainer.checkpoint.state import load

    engine, _, _ = crash_real.rank_of(config, life, rank=rank, world=world)
    load(engine, saved)
    out.with_name(f"{out.name}-{rank}").write_text(json.dumps(_held(engine)))


def parameter_hash(engine: Any) -> str:
    """Of this rank's parameters alone, hex."""
    import hashlib

    import torch

    digest = hashlib.sha256()
    for chunk in engine.chunks:
        for parameter in chunk.parameters():
            digest.update(parameter.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _held(engine: Any) -> dict[str, Any]:
    """`elements` of the optimizer's first moments, `staged` for the other replicas, `donated` to a
    joiner; `steps`: the optimizer's counts; the parameters' `hash`; `state`: digests of the whole
    state of each parameter that this rank owns."""
    import hashlib

    from trainer.optimizer import adam_state, torch_optimizers

    parameters = [parameter for chunk in engine.chunks for parameter in chunk.parameters()]
    states = [state for inner in torch_optimizers(engine.optimizer) for state in inner.state.values()]
    whole = enumerate(adam_state(engine.optimizer, parameters))
    return {
        "elements": sum(state["exp_avg"].numel() for state in states),
        "staged": engine.gradient_elements,
        "steps": sorted({float(state["step"]) for state in states}),
        "donated": sum(tensor.numel() for tensor in engine.state()),
        "hash": parameter_hash(engine),
        "state": {
            f"{number}.{name}": hashlib.sha256(tensor.detach().numpy().tobytes()).hexdigest()[:16]
            for number, named in whole
            for name, tensor in named.items()
        },
    }


def writer_held_up(config: TrainerConfig, facts: dict[str, Any]) -> None:
    """The forked writer stands still while training goes on; then it may write."""
    from trainer.checkpoint.saver import SaveOrder

    said: list[Any] = []
    engine, saver, _ = saver_of(config, said, 31)
    train(engine, 0)
    before = parameter_hash(engine)
    saver.save(SaveOrder(step=1, epoch=1, kind="interval", blocking=False))
    (writer,) = multiprocessing.active_children()
    os.kill(writer.pid, signal.SIGSTOP)
    for step in (1, 2, 3):
        train(engine, step)
    saver.save(SaveOrder(step=4, epoch=1, kind="interval", blocking=False))
    facts["while_held_up"] = [(message.step, message.state) for message in said]
    os.kill(writer.pid, signal.SIGCONT)
    saver.finish()
    facts["afterwards"] = [(message.step, message.state) for message in said]
    trained = parameter_hash(engine)
    from trainer.checkpoint.state import load

    load(engine, Path(config.checkpoint_dir) / "step_00000001-e1")
    facts["saved_is_then_not_now"] = [parameter_hash(engine) == before, trained != before]


def _save_share(config: TrainerConfig, rank: int) -> None:
    said: list[Any] = []
    engine, saver, _ = saver_of(config, said, 11, rank, 2)
    for step in (1, 2, 3):  # The third save reuses the plan of the first two.
        train(engine, step)
        save(saver, step)
    time.sleep(0.0 if rank == 0 else 0.1)
    assert rank or [message.state for message in said] == ["writing", "complete"] * 3, said
    (Path(config.checkpoint_dir) / f"hash_{rank}").write_text(parameter_hash(engine))
    _run_out_of_memory(saver, rank)
    save(saver, 4)
    assert [(message.state, "rank 1: " in message.error) for message in said[-1:]] == [("failed", rank == 0)], said


def _run_out_of_memory(saver: Any, rank: int) -> None:
    """From now on rank 1 has no memory for its tensors on the host, behind the collective half."""
    plan = saver._planner.plan

    def too_much(*arguments: Any) -> Any:
        import torch

        planned = plan(*arguments)
        return planned if rank == 0 else torch.empty(1 << 60)

    saver._planner.plan = too_much


def _load(config: TrainerConfig, life: int, rank: int, world: int, out: Path) -> None:
    from trainer.checkpoint.state import load

    engine, _, _ = crash_real.rank_of(config, life, rank=rank, world=world)
    load(engine, Path(config.checkpoint_dir) / "step_00000003-e1")
    (out / f"{rank}-of-{world}").write_text(parameter_hash(engine))


def random_state(config: TrainerConfig, facts: dict[str, Any]) -> None:
    """Drawn after a load in the same layout, and in another one, twice."""
    import torch

    from trainer.checkpoint import rng

    crash_real.rank_of(config, 21)

    def draw() -> list[float]:
        return [random.random(), float(np.random.rand()), float(torch.rand(1))]

    saved = rng.capture(rank=0, world=1, tp=1, pp=1)
    facts["own"] = [draw(), (rng.restore(saved, rank=0, world=1, tp=1, pp=1), draw())[1]]
    other = []
    for rank in (0, 0, 1):
        draw()
        rng.restore(saved, rank=rank, world=2, tp=2, pp=1)
        other.append(draw())
    facts["other"] = other


def state_hash(config: TrainerConfig, facts: dict[str, Any]) -> None:
    """Whether the hash that replicas compare sees one element of the optimizer, one number drawn and
    one step of the schedule, none of which the parameters show."""
    import torch

    from trainer.checkpoint import rng

    engine, _, _ = saver_of(config, [], 61)
    train(engine, 0)
    was, parameters, random_bytes = engine.state_hash(), parameter_hash(engine), rng.drawn(engine.device)
    moment = max(engine.state()[len(list(engine._parameters())) :], key=lambda tensor: tensor.numel())
    kept = float(moment.view(-1)[3])
    moment.view(-1)[3] = kept + 1e-3
    seen = {"optimizer": engine.state_hash() != was}
    moment.view(-1)[3] = kept
    torch.rand(1)
    seen["random"] = engine.state_hash() != was
    rng.draw_from(random_bytes, engine.device)
    engine.stand_at(7)
    seen["schedule"] = engine.state_hash() != was
    engine.stand_at(1)
    facts["state_hash"] = {
        **seen,
        "again": engine.state_hash() == was,
        "parameters": parameter_hash(engine) == parameters,
    }


def restore_test(config: TrainerConfig, facts: dict[str, Any]) -> None:
    """What two data-parallel ranks saved, examined as a worker has it done."""
    from trainer.checkpoint.examine import Task, examine

    path = f"{config.checkpoint_dir}/step_00000003-e1"
    verdict = examine(Task(path=path, job_id="job_probe", step=3, epoch=1, config=config))
    facts["examined"] = [verdict.ok, verdict.loaded, verdict.detail]
    other = examine(Task(path=path, job_id="job_probe", step=4, epoch=1))
    facts["examined_as_another"] = [other.ok, other.detail]


def in_turn(world: int, body: Callable[[int], None]) -> None:
    """Fork `world` ranks at once and wait for all."""
    pids = [crash_real.fork(lambda rank=rank: body(rank)) for rank in range(world)]  # type: ignore[misc]
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * world


def told(folder: Path, body: Callable[[TrainerConfig, dict[str, Any]], None], config: TrainerConfig) -> dict[str, Any]:
    """Run `body` in a fork; its facts."""
    out = folder / f"{body.__name__}.json"

    def run() -> None:
        facts: dict[str, Any] = {}
        body(config, facts)
        out.write_text(json.dumps(facts))

    in_turn(1, lambda _: run())
    return dict(json.loads(out.read_text()))


def main() -> None:
    """Facts of every part, then the kills around real saves."""
    die_with_parent()
    device.prepare_import()
    import trainer.assemble  # noqa: F401

    facts: dict[str, Any] = {}
    with rendezvous_store() as address, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for body in (bad_disk, no_memory, random_state, state_hash, writer_held_up):
            config = crash_real.config_of(folder / body.__name__, address)
            tier = LocalTier(dir=str(folder / "disks"), copies=0)
            config = msgspec.structs.replace(config, checkpoint=Checkpoint(interval_steps=1, keep=9, local=tier))
            facts |= told(folder, body, config)
        config = crash_real.config_of(folder / "parallel", address)
        fully_parallel(config, facts)
        facts |= told(folder, restore_test, config)
        shared_optimizer(crash_real.config_of(folder / "shared", address, hidden=32), facts)
        facts["kills"] = crash_real.run(folder / "kills", 2, seed=5)
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
