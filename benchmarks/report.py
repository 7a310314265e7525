"""What every benchmark prints: machine, load, revision, n, median, p99, and the peer
measured in the same run. Results on CPU prove control-plane time and protocol
correctness, never NCCL or GPU speed."""

import json
import math
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
MIN_FOR_P99 = 100
MAX_KEPT = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """`values` of one quantity, in `unit`. p99 of fewer than 100 values is their maximum,
    and is labelled so."""

    name: str
    unit: str
    values: Sequence[float]
    goal: str = ""
    note: str = ""

    def summary(self) -> dict[str, Any]:
        """n, median, p99 (or max), min and max."""
        ordered = sorted(self.values)
        if not ordered:
            return {"n": 0, "median": None, "p99": None, "max": None}
        few = len(ordered) < MIN_FOR_P99
        return {
            "n": len(ordered),
            "median": quantile(ordered, 0.5),
            "p99": ordered[-1] if few else quantile(ordered, 0.99),
            "min": ordered[0],
            "max": ordered[-1],
            "p99_is_max": few,
        }


@dataclass(slots=True, kw_only=True)
class Report:
    """One run of one benchmark."""

    goal_id: str
    title: str
    rows: list[Row] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def add(self, name: str, unit: str, values: Sequence[float], *, goal: str = "", note: str = "") -> None:
        """Add one quantity."""
        self.rows.append(Row(name=name, unit=unit, values=tuple(values), goal=goal, note=note))

    def finish(self) -> Path:
        """Print the table, write the JSON, return its path."""
        print(self.table(), flush=True)
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"{self.goal_id.lower()}.json"
        body = {
            "goal": self.goal_id,
            "title": self.title,
            "machine": machine(),
            "facts": self.facts,
            "rows": [_kept(row) | row.summary() for row in self.rows],
        }
        path.write_text(json.dumps(body, indent=1, default=str) + "\n")
        return path

    def table(self) -> str:
        """Markdown, for docs/benchmarks.md."""
        here = machine()
        lines = [
            f"### {self.goal_id}: {self.title}",
            "",
            f"{here['cpu']}, {here['cores']} cores, load {here['load_1min']:.1f}, {here['python']}, {here['revision']}",
            "",
            "| quantity | n | median | p99 | max | unit | goal | note |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for row in self.rows:
            s = row.summary()
            p99 = f"{_short(s['p99'])} (max)" if s.get("p99_is_max") else _short(s["p99"])
            numbers = f"{s['n']} | {_short(s['median'])} | {p99} | {_short(s['max'])}"
            lines.append(f"| {row.name} | {numbers} | {row.unit} | {row.goal} | {row.note} |")
        lines += [f"- {name}: {value}" for name, value in self.facts.items()]
        return "\n".join(lines)


def _kept(row: Row) -> dict[str, Any]:
    """With its values, unless they are so many that their summary has to do."""
    return asdict(row) | ({"values": []} if len(row.values) > MAX_KEPT else {})


def quantile(ordered: Sequence[float], q: float) -> float:
    """Linear interpolation between the two nearest of the sorted values."""
    place = q * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def machine() -> dict[str, Any]:
    """What this ran on."""
    revision = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    ).stdout.strip()
    cpu = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "load_1min": os.getloadavg()[0],
        "python": f"Python {platform.python_version()}",
        "revision": revision or "no revision",
    }


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
