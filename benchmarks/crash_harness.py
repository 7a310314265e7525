"""A fast save loop that is killed, and the inspection of what it leaves behind.

The loop runs the trainer's own marker, manifest, fence, retention and local-tier code in a
forked process; only the shards are small and written here, in place and in pieces, as
torch writes them. It is killed by the clock (`after_s`) or at a failpoint: at its n-th
mkdir, fsync, rename or unlink, before the call or after it. Used by `crashpoints` and by
its test.
"""

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from controlplane.protocol import digests
from controlplane.protocol.launch import RankRef, TrainerConfig
from controlplane.protocol.spec import Checkpoint, Model, Parallelism, Training
from trainer.checkpoint import manifest
from trainer.checkpoint.commit import Committer, Order
from trainer.checkpoint.fence import Fence
from trainer.checkpoint.local import shard
from trainer.checkpoint.local.disk import LocalDisk
from trainer.checkpoint.part import Part
from trainer.errors import CheckpointFault

RANKS = 2
KEEP = 2
JOB = "job_crash"
NODES = ("node0", "node1")
LIFE_LIMIT_S = 30
CALLS = ("mkdir", "fsync", "replace", "unlink", "rmdir")


@dataclass(frozen=True, slots=True)
class Kill:
    """When: after so many seconds of saving, or at the n-th call (`after_call`: once it has
    returned), of the one named `call` or of any."""

    after_s: float | None = None
    at_call: int = 0
    call: str = ""
    after_call: bool = False


@dataclass(slots=True)
class Findings:
    """`faults` say what was wrong after which kill; empty means that nothing ever was."""

    kills: int = 0
    partials: int = 0
    commits: int = 0
    local_commits: int = 0
    killed_in: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


class _Rest:
    """Stands in for Megatron's plan: what rank 0 writes once all ranks have written."""

    def finish(self, folder: Path, _parts: object) -> None:
        (folder / "common.pt").write_bytes(b"common" * 50)
        (folder / ".metadata").write_bytes(b"metadata" * 200)
        (folder / "metadata.json").write_text("{}")


def config_of(root: Path) -> TrainerConfig:
    """The part of a trainer's configuration that saving reads."""
    return TrainerConfig(
        model=Model(),
        parallelism=Parallelism(),
        training=Training(),
        checkpoint=Checkpoint(keep=KEEP),
        checkpoint_dir=str(root / "persistent"),
        replicas=1,
        store="",
    )


def run(root: Path, kills: list[Kill], *, seed: int) -> Findings:
    """One process after the other on the same directory, each killed once, each looked into."""
    findings = Findings()
    for number, kill in enumerate(kills, 1):
        acked = _one_life(root, kill, epoch=number, seed=seed + number, findings=findings)
        inspect(root, acked, findings, f"kill {number} ({kill})")
    return findings


