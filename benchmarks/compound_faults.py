"""What `benchmarks.compound` breaks: each round is two or three faults within one recovery.

Everything from outside, as a machine room does it: signals by pid, a node's power, processes of the
control plane, the wall clock of its processes (a preloaded library, where there is a C compiler), a
file system that stands still (fsfreeze of a loop device, where this may be mounted). Only XIDs go through the
control plane, because the sensor is simulated. One replica is spared in each round, so no restart
is ever needed.
"""

import random
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.compound_judge import STALLED, Injected
from benchmarks.peers.holdfast import kill_rank
from benchmarks.peers.runner import PeerFailed
from benchmarks.ring import Ring

CLOCK_SOURCE = Path(__file__).with_name("stepped_clock.c")
NODE_DOWN_S = 8.0
STALL_S = 12.0
HELD_S = 0.5
CLOCK_STEP_S = 30
IMAGE_MB = 512
JOINER_TIMEOUT_S = 30.0
FALLEN_OFF_THE_BUS = 79


@dataclass(slots=True)
class Scene:
    """One running job and what breaks it. `frozen`: the mounted folder of its checkpoints, None where
    nothing may be mounted; `clock`: the file by which the server's clock is set, None where there is none."""

    running: Ring
    job_id: str
    chance: random.Random
    frozen: Path | None
    clock: Path | None
    done: list[Injected] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    healing: list[Callable[[], None]] = field(default_factory=list)
    rounds: list[tuple[str, float]] = field(default_factory=list)
    calm: list[tuple[int, int]] = field(default_factory=list)
    """Steps that were committed before and after nothing was done for a while."""

    def begin(self, name: str) -> None:
        """A round; what is done from now on is of it."""
        self.rounds.append((name, time.time()))

    def did(self, told: Injected) -> Injected:
        """Keep it for the judge."""
        self.done.append(replace(told, round=self.rounds[-1][0]))
        return told

    def replicas(self, count: int) -> list[int]:
        """So many different living replicas; at least one more stays whole."""
        living = sorted({key[0] for key, rank in self.running.ranks(self.job_id).items() if rank["pid"]})
        return self.chance.sample(living, min(count, len(living) - 1))

    def pause(self) -> None:
        """So long that the next fault falls into the recovery from the last one."""
        time.sleep(self.chance.uniform(0.2, 3.0))

    def hit(self, replica: int, number: signal.Signals = signal.SIGKILL, *, stalled: bool = False) -> Injected | None:
        """Signal a random rank of the replica; None when it was gone already. `stalled`: it may wait for its
        storage, and then no signal ends it."""
        ranks = self.running.ranks(self.job_id)
        slots = sorted(key for key, rank in ranks.items() if key[0] == replica and rank["pid"])
        if not slots:
            return None
        slot = self.chance.choice(slots)
        life = next(r for r in self.running.driver.current_replicas(self.job_id) if r["index"] == replica)
        try:
            at_s, pid = kill_rank(self.running, self.job_id, slot, number)
        except PeerFailed:
            return None
        what = "killed" if number is signal.SIGKILL else "stopped"
        if stalled and is_held(pid):
            what = "killed, and held by its storage"
        told = Injected(
            what=what, at_s=at_s, replica=replica, incarnation=life["incarnation"], rank=slot[1]
        )  # fmt: skip
        return self.did(told)

    def end(self, *names: str, down_s: float = 1.0) -> None:
        """SIGKILL for processes of the control plane, by the supervisor that started them."""
        for name in names:
            self.running.installation.request(name, down_s=down_s)

    def wait_joiner(self, after: Injected) -> None:
        """Until the replica's next life has ranks."""
        deadline_s = time.monotonic() + JOINER_TIMEOUT_S
        while time.monotonic() < deadline_s:
            for replica in self.running.driver.current_replicas(self.job_id):
                lives = replica["index"] == after.replica and replica["incarnation"] > after.incarnation
                if lives and any(rank["pid"] for rank in replica["ranks"]):
                    return
            time.sleep(0.1)

    def node_of(self, replica: int) -> dict[str, Any]:
        """The node of the replica's first rank, as the API shows it."""
        ranks = self.running.ranks(self.job_id)
        name = next(rank["node_name"] for key, rank in sorted(ranks.items()) if key[0] == replica)
        nodes: list[dict[str, Any]] = self.running.driver.items("/nodes")
        return next(node for node in nodes if node["name"] == name)


def two_kills(scene: Scene) -> None:
    """A second replica dies while the first is replaced."""
    first, second = scene.replicas(2)
    scene.hit(first)
    scene.pause()
    scene.hit(second)


def kill_and_hang(scene: Scene) -> None:
    """A rank of another replica stands still in the recovery."""
    first, second = scene.replicas(2)
    scene.hit(first)
    scene.pause()
    scene.hit(second, signal.SIGSTOP)


def three_with_the_joiner(scene: Scene) -> None:
    """Two replicas die, and the replacement of the first as soon as it lives."""
    first, second = scene.replicas(2)
    told = scene.hit(first)
    scene.pause()
    scene.hit(second)
    if told is not None:
        scene.wait_joiner(told)
        scene.hit(first)


def whole_node(scene: Scene) -> None:
    """Agent, rank hosts and ranks of a node at once; then a rank elsewhere."""
    first, second = scene.replicas(2)
    node = scene.node_of(first)
    name = node["name"]
    scene.did(Injected(what="node lost", at_s=time.time(), node=name, devices=len(node["devices"])))
    scene.end(f"node:{name}", down_s=NODE_DOWN_S)
    scene.pause()
    scene.hit(second)


