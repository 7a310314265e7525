"""What grows: the production shape under a fleet for hours, sampled each minute.

    python -m benchmarks soak [--agents 1000] [--interval 10] [--minutes 120] [--xids 60] [--out var/bench/soak.jsonl]

The fleet is that of `holdfast bench fleet` (real enrolment, sessions, frames, faults), against PostgreSQL, Redis, web,
sentinel, worker and beat. A sample is a line of `--out` as soon as it is made: memory of each service (PSS with its
children), rows and bytes of each table, what Redis holds and has on disk, files of the state directory. Of each figure
the slope over the second half is printed, when the fleet has settled, and where it would be after 30 days of this;
readings, events and the others have an end by their retention (docs/settings.md), which is longer than this run, so
what is on disk may grow by its stated size, and memory may not grow. `--sum` makes the table of a file alone.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.report import Report
from controlplane.bench.report import table
from controlplane.bench.run import Wanted, run
from controlplane.bench.script import Faults, Fleet
from controlplane.bench.stack import Stack
from controlplane.bench.watched import uses

DAY_S, MIB = 86_400.0, 2**20
DAYS = 30
TABLES = "SELECT relname, n_live_tup, pg_total_relation_size(relid) FROM pg_stat_user_tables"
SHOWN_BYTES_A_DAY = MIB
"""A table that grows by less is summed up with the others."""
Sample = dict[str, float]


def main(argv: list[str]) -> int:
    """0: the fleet was carried to its end, and its figures are not refused."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks soak", description=__doc__)
    parser.add_argument("--agents", type=int, default=1000)
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--interval", type=float, default=10.0, help="seconds between two frames of an agent")
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--sample-s", type=float, default=60.0)
    parser.add_argument("--xids", type=int, default=60)
    parser.add_argument("--storm", type=int, default=2, help="times that half the fleet drops its sessions at once")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("var/bench/soak.jsonl"))
    parser.add_argument("--sum", action="store_true", help="run nothing; the table of what the file has")
    options = parser.parse_args(argv)
    code = 0
    if not options.sum:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text("")
        outcome = run(_wanted(options), lambda text: print(text, flush=True))
        print(table(outcome), flush=True)
        code = 1 if outcome.ended else 0
    samples = [json.loads(line) for line in options.out.read_text().splitlines()]
    _report(samples, options)
    return code


def _wanted(options: argparse.Namespace) -> Wanted:
    faults = Faults(
        xids=options.xids, heated=options.agents // 100, silent=options.agents // 50, late_ratio=0.01,
        drops=options.storm,
    )  # fmt: skip
    fleet = Fleet(
        agents=options.agents, devices=options.devices, interval_s=options.interval,
        duration_s=options.minutes * 60.0, seed=options.seed, faults=faults,
    )  # fmt: skip
    began_s: list[float] = []

    def sample(stack: Stack) -> None:
        now_s = time.monotonic()
        began_s.append(now_s)
        with options.out.open("a") as file:
            file.write(json.dumps({"at_s": now_s - began_s[0], **sampled(stack)}) + "\n")

    return Wanted(fleet=fleet, watch=sample, watch_each_s=options.sample_s)


def sampled(stack: Stack) -> Sample:
    """Bytes and rows by name, as they are now."""
    found = {f"memory {name}": float(use.memory_bytes) for name, use in uses(stack.pids()).items()}
    with psycopg.connect(stack.env["HOLDFAST_DATABASE_URL"], autocommit=True) as connection:
        for name, rows, size in connection.execute(TABLES).fetchall():
            found |= {f"rows {name}": float(rows), f"bytes {name}": float(size)}
    files = [path for path in stack.directory.rglob("*") if path.is_file() and not path.is_symlink()]
    logs = stack.directory / "logs"
    found["files logs"] = float(sum(map(_size, (path for path in files if logs in path.parents))))
    found["files others"] = float(sum(map(_size, (path for path in files if logs not in path.parents))))
    return found


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def slope_a_day(samples: list[dict[str, Any]], name: str) -> float | None:
    """Of the second half, by least squares; None: fewer than three samples have it."""
    half_s = samples[-1]["at_s"] / 2.0
    seen = [(sample["at_s"], sample[name]) for sample in samples if name in sample and sample["at_s"] >= half_s]
    if len(seen) < 3:
        return None
    at_s, values = zip(*seen, strict=True)
    return statistics.linear_regression(at_s, values).slope * DAY_S


def _report(samples: list[dict[str, Any]], options: argparse.Namespace) -> None:
    report = Report(goal_id="soak", title=f"What grows in {samples[-1]['at_s'] / 60.0:.0f} minutes")
    names = sorted({name for sample in samples for name in sample if name != "at_s"})
    print(f"\n| | first | last | a day | after {DAYS} days |\n|---|---|---|---|---|")
    small = (0.0, 0.0, 0.0)
    for name in names:
        values = [sample[name] for sample in samples if name in sample]
        slope = slope_a_day(samples, name)
        kind = name.split()[0]
        if slope is None or (kind == "rows" and not values[-1]):
            continue
        if kind == "bytes" and abs(slope) < SHOWN_BYTES_A_DAY:
            small = (small[0] + values[0], small[1] + values[-1], small[2] + slope)
            continue
        unit = "rows" if kind == "rows" else "MiB"
        if kind != "rows" or slope:
            _line(name, values[0], values[-1], slope, unit)
        if kind in ("memory", "files"):
            report.add(name, unit, [value / MIB for value in values])
    _line("bytes other tables", *small, "MiB")
    node_days = options.agents * (samples[-1]["at_s"] - samples[0]["at_s"]) / DAY_S
    total = sum(sample for name, sample in samples[-1].items() if name.startswith("bytes "))
    first = sum(sample for name, sample in samples[0].items() if name.startswith("bytes "))
    print(f"\nTables grew by {(total - first) / MIB:.1f} MiB, {(total - first) / node_days / MIB:.2f} MiB a node-day.")
    report.facts |= {
        "agents": options.agents, "devices": options.devices, "interval_s": options.interval,
        "minutes": samples[-1]["at_s"] / 60.0, "samples": len(samples),
        "a day": {name: slope for name in names if (slope := slope_a_day(samples, name))},
        "bytes a node-day": (total - first) / node_days,
    }  # fmt: skip
    report.finish()


def _line(name: str, first: float, last: float, slope: float, unit: str) -> None:
    by = 1.0 if unit == "rows" else MIB
    after = last + slope * DAYS
    print(f"| {name} | {first / by:,.1f} | {last / by:,.1f} | {slope / by:+,.1f} | {after / by:,.0f} {unit} |")


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except subprocess.CalledProcessError as error:
        sys.exit(str(error))
