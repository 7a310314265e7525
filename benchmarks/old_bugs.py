"""Faults of old, put back one by one: which the seeds find, after how many.

    python -m benchmarks bugs [--seeds 300] [--seconds 600] [--processes 2] [--only NAME,...] [--mixed FIRST]

Each is put into a copy of the source, in one place, and the simulator runs seed after seed there until a checker
speaks. A seed counts where the source as it stands passes it. A place that is not there once ends the benchmark: the
source has moved on, and the fault must be written anew. With `--mixed` all seeds are of the mixed schedule, from FIRST
on, and of a fault that is not found it is counted in how many worlds it changed anything.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.report import Report
from controlplane.simulator import mixed
from controlplane.simulator.world import Outcome, World

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("agents", "benchmarks", "controlplane", "trainer")
SEARCH = """import json, sys
from benchmarks import old_bugs
print(json.dumps(old_bugs.search(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))))"""
FIRST_SEED = 910_000
ENOUGH = 2
"""A seed that fails without the fault too does not count; after so many no more are looked for."""
LOST, REPEATED, DELAY_S = 0.2, 0.2, 0.3
MIXES = ("mixed", "mixed", "bad network", "clocks", "mixed", "mixed", "mixed", "many faults")
"""In turn; see `outcome`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """`old` is replaced by `new` in the file `path`; `finding`: where it was found, "" where in a test."""

    name: str
    path: str
    old: str
    new: str
    finding: str = ""


BUGS = (
    Bug(
        name="one speed",
        finding="P18, R30: who is silent is ended as soon as the others wait, and not left out first",
        path="controlplane/policy/silence.py",
        old="reversible=not over,",
        new="reversible=False,",
    ),
    Bug(
        name="a guess is ended",
        finding="P10: a failed exchange that names nobody ends the lowest that complained",
        path="controlplane/policy/failures.py",
        old="reversible=spared,",
        new="reversible=False,",
    ),
    Bug(
        name="never void",
        finding="P1: a rank that was late once and trains again is evicted minutes later",
        path="controlplane/policy/void.py",
        old="    return _moved_since(snapshot, signal, replica)",
        new="    return False",
    ),
    Bug(
        name="any error accuses who is silent",
        finding="P10: an exchange error that names one replica evicts a node that missed two frames as well",
        path="controlplane/policy/silence.py",
        old="    if not errors or named:\n        return replica.index in named\n",
        new="    if errors:\n        return True\n",
    ),
    Bug(
        name="blind and sure",
        path="controlplane/policy/failures.py",
        old="detectors = PROVED if snapshot.blind else (*PROVED, *INFERRED)",
        new="detectors = (*PROVED, *INFERRED)",
    ),
    Bug(
        name="a lease that progress does not renew",
        path="controlplane/policy/silence.py",
        old="        if progressed_s is not None and snapshot.now_s - progressed_s < limit_s:",
        new="        if False:",
    ),
    Bug(
        name="a lost connection is a lost node",
        path="controlplane/policy/silence.py",
        old="    return not node.connected and node.silent_s is not None and node.silent_s >= limit_s",
        new="    return not node.connected",
    ),
    Bug(
        name="others wait by an old word",
        path="controlplane/policy/silence.py",
        old="other.waiting and heard_s(snapshot, other) - began_s >= config.witness_s / 2.0 for",
        new="other.waiting for",
    ),
    Bug(
        name="orders lost with a full disk",
        path="agents/core/commands.py",
        old="if event.error and not isinstance(command.envelope.body, REPEATABLE):",
        new="if event.error:",
    ),
    Bug(
        name="a newer view does not end the building of an older group",
        path="trainer/core/rank.py",
        old="INTERRUPTIBLE = frozenset({Stage.BUILDING, ",
        new="INTERRUPTIBLE = frozenset({",
    ),
    Bug(
        name="an old install is entered after a newer answer",
        path="trainer/core/rank.py",
        old="stands=self.answered <= view.epoch",
        new="stands=True",
    ),
    Bug(
        name="ranks of a replica enter different views",
        path="trainer/core/rank.py",
        old="return self._confirm() if same else self._wait()",
        new="return self._confirm()",
    ),
    Bug(
        name="who returns commits what it had prepared",
        path="trainer/core/rank.py",
        old="ahead = standing.prepared and not standing.returns_in(view) and",
        new="ahead = standing.prepared and",
    ),
    Bug(
        name="who is left out counts still",
        path="controlplane/changes/replicas.py",
        old='"contributing": False, "caught_up": None, "times_out"',
        new='"caught_up": None, "times_out"',
    ),
    Bug(
        name="a leap of the clock accuses ranks",
        path="agents/core/step.py",
        old="    away.notice(turn)\n",
        new="",
    ),
    Bug(
        name="a command is closed before its answer is kept",
        path="agents/core/turn.py",
        old="        self.report(answer_of(answered))\n        if stage not in OPEN_STAGES:\n",
        new="        if stage not in OPEN_STAGES:\n"
        "            self.do(Persist(CommandClosed(command_id, stage.value, detail, data)))\n"
        "        self.report(answer_of(answered))\n"
        "        if False:\n",
    ),
    Bug(
        name="a rank that came up is kept before it is told",
        path="agents/core/relay.py",
        old="    if joins:\n        # The fact first",
        new="    if joins:\n        turn.put_rank(replace(rank, joined=True), keep=True)\n        # The fact first",
    ),
    Bug(
        name="micro-batches are parted",
        path="controlplane/policy/stuck.py",
        old="whole = math.ceil(count / computing) / max(1, math.ceil(count / usual))",
        new="whole = 0.0 * math.ceil(count)",
    ),
    Bug(
        name="who counts since a moment ago has a share",
        path="controlplane/policy/stuck.py",
        old="sum(_has_a_share(snapshot, each) for each",
        new="sum(contributes(snapshot, each) for each",
    ),
)