def agent_alone(scene: Scene) -> None:
    """An agent dies, its ranks live; a rank elsewhere dies."""
    first, second = scene.replicas(2)
    scene.end(f"agent:{scene.node_of(first)['name']}")
    scene.pause()
    scene.hit(second)


def store(scene: Scene) -> None:
    """The rendezvous store in mid-recovery."""
    (first,) = scene.replicas(1)
    scene.hit(first)
    scene.pause()
    scene.end("store")


def web_and_sentinel(scene: Scene) -> None:
    """Both eyes of the control plane in mid-recovery."""
    (first,) = scene.replicas(1)
    scene.hit(first)
    scene.pause()
    scene.end("web-1", "sentinel")


def redis_and_worker(scene: Scene) -> None:
    """Its queue and its hands in mid-recovery."""
    (first,) = scene.replicas(1)
    scene.hit(first)
    scene.pause()
    scene.end("redis", "worker")


def clock_step(scene: Scene) -> None:
    """The server's wall clock is set back in mid-recovery, and right again in the next such round."""
    if scene.clock is None:
        scene.left_out.append("clock step: there is no C compiler")
        return two_kills(scene)
    (first,) = scene.replicas(1)
    scene.hit(first)
    scene.pause()
    set_clock(scene.clock, 0 if offset_s(scene.clock) else -CLOCK_STEP_S)


def storage_stall(scene: Scene) -> None:
    """Nothing can be written where checkpoints lie; two replicas die meanwhile."""
    if scene.frozen is None:
        scene.left_out.append("storage stall: no file system may be mounted here")
        return two_kills(scene)
    freeze(scene.frozen, STALL_S)
    scene.did(Injected(what=STALLED, at_s=time.time()))
    first, second = scene.replicas(2)
    scene.hit(first, stalled=True)
    scene.pause()
    scene.hit(second, stalled=True)


def xid_and_kill(scene: Scene) -> None:
    """A device falls off the bus under a replica, another one dies."""
    first, second = scene.replicas(2)
    node = scene.node_of(first)
    held = [d["index"] for d in node["devices"] if d["held_by"]]
    target = {"node_id": node["id"], "device_index": scene.chance.choice(held)}
    scene.did(Injected(what="fell off the bus", at_s=time.time(), node=node["name"], device=target["device_index"]))
    scene.running.driver.post("/demo/faults", {"kind": "xid", "value": FALLEN_OFF_THE_BUS, **target})
    scene.healing.append(lambda: scene.running.driver.post("/demo/faults", {"kind": "heal_device", **target}))
    scene.pause()
    scene.hit(second)


ROUNDS: dict[str, Callable[[Scene], None]] = {
    rule.__name__: rule
    for rule in (
        two_kills, kill_and_hang, three_with_the_joiner, whole_node, agent_alone, store, web_and_sentinel,
        redis_and_worker, clock_step, storage_stall, xid_and_kill,
    )
}  # fmt: skip


def is_held(pid: int) -> bool:
    """It was killed, and is there still: a thread of it is in a sleep that no signal ends."""
    time.sleep(HELD_S)
    try:
        return any("State:\tD" in path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/status"))
    except OSError:
        return False


def set_clock(path: Path, offset_s: int) -> None:
    """The wall clock of every process that looks at this file, at once; monotonic clocks go on."""
    with path.open("r+b" if path.exists() else "w+b") as file:
        file.write(struct.pack("=q", offset_s))


def leave_clock_set(scene: Scene) -> None:
    """All figures are read with the clock as it is not when the job begins: what is off by it does not cancel."""
    if scene.clock is not None and not offset_s(scene.clock):
        set_clock(scene.clock, -CLOCK_STEP_S)


def offset_s(path: Path) -> int:
    """What it was set to."""
    return int(struct.unpack("=q", path.read_bytes())[0])


def clock_environment(folder: Path) -> tuple[Path | None, dict[str, str]]:
    """The clock's file, and what a process needs to look at it; (None, nothing) without a C compiler."""
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    path, library, compiler = folder / "clock", folder / "stepped_clock.so", shutil.which("cc")
    if compiler is None:
        return None, {}
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", library, CLOCK_SOURCE, "-ldl"], check=True)
    set_clock(path, 0)
    return path, {"LD_PRELOAD": str(library), "HOLDFAST_BENCH_CLOCK": str(path)}


def freeze(folder: Path, seconds: float) -> None:
    """Writers wait; thawed by a process of its own, whatever becomes of this one."""
    subprocess.run(["fsfreeze", "-f", folder], check=True)
    subprocess.Popen(["sh", "-c", f'sleep {seconds}; fsfreeze -u "$0"', folder], start_new_session=True)


@contextmanager
def own_file_system(directory: Path) -> Iterator[Path | None]:
    """A file system of its own on `directory`/checkpoints, that can be frozen; None where none may be mounted."""
    folder, image = directory / "checkpoints", directory / "checkpoints.img"
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(IMAGE_MB << 20)
    made = shutil.which("mkfs.ext4") and shutil.which("fsfreeze")
    commands = (["mkfs.ext4", "-q", image], ["mount", "-o", "loop", image, folder])
    if not made or any(subprocess.run(c, capture_output=True, check=False).returncode for c in commands):
        yield None
        return
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        subprocess.run(["fsfreeze", "-u", folder], capture_output=True, check=False)
        subprocess.run(["umount", "-l", folder], capture_output=True, check=False)
