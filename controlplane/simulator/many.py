"""Seed after seed by the same options, over several processes: each seed is a world of its own."""

import multiprocessing
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

from controlplane.simulator import crowd, mixed
from controlplane.simulator.extras import Extras
from controlplane.simulator.world import NONE, Outcome, World

PROGRAM = "python -m controlplane.simulator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Of every seed. `is_mixed`: what its world is and meets is drawn, and nothing else here counts but `jobs`: how
    many it has (0: that is drawn too)."""

    faults: int | None = None
    orders: int = 0
    stills: int = 0
    leaps: int = 0
    standing_by: int = 0
    extras: Extras = NONE
    is_mixed: bool = False
    jobs: int = 1

    def run(self, seed: int) -> Outcome:
        """Its world."""
        if self.is_mixed:
            return mixed.run(seed) if self.jobs == 1 else crowd.run(seed, self.jobs or None)
        world = World(seed, standing_by=self.standing_by)
        return world.run(self.faults, orders=self.orders, stills=self.stills, leaps=self.leaps, extras=self.extras)

    def shortly(self, seed: int) -> Outcome:
        """Without its tape. What a world raises is a violation."""
        try:
            return replace(self.run(seed), tape=())
        except Exception as error:
            return Outcome.broken(seed, f"{type(error).__name__}: {error}")

    def command(self, seed: int) -> str:
        """Which repeats one seed."""
        given = [] if self.faults is None else [("faults", self.faults)]
        given += [(name, getattr(self, name)) for name in ("orders", "stills", "leaps", "standing_by")]
        given += [(field.name, getattr(self.extras, field.name)) for field in fields(Extras)]
        words = [f"--{name.replace('_', '-')} {count}" for name, count in given if count or name == "faults"]
        jobs = [] if self.jobs == 1 else [f"--jobs {self.jobs}"]
        return " ".join([PROGRAM, f"--seed {seed}", *(["--mixed", *jobs] if self.is_mixed else words)])


def run(options: Options, seeds: Iterable[int], processes: int = 1) -> Iterator[Outcome]:
    """In the order of the seeds, whichever process has run them."""
    if processes <= 1:
        yield from map(options.shortly, seeds)
        return
    with multiprocessing.get_context("fork").Pool(processes, _ends_on_sigterm) as pool:
        yield from pool.imap(options.shortly, seeds, chunksize=4)


def _ends_on_sigterm() -> None:
    """A handler of the process that this one is a copy of would only note that it is to end."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def run_for(seconds: float, options: Options, seeds: Iterable[int], processes: int) -> list[Outcome]:
    """Those that come within so long, and one more."""
    began_s, outcomes = time.monotonic(), []
    for outcome in run(options, seeds, processes):
        outcomes.append(outcome)
        if time.monotonic() - began_s > seconds:
            break
    return outcomes


def check_of(violation: str) -> str:
    """The name of the check that a violation breaks."""
    return violation.partition(" ")[2].partition(":")[0] if violation[:1].isdigit() else violation.partition(":")[0]


def summary(options: Options, outcomes: list[Outcome], *, seconds: float, command: str) -> dict[str, Any]:
    """For a file: what was run, what has really happened, and what came of it."""
    return {
        "command": command,
        "seeds": len(outcomes),
        "wall_s": round(seconds, 1),
        "commits": sum(outcome.commits for outcome in outcomes),
        "evictions": sum(outcome.evictions for outcome in outcomes),
        "restarts": sum(outcome.restarts for outcome in outcomes),
        "ended_as": dict(sorted(Counter(outcome.state for outcome in outcomes).items())),
        "faults": dict(sorted(Counter(str(fault) for outcome in outcomes for fault in outcome.faults).items())),
        "violations": dict(sorted(Counter(check_of(v) for outcome in outcomes for v in outcome.violations).items())),
        "failed": [
            {"command": options.command(outcome.seed), "violations": list(outcome.violations[:3])}
            for outcome in outcomes
            if outcome.violations
        ],
    }