@cache
def outcome(mix: str, seed: int) -> Outcome:
    """Of one seed."""
    if mix == "mixed":
        return mixed.run(seed)
    world = World(seed)
    if mix == "clocks":
        return world.run(2, stills=2, leaps=4)
    if mix == "many faults":
        return world.run(24, orders=2)
    world.network.loss, world.network.repeat, world.network.extra_delay_s = LOST, REPEATED, DELAY_S
    # Where a fifth of all messages is lost for good nothing is owed but that nobody healthy is ended.
    lossy = world.run(4)
    return replace(lossy, violations=tuple(line for line in lossy.violations if "I-evict" in line))


def search(seeds: int, seconds: float, first: int) -> dict[str, Any]:
    """In this tree: the first seeds with a violation, and how each other world went. The mixes in turn where `first`
    is 0, else mixed seeds from `first` on."""
    found: list[dict[str, Any]] = []
    began_s, tapes = time.monotonic(), list[str]()
    while len(tapes) < seeds and len(found) < ENOUGH and time.monotonic() - began_s < seconds:
        count = len(tapes)
        mix, seed = ("mixed", first + count) if first else (MIXES[count % len(MIXES)], FIRST_SEED + count)
        try:
            came = outcome(mix, seed)
        except Exception as error:
            came = Outcome.broken(seed, f"{type(error).__name__}: {error}")
        tapes.append(came.digest)
        if came.violations:
            found.append({"mix": mix, "seed": seed, "after": count + 1, "violation": came.violations[0][:200]})
    return {"found": found, "tapes": tapes}


def put_back(bug: Bug, copy: Path) -> None:
    """Into the copy. Raises ValueError where its place is not there once."""
    path = copy / bug.path
    text = path.read_text()
    if text.count(bug.old) != 1:
        raise ValueError(f"{bug.name}: {bug.path} has {text.count(bug.old)} places {bug.old!r}, one is needed")
    path.write_text(text.replace(bug.old, bug.new))


def hunt(bug: Bug, seeds: int, seconds: float, first: int) -> dict[str, Any]:
    """What the seeds find of it, beyond what they find without it."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in COPIED:
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "static", "results"))
        put_back(bug, copy)
        done = subprocess.run(
            [sys.executable, "-c", SEARCH, str(seeds), str(seconds), str(first)],
            cwd=copy,
            capture_output=True,
            text=True,
            check=True,
        )
    searched: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    found = (each for each in searched["found"] if not outcome(each["mix"], each["seed"]).violations)
    tapes: list[str] = searched["tapes"]
    missed: dict[str, Any] = {"after": f"not found by {len(tapes)} seeds"}
    once = next(found, None)
    if once is None and first:
        missed["changed"] = sum(outcome("mixed", first + i).digest != tape for i, tape in enumerate(tapes))
    return once or missed


def main(argv: list[str]) -> int:
    """Exit code 1 where fewer than five are found."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks bugs", description=__doc__)
    parser.add_argument("--seeds", type=int, default=300, help="at most so many for each fault")
    parser.add_argument("--seconds", type=float, default=600.0, help="at most so long for each fault")
    parser.add_argument("--processes", type=int, default=1, help="so many faults at a time")
    parser.add_argument("--only", default="", help="names, with commas")
    parser.add_argument("--mixed", type=int, default=0, metavar="FIRST", help="mixed seeds alone, from this one on")
    options = parser.parse_args(argv)
    report = Report(goal_id="bugs", title="Faults of old, put back one by one")
    wanted = [bug for bug in BUGS if not options.only or bug.name in options.only.split(",")]
    found: dict[str, Any] = {}

    def one(bug: Bug) -> dict[str, Any]:
        return {"finding": bug.finding, **hunt(bug, options.seeds, options.seconds, options.mixed)}

    with ThreadPoolExecutor(options.processes) as pool:
        for bug, result in zip(wanted, pool.map(one, wanted), strict=True):
            found[bug.name] = result
            print(f"{bug.name}: {result}", flush=True)
    count = sum("seed" in each for each in found.values())
    report.add("found", "count", [count], goal="5, two of them published findings")
    report.facts |= {
        "seeds at most": options.seeds,
        "seconds at most": options.seconds,
        "mixed from": options.mixed,
        "faults": found,
    }
    report.finish()
    return 0 if count >= min(5, len(wanted)) else 1
