"""What one step of a job costs the server: each node's reports of it applied, by the size of the job.

    python -m benchmarks steps [--ranks 6,64,1024,16384] [--steps 20] [--nodes 0] [--postgres]

A job trains at a step a second on nodes of eight devices, in replicas of eight ranks (two, of the smallest). Each node
sends what its ranks report in one batch, as its agent does: each step, or of a large job the steps that it gathered,
every node when it is its turn. Each batch is applied by `recovery.ingest` to its commit. Printed is, once as many steps
lie behind as are kept in parts, processor time of this process, and of the database's where that is another one, for a
whole step and for a batch; how many statements a batch makes; and how many bytes the step leaves behind once it is
over. `--nodes`: so many nodes report, and a whole step is reckoned from them; 0: all of them.
"""

import argparse
import time
from dataclasses import dataclass, field
from typing import Any

from benchmarks.own_database import own_database
from benchmarks.report import Report

GOAL_CPU_S = 1.0
"""Of the largest job: a step a second has room on one core, beside everything else on the other."""


@dataclass
class Spent:
    """Of each counted step."""

    ours_s: list[float] = field(default_factory=list)
    database_s: list[float] = field(default_factory=list)
    batch_ms: list[float] = field(default_factory=list)
    statements: list[float] = field(default_factory=list)
    bytes: list[float] = field(default_factory=list)


def main(argv: list[str]) -> int:
    """Prints a table; 0 if a step of the largest job meets its goal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="6,64,1024,16384")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--nodes", type=int, default=0)
    parser.add_argument("--postgres", action="store_true", help="on a private PostgreSQL instead of SQLite")
    options = parser.parse_args(argv)
    where = "PostgreSQL" if options.postgres else "SQLite"
    report = Report(goal_id="steps", title=f"one step of a job, reported by all its nodes, {where}")
    with own_database(postgres=options.postgres):
        spent = [
            _measure(int(ranks), max(1, options.steps), options.nodes, report) for ranks in options.ranks.split(",")
        ]
    report.finish()
    last = spent[-1]
    steps = zip(last.ours_s, last.database_s, strict=True)
    return 0 if sorted(map(sum, steps))[len(last.ours_s) // 2] <= GOAL_CPU_S else 1


def _measure(ranks: int, steps: int, nodes: int, report: Report) -> Spent:
    from benchmarks.step_rows import STEP_S, Training

    training, spent = Training(ranks), Spent()
    reporting = min(nodes, training.nodes) or training.nodes
    share = training.nodes / reporting
    for _ in range(training.warm_up):
        training.report(reporting)
        training.age(STEP_S)
    for _ in range(steps):
        database_s, began_s = training.database_s(), time.process_time()
        batches = training.report(reporting)
        spent.ours_s.append((time.process_time() - began_s) * share)
        spent.database_s.append((training.database_s() - database_s) * share)
        spent.batch_ms += [each.ours_s * 1000.0 for each in batches]
        spent.statements += [float(each.statements) for each in batches]
        training.age(STEP_S)
    counted = range(training.warm_up, training.warm_up + steps)
    training.settle()
    spent.bytes += [float(training.bytes_of(step)) for step in counted]
    _add(report, f"{ranks:6d} ranks", spent, f"{reporting} of {training.nodes} nodes" if share > 1.0 else "")
    return spent


def _add(report: Report, name: str, spent: Spent, note: str) -> None:
    rows: tuple[tuple[str, str, list[Any]], ...] = (
        ("a whole step", "CPU-s", spent.ours_s),
        ("a whole step, the database's process", "CPU-s", spent.database_s),
        ("a node's batch", "CPU-ms", spent.batch_ms),
        ("a node's batch", "statements", spent.statements),
        ("what a step leaves", "bytes", spent.bytes),
    )
    for what, unit, values in rows:
        goal = f"<= {GOAL_CPU_S:g}" if values is spent.ours_s else ""
        report.add(f"{name}: {what}", unit, values, goal=goal, note=note)
