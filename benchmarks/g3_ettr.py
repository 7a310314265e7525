"""G3: effective training time of real Megatron ranks while one rank is killed every so often.

    python -m benchmarks g3 --minutes 10 --every-s 60 [--only holdfast,torchft,torchrun]

A random living rank of a random replica is SIGKILLed, by pid, at fixed times on the
benchmark's clock, whether or not the last recovery is over. The ratio is that of
`benchmarks.effective`, with the first `--calm-s` seconds as the undisturbed rate. All
certificates of Holdfast's incidents are collected; the peers have none.
"""

import argparse
import functools
import random
import sys
import time
from statistics import median
from typing import Any

from benchmarks.effective import WARM_STEPS, ettr
from benchmarks.peers import torchft, torchrun, workload
from benchmarks.peers.command import parser, scratch
from benchmarks.peers.holdfast import SAVE_EVERY_STEPS, evidence, judged, kill_rank, records
from benchmarks.peers.runner import PeerFailed, Result, run_disturbed
from benchmarks.report import Report
from benchmarks.ring import JobEnded, Ring, ring
from controlplane.demo.driver import SceneTimeout
from controlplane.demo.installation import InstallationError

LIVE_STATES = ("training", "checkpointing", "initializing")


def holdfast(args: argparse.Namespace) -> Result:
    """The whole control plane under the schedule of kills."""
    with ring("g3") as running:
        document = workload.job_document(delay_s=args.delay_s, interval_steps=SAVE_EVERY_STEPS)
        job_id = running.train(document, until_step=WARM_STEPS)
        calm_until_s = time.time() + args.calm_s
        time.sleep(args.calm_s)
        end_s = calm_until_s + args.minutes * 60.0
        kills = disturb(running, job_id, until_s=end_s, every_s=args.every_s, chance=random.Random(args.seed))
        found = records(running, job_id)
        # The runs that certificates compare with get the ranks' cores once these are measured.
        running.cancel(job_id)
        certificates = judged(running, job_id)
        steps = running.steps(job_id)
        incidents = running.incidents(job_id)
    effective = ettr(found, replicas=workload.REPLICAS, calm_until_s=calm_until_s, end_s=end_s)
    stalls = [item["stall_s"] for item in steps if item["stall_s"] > 0]
    facts = {
        "kills": kills,
        "certificates": certificates,
        "longest step (s)": round(max(item["step_time_s"] or 0.0 for item in steps), 3),
        "median stall of a disturbed step (s)": round(median(stalls or [0.0]), 3),
        "fault to last phase (s)": [round(_last_phase_s(item), 2) for item in incidents],
    } | evidence(steps, incidents)
    return Result(
        name="holdfast", normal_s=effective.normal_s, outages=[], losses={}, facts=facts, effective=effective
    )  # fmt: skip


def disturb(running: Ring, job_id: str, *, until_s: float, every_s: float, chance: random.Random) -> int:
    """Kill a living rank every `every_s` seconds until `until_s` (wall clock); how many."""
    kills, next_s = 0, time.time()
    while next_s < until_s:
        time.sleep(max(0.0, next_s - time.time()))
        slots = sorted(key for key, rank in running.ranks(job_id).items() if rank["state"] in LIVE_STATES)
        try:
            if slots:
                kill_rank(running, job_id, chance.choice(slots))
                kills += 1
        except PeerFailed:
            # It died with its replica between the question and the kill: no fault was added.
            pass
        next_s += every_s
    time.sleep(max(0.0, until_s - time.time()))
    return kills


def measure(name: str, args: argparse.Namespace) -> Result:
    """One contestant's run. Raises what that contestant raises."""
    if name == "holdfast":
        return holdfast(args)
    body = functools.partial(run_disturbed, calm_s=args.calm_s, minutes=args.minutes, every_s=args.every_s)
    args.kills = int(args.minutes * 60.0 / args.every_s) + 1
    peer = {"torchft": torchft.measure, "torchrun": torchrun.measure}[name]
    with scratch(name) as directory:
        return peer(args, directory, body)


def _last_phase_s(incident: dict[str, Any]) -> float:
    return max((float(phase["since_fault_s"]) for phase in incident["phases"]), default=0.0)


def main(argv: list[str]) -> int:
    """0 when every contestant finished and no certificate is red."""
    options = torchft.add_options(torchrun.add_options(parser(__doc__)))
    options.add_argument("--minutes", type=float, default=10.0, help="length of the disturbed part")
    options.add_argument("--every-s", type=float, default=60.0, help="seconds between kills")
    options.add_argument("--calm-s", type=float, default=60.0, help="undisturbed seconds before the first kill")
    options.add_argument("--only", default="holdfast", help="contestants, in order")
    args = options.parse_args(argv)
    report = Report(goal_id="G3", title=f"ETTR, one SIGKILL every {args.every_s:g} s for {args.minutes:g} min")
    failed = 0
    for name in args.only.split(","):
        try:
            result = measure(name, args)
        except (PeerFailed, JobEnded, SceneTimeout, InstallationError) as error:
            failed += 1
            report.facts[f"{name} did not finish"] = str(error)
            continue
        assert result.effective is not None, "a disturbed run says how effective it was"
        goal = (">= 0.95" if args.every_s >= 60 else ">= 0.80") if name == "holdfast" else ""
        report.add(f"{name}: ETTR", "ratio", [result.effective.ratio], goal=goal)
        report.add(f"{name}: undisturbed step", "s", [result.normal_s])
        report.add(f"{name}: committed", "global batches", [result.effective.batches])
        report.facts[name] = result.facts
        failed += int(result.facts.get("certificates", {}).get("red", 0) > 0)
    report.facts["caveat"] = "CPU and gloo: control-plane time and protocol, never NCCL or GPU speed"
    report.finish()
    return min(1, failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
