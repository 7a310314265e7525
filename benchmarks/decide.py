"""How long one decision takes, by the size of the job: pure code, then from event to commit on both databases.

Each moment is built anew for each decision, so that nothing is kept from the one before. The
worlds are those of `benchmarks.decide_worlds`; the tests count what is called in the same ones. Then
`benchmarks.decide_commits` on SQLite and on a private PostgreSQL.

    python -m benchmarks decide [--repeats 20] [--no-rows]
"""

import argparse
import gc
import subprocess
import sys
import time

from benchmarks.decide_worlds import MOMENTS, Size
from benchmarks.report import Report
from controlplane.policy.config import PolicyConfig
from controlplane.policy.decide import decide

SIZES = (Size(6, 8), Size(100, 8), Size(1_000, 8), Size(12, 8_192))
GOALS_MS = {Size(1_000, 8): 100.0, Size(12, 8_192): 250.0}


def main(argv: list[str]) -> int:
    """Prints a table; 0 if the medians meet the goals."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--no-rows", action="store_true", help="the pure code alone")
    options = parser.parse_args(argv)
    repeats = max(1, options.repeats)
    report = Report(goal_id="decide", title="one decision, by the size of the job")
    met = True
    for name in MOMENTS:
        for size in SIZES:
            times = [_decided_ms(name, size) for _ in range(repeats)]
            goal_ms = GOALS_MS.get(size)
            report.add(f"{name}, {size}", "ms", times, goal=f"< {goal_ms:g}" if goal_ms else "")
            met = met and (goal_ms is None or sorted(times)[len(times) // 2] < goal_ms)
    report.facts["decisions of each"] = repeats
    report.finish()
    on = [] if options.no_rows else [[], ["--postgres"]]
    rows = [
        subprocess.call([sys.executable, "-m", "benchmarks.decide_commits", *where, "--repeats", str(repeats)])
        for where in on
    ]
    return 0 if met and not any(rows) else 1


def _decided_ms(name: str, size: Size) -> float:
    snapshot = MOMENTS[name](size)
    gc.collect()
    began_s = time.perf_counter()
    decide(snapshot, PolicyConfig())
    return (time.perf_counter() - began_s) * 1000.0
