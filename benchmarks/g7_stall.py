"""G7: what survivors lose when one rank is killed in the middle of a step; peers beside us.

    python -m benchmarks g7 --kills 5 [--only holdfast,protocol,torchft,torchrun]

The same model, data, batch and layout (three replicas of two pipeline stages) under
Holdfast, Holdfast's trainer without its control plane ("protocol"), torchft and torchrun,
one after the other in one run. A contestant that does not finish is named with its reason,
the others are still printed. The losses of the first steps are compared: equal curves
prove that all train the same thing (torchft's first step takes one replica's part only).
"""

import argparse
import sys
from statistics import median

from benchmarks.outages import Outage
from benchmarks.peers import holdfast, protocol, torchft, torchrun, workload
from benchmarks.peers.command import COLUMNS, parser, scratch
from benchmarks.peers.runner import PeerFailed, Result
from benchmarks.report import Report
from benchmarks.ring import JobEnded
from controlplane.demo.driver import SceneTimeout
from controlplane.demo.installation import InstallationError

CONTESTANTS = ("holdfast", "protocol", "torchft", "torchrun")
GOALS = {"stall_s": "<= 1 s + half a step", "redone": "0", "discarded": "0", "skipped": "0", "rejoin_s": "<= 0.1 step"}
RATIOS = ("stall_s", "full_s", "lost_s")
CPU_NOTE = "CPU and gloo: control-plane time and protocol, never NCCL or GPU speed"


def measure(name: str, args: argparse.Namespace) -> Result:
    """One contestant's run. Raises what that contestant raises."""
    if name == "holdfast":
        return holdfast.measure(args)
    peer = {"protocol": protocol.measure, "torchft": torchft.measure, "torchrun": torchrun.measure}[name]
    with scratch(name) as directory:
        return peer(args, directory)


def fill(report: Report, results: list[Result], args: argparse.Namespace) -> None:
    """Rows of every contestant, ratios to Holdfast's medians, and what explains them."""
    report.facts["caveat"] = CPU_NOTE
    report.facts["workload"] = (
        f"{workload.REPLICAS} replicas x PP{workload.PIPELINE}, global batch 12, {args.delay_s} s more a micro-batch"
    )
    for result in results:
        report.add(f"{result.name}: normal step", "s", [result.normal_s])
        for column, unit in COLUMNS:
            goal = GOALS.get(column, "") if result.name == "holdfast" else ""
            report.add(f"{result.name}: {column}", unit, _values(result.outages, column), goal=goal)
        report.facts[result.name] = result.facts
    ours = next((result for result in results if result.name == "holdfast"), None)
    for result in results if ours else []:
        for column in RATIOS:
            ratio = _ratio(result.outages, ours.outages, column) if result is not ours and ours else None
            if ratio is not None:
                report.facts[f"{result.name} / holdfast, median {column}"] = f"{ratio:.1f}"
    for result in results[1:]:
        both = sorted(set(results[0].losses) & set(result.losses))
        if both:
            apart = max(abs(results[0].losses[step] - result.losses[step]) for step in both)
            report.facts[f"losses of {results[0].name} and {result.name}"] = f"{apart:.1e} apart over {len(both)} steps"


def _values(outages: list[Outage], column: str) -> list[float]:
    return [float(getattr(item, column)) for item in outages]


def _ratio(theirs: list[Outage], ours: list[Outage], column: str) -> float | None:
    """Their median over our median; None where there is nothing to divide by."""
    if not theirs or not ours or median(_values(ours, column)) <= 0:
        return None
    return median(_values(theirs, column)) / median(_values(ours, column))


def main(argv: list[str]) -> int:
    """0 when every contestant finished."""
    options = torchft.add_options(torchrun.add_options(parser(__doc__)))
    options.add_argument("--only", default=",".join(CONTESTANTS), help="contestants, in order")
    args = options.parse_args(argv)
    report = Report(goal_id="G7", title="one rank killed in mid-step: stall, lost steps, time to full strength")
    results, failed = [], 0
    for name in args.only.split(","):
        try:
            results.append(measure(name, args))
        except (PeerFailed, JobEnded, SceneTimeout, InstallationError) as error:
            failed += 1
            report.facts[f"{name} did not finish"] = str(error)
    fill(report, results, args)
    report.finish()
    return min(1, failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