def plans(count: int, *, seed: int) -> list[Kill]:
    """Half by the clock, half at failpoints: of any call, or of each kind in turn."""
    chance = random.Random(seed)
    kills = []
    for number in range(count):
        if number % 2:
            kills.append(Kill(after_s=chance.uniform(0.0, 0.12)))
        elif number % 4:
            kills.append(Kill(at_call=chance.randint(1, 250), after_call=chance.random() < 0.5))
        else:
            call = CALLS[number // 4 % len(CALLS)]
            kills.append(Kill(at_call=chance.randint(1, 30), call=call, after_call=chance.random() < 0.5))
    return kills


def _one_life(root: Path, kill: Kill, *, epoch: int, seed: int, findings: Findings) -> dict[str, int]:
    """Fork the loop, kill it; the newest step of each tier that it said was committed."""
    hear, say = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(hear)
        signal.alarm(LIFE_LIMIT_S)
        try:
            _save_for_ever(root, kill, epoch, seed, lambda text: os.write(say, text.encode() + b"\n"))
        finally:
            os._exit(1)
    os.close(say)
    said = b""
    with open(hear, "rb") as stream:
        if kill.after_s is not None:
            stream.readline()
            time.sleep(kill.after_s)
            os.kill(pid, signal.SIGKILL)
        said = stream.read()
    _, status = os.waitpid(pid, 0)
    lines = said.decode().splitlines()
    if os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
        findings.faults.append(f"{kill}: the loop ended by itself: {lines[-1:]}")
    findings.kills += 1
    acked: dict[str, int] = {}
    for line in lines:
        what, _, value = line.partition(" ")
        if what == "in":
            findings.killed_in[value] += 1
        elif what in ("persistent", "local"):
            acked[what] = int(value)
            findings.commits += what == "persistent"
            findings.local_commits += what == "local"
    if kill.after_s is not None:
        findings.killed_in["the clock"] += 1
    return acked


def _save_for_ever(root: Path, kill: Kill, epoch: int, seed: int, say: Callable[[str], object]) -> None:
    chance = random.Random(seed)
    fence = Fence(root / "persistent")
    committer = Committer(RankRef(JOB, 1, 0, epoch, 0), config_of(root), fence=fence)
    disks = [LocalDisk(root / node, JOB) for node in NODES]
    newest = manifest.newest_complete(root / "persistent")
    step = newest[1].step if newest else 0
    say("begun")
    _set_failpoint(kill, say)
    fence.raise_now(1, epoch)
    while True:
        step += 1
        _save_locally(disks, step, epoch, chance)
        say(f"local {step}")
        _save(committer, root, step, epoch, chance)
        say(f"persistent {step}")


def _save(committer: Committer, root: Path, step: int, epoch: int, chance: random.Random) -> None:
    folder = root / "persistent" / manifest.directory_name(step, epoch)
    folder.mkdir(parents=True, exist_ok=True)
    parts = []
    for rank in range(RANKS):
        name = f"__{rank}_0.distcp"
        with (folder / name).open("wb") as file:
            for _ in range(chance.randint(1, 6)):
                file.write(chance.randbytes(chance.randint(1, 8192)))
                file.flush()
            os.fsync(file.fileno())
        parts.append(Part(files=manifest.describe_files(folder, only=name.__eq__)))
    planned: Any = _Rest()
    committer.commit(Order(step, epoch, "interval"), parts, planned, folder, str(folder))


def _save_locally(disks: list[LocalDisk], step: int, epoch: int, chance: random.Random) -> None:
    """Each rank's shard on a node of its own, with a copy on the other."""
    tensors = [torch.arange(chance.randint(10, 2000), dtype=torch.float32)]
    for rank in range(RANKS):
        head = shard.ShardHead(
            job_id=JOB, attempt=1, epoch=epoch, step=step, rank=rank, world=RANKS, tp=1, pp=RANKS,
            tensors=shard.heads(tensors), algorithm=digests.PREFERRED,
        )  # fmt: skip
        path = disks[rank].prepare(1, epoch, step, rank)
        shard.write(path, head, tensors, b"{}")
        data = path.read_bytes()
        disks[1 - rank].receive((step, epoch, rank), 1, lambda draft, data=data: draft.write_bytes(data))  # type: ignore[misc]
    for disk in disks:
        disk.prune(keep=KEEP, complete=(step, epoch))


def _set_failpoint(kill: Kill, say: Callable[[str], object]) -> None:
    """In the forked loop: count the calls, and die at the chosen one."""
    if not kill.at_call:
        return
    left = [kill.at_call]

    def wrap(name: str) -> None:
        original = getattr(os, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] == 0 and not kill.after_call:
                _die(name, say)
            try:
                return original(*args, **kwargs)
            finally:
                if left[0] == 0:
                    _die(name, say)

        setattr(os, name, counted)

    for name in [kill.call] if kill.call else CALLS:
        wrap(name)


def _die(name: str, say: Callable[[str], object]) -> None:
    say(f"in {name}")
    os.kill(os.getpid(), signal.SIGKILL)


def inspect(root: Path, acked: dict[str, int], findings: Findings, after: str) -> None:
    """What the next attempt would find: everything complete is whole, nothing that was
    acknowledged is gone."""
    complete = manifest.list_complete(root / "persistent")
    for place, content in complete:
        verdict = manifest.verify(place)
        if not verdict.ok:
            findings.faults.append(f"{after}: step {content.step} is complete but {verdict.faults}")
    newest = complete[0][1].step if complete else 0
    if newest < acked.get("persistent", 0):
        findings.faults.append(f"{after}: step {acked['persistent']} was committed, the newest is {newest}")
    names = [path for path in (root / "persistent").glob("step_*") if path.is_dir()]
    findings.partials += len(names) - len(complete)
    newest_local = newest_local_step(root)
    if newest_local < acked.get("local", 0):
        findings.faults.append(f"{after}: local step {acked['local']} was complete, the newest is {newest_local}")


def newest_local_step(root: Path) -> int:
    """The newest step of which every shard is whole on some node; a name stands for a whole shard."""
    disks = [LocalDisk(root / node, JOB) for node in NODES]
    for step, epoch in sorted({number for disk in disks for number in disk.steps()}, reverse=True):
        if all(any(_whole(disk.path(step, epoch, rank)) for disk in disks) for rank in range(RANKS)):
            return step
    return 0


def _whole(path: Path) -> bool:
    if not path.exists():
        return False
    with contextlib.suppress(OSError, CheckpointFault):
        shard.check(path)
        return True
    raise AssertionError(f"{path} has its name but is not whole")
