"""What the peers' command lines share: options, a scratch directory, the table."""

import argparse
import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.peers import workload
from benchmarks.peers.runner import Result
from benchmarks.processes import REPOSITORY
from benchmarks.report import Report


def parser(text: str | None) -> argparse.ArgumentParser:
    """Options that every peer has."""
    options = argparse.ArgumentParser(description=text)
    options.add_argument("--kills", type=int, default=5, help="ranks to kill, one at a time")
    options.add_argument("--seed", type=int, default=7, help="which ranks, and when in the step")
    options.add_argument("--delay-s", type=float, default=workload.DELAY_S, help="sleep added to each micro-batch")
    options.add_argument("--calm-steps", type=int, default=12, help="undisturbed steps before each kill")
    options.add_argument("--json", type=Path, help="write the result here")
    return options


@contextlib.contextmanager
def scratch(name: str) -> Iterator[Path]:
    """A new directory under var/peers; kept when the run fails, so that its logs can be read."""
    root = REPOSITORY / "var" / "peers"
    root.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=root))
    yield directory
    shutil.rmtree(directory)


def finish(result: Result, args: argparse.Namespace) -> int:
    """Write the JSON, print the table."""
    if args.json:
        result.write(args.json)
    print(table(result).table())
    return 0


def table(result: Result) -> Report:
    """One peer's figures; not written to the results of the goals."""
    report = Report(goal_id=result.name, title="cost of one killed rank", facts=dict(result.facts))
    report.add("normal step", "s", [result.normal_s])
    for name, unit in COLUMNS:
        report.add(name.replace("_", " "), unit, [getattr(item, name) for item in result.outages])
    return report


COLUMNS = (
    ("stall_s", "s"),
    ("rejoin_s", "s"),
    ("full_s", "s"),
    ("lost_s", "s"),
    ("redone", "steps"),
    ("discarded", "steps"),
    ("skipped", "global batches"),
)
