"""Kills during saves: whatever is left, the newest complete checkpoint is whole and loads.

    python -m benchmarks crashpoints --kills 1000 [--real 20] [--seed 7]

`--kills` go around the marker, manifest, fence, retention and local-tier code, half by the
clock and half at a chosen mkdir, fsync, rename or unlink; `--real` around Megatron's own
torch_dist saves. Prints each fault and exits 1 if there was any.
"""

import argparse
import tempfile
import time
from pathlib import Path

from benchmarks import crash_harness, crash_real
from benchmarks.report import Report
from trainer import device


def main(argv: list[str]) -> int:
    """0 when nothing that was complete was ever harmed or lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--real", type=int, default=20)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args(argv)
    report = Report(goal_id="crashpoints", title="kills during saves: the newest complete checkpoint loads")
    with tempfile.TemporaryDirectory() as folder:
        began_s = time.monotonic()
        found = crash_harness.run(
            Path(folder), crash_harness.plans(options.kills, seed=options.seed), seed=options.seed
        )
        report.facts["fast loop"] = (
            f"{found.kills} kills in {time.monotonic() - began_s:.0f} s, {found.commits} commits and"
            f" {found.local_commits} local ones acknowledged, {found.partials} partials seen and passed over"
        )
        report.facts["killed in"] = ", ".join(f"{name} {n}" for name, n in sorted(found.killed_in.items()))
    faults = list(found.faults)
    if options.real:
        device.prepare_import()
        import trainer.assemble  # noqa: F401

        with tempfile.TemporaryDirectory() as folder:
            faults += crash_real.run(Path(folder), options.real, seed=options.seed)
        report.facts["torch_dist"] = f"{options.real} kills around Megatron's own saves, each followed by a load"
    report.add("checkpoints harmed or lost", "", [float(len(faults))], goal="0")
    for fault in faults:
        report.facts[f"fault {faults.index(fault)}"] = fault
    report.finish()
    return 1 if faults else 0
