"""From an agent's event to the commit of what was decided, by the size of the job, on one database.

    python -m benchmarks.decide_commits [--postgres] [--sizes 6x8,12x64] [--repeats 20]

`python -m benchmarks decide` runs it on both. What is measured: `benchmarks.decide_passes`.
"""

import argparse
import sys

from benchmarks.decide_worlds import Size
from benchmarks.own_database import own_database
from benchmarks.report import Report

SIZES = "6x8,100x8,1000x8,12x64,12x512,12x8192"
GOAL_MS = {Size(12, 8_192): 1_000.0}
"""Load, decide and commit of one eviction in a job of a hundred thousand ranks: of the view without the replica. What
starts its successor is committed behind it, and measured apart."""


def main(argv: list[str]) -> int:
    """Prints a table; 0 if the medians meet the goals."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--postgres", action="store_true", help="on a private PostgreSQL instead of SQLite")
    parser.add_argument("--sizes", default=SIZES)
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args(argv)
    sizes = [Size(*map(int, text.split("x"))) for text in options.sizes.split(",")]
    where = "PostgreSQL" if options.postgres else "SQLite"
    name = "decide-postgres" if options.postgres else "decide-sqlite"
    report = Report(goal_id=name, title=f"from event to commit, by the size of the job, {where}")
    met = True
    with own_database(postgres=options.postgres):
        for size in sizes:
            met = _measure(size, max(1, options.repeats), report) and met
    report.finish()
    return 0 if met else 1


def _measure(size: Size, repeats: int, report: Report) -> bool:
    from django.core.management import call_command

    from benchmarks.decide_passes import Run

    # Of the size before, nothing is left.
    call_command("flush", verbosity=0, interactive=False)
    run = Run(size)
    run.evict(repeats)
    goal_ms = GOAL_MS.get(size)
    for part, seconds in run.seconds.items():
        shown = f"< {goal_ms:g}" if goal_ms and part == "load, decide and commit" else ""
        report.add(f"{size}: {part}", "ms", [second * 1000.0 for second in seconds], goal=shown)
    report.add(f"{size}: a look that decides nothing", "ms", [second * 1000.0 for second in run.look_s])
    report.add(f"{size}: queries of the pass", "", run.queries)
    passes = sorted(run.seconds["load, decide and commit"])
    return goal_ms is None or passes[len(passes) // 2] * 1000.0 < goal_ms


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
