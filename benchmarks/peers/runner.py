"""Kills ranks of a running peer from outside and measures what each kill cost.

Called by `torchrun.py` and `torchft.py`, which say how their ranks are started. The
runner reads the ranks' record files and never talks to them.
"""

import json
import random
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from benchmarks.effective import Ettr, ettr
from benchmarks.outages import Kill, Outage, is_full_again, normal_step_s, outage, progress
from benchmarks.processes import Processes, signal_exactly, start_ticks
from benchmarks.records import Reader, Record

POLL_S = 0.02
START_TIMEOUT_S = 180.0
KILL_TIMEOUT_S = 180.0


class PeerFailed(RuntimeError):
    """The peer did not start, or did not come back; the text holds its own words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """`kills` ranks, one at a time, each after `calm_steps` undisturbed steps at full strength."""

    name: str
    kills: int
    seed: int
    replicas: int
    ranks: int
    calm_steps: int = 12
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Result:
    """One peer's run."""

    name: str
    normal_s: float
    outages: list[Outage]
    losses: dict[int, float]
    facts: dict[str, Any]
    effective: Ettr | None = None

    def write(self, path: Path) -> None:
        """JSON for `benchmarks.g7_stall`."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")


class Body(Protocol):
    """What is done to a peer once its launchers are started."""

    def __call__(self, plan: Plan, *, processes: Processes, directory: Path) -> Result:
        """`directory` holds the record files. Raises PeerFailed."""


def run(plan: Plan, *, processes: Processes, directory: Path) -> Result:
    """Kill and measure. Raises PeerFailed."""
    chance = random.Random(plan.seed)
    reader = Reader(directory)
    kills: list[Kill] = []
    try:
        _wait(reader, processes, lambda: _is_calm(reader.records, plan, 0.0), START_TIMEOUT_S, "start training")
        normal_s = normal_step_s(_settled(reader.records), until_s=time.monotonic())
        for _ in range(plan.kills):
            kill = _kill_one(reader, plan, chance, normal_s)
            kills.append(kill)
            _wait(reader, processes, lambda: _is_calm_after(reader.records, plan, kills[-1]), KILL_TIMEOUT_S, "recover")
    finally:
        _end_ranks(reader)
    found = [outage(reader.records, kill, replicas=plan.replicas, normal_s=normal_s) for kill in kills]
    losses = {item.step: item.loss for item in reader.records if item.loss is not None and item.step <= plan.calm_steps}
    return Result(
        name=plan.name, normal_s=normal_s, outages=[item for item in found if item is not None],
        losses=losses, facts=plan.facts,
    )  # fmt: skip


def run_disturbed(
    plan: Plan, *, processes: Processes, directory: Path, calm_s: float, minutes: float, every_s: float
) -> Result:
    """Kill a random living rank every `every_s` seconds for `minutes`, after `calm_s`
    undisturbed seconds, whether or not the last recovery is over. Raises PeerFailed."""
    chance = random.Random(plan.seed)
    reader = Reader(directory)
    try:
        _wait(reader, processes, lambda: _is_calm(reader.records, plan, 0.0), START_TIMEOUT_S, "start training")
        calm_until_s = time.monotonic() + calm_s
        end_s = calm_until_s + minutes * 60.0
        next_s, kills = calm_until_s, 0
        while next_s < end_s:
            time.sleep(max(0.0, next_s - time.monotonic()))
            reader.poll()
            kills += _kill_any(reader.records, chance)
            next_s += every_s
        time.sleep(max(0.0, end_s - time.monotonic()))
        reader.poll()
    finally:
        _end_ranks(reader)
    effective = ettr(reader.records, replicas=plan.replicas, calm_until_s=calm_until_s, end_s=end_s)
    facts = plan.facts | {"kills": kills}
    return Result(name=plan.name, normal_s=effective.normal_s, outages=[], losses={}, facts=facts, effective=effective)


def _kill_any(records: list[Record], chance: random.Random) -> int:
    """SIGKILL one of the ranks that live; 0 when none does."""
    living = [item for item in records if item.kind == "start" and start_ticks(item.pid) == item.ticks]
    if not living:
        return 0
    victim = chance.choice(living)
    return int(signal_exactly(victim.pid, victim.ticks, signal.SIGKILL))


def _kill_one(reader: Reader, plan: Plan, chance: random.Random, normal_s: float) -> Kill:
    """SIGKILL a random rank at a random moment of the step in progress."""
    replica, rank = chance.randrange(plan.replicas), chance.randrange(plan.ranks)
    seen = len(progress(reader.records))
    while len(progress(reader.records)) == seen:
        reader.poll()
        time.sleep(POLL_S / 4)
    time.sleep(chance.uniform(0.2, 0.8) * normal_s)
    starts = [item for item in reader.records if item.kind == "start" and (item.replica, item.rank) == (replica, rank)]
    victim = max(starts, key=lambda item: item.at_s)
    at_s = time.monotonic()
    if not signal_exactly(victim.pid, victim.ticks, signal.SIGKILL):
        raise PeerFailed(f"rank {rank} of replica {replica} was gone before it was killed")
    return Kill(at_s=at_s, replica=replica, rank=rank, pid=victim.pid)


def _is_calm(records: list[Record], plan: Plan, since_s: float) -> bool:
    commits = [item for item in progress(records) if item.at_s > since_s and item.contributors == plan.replicas]
    return len(commits) > plan.calm_steps


def _is_calm_after(records: list[Record], plan: Plan, kill: Kill) -> bool:
    full_at_s = is_full_again(records, kill, replicas=plan.replicas)
    return full_at_s is not None and _is_calm(records, plan, full_at_s)


def _settled(records: list[Record]) -> list[Record]:
    """Without the first two steps: they carry the first-use costs of every library."""
    return [item for item in records if item.step > 2]


def _wait(reader: Reader, processes: Processes, ready: Callable[[], bool], timeout_s: float, what: str) -> None:
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        if reader.poll() and ready():
            return
        ended = processes.ended()
        if ended:
            raise PeerFailed(f"{ended[0]} ended:\n{processes.tail(ended[0])}")
        time.sleep(POLL_S)
    raise PeerFailed(f"did not {what} within {timeout_s:.0f} s; see {reader.directory}")


def _end_ranks(reader: Reader) -> None:
    """Launchers start ranks in sessions of their own, so they are ended one by one."""
    reader.poll()
    for item in reader.records:
        if item.kind == "start":
            signal_exactly(item.pid, item.ticks, signal.SIGKILL)
