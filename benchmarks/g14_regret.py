"""G14: regret of the decisions: what the policy chose against the best it could have done.

    python -m benchmarks g14 [--states 10000] [--seed 14] [--processes 1] [--out var/bench/g14.jsonl]

Each random moment of failure (`controlplane.simulator.moments`) is a simulated world that runs to the
fault; from the decision on, every way that the job's spec leaves open is carried out in a copy of it
(`controlplane.simulator.rollout`), and its cost is read off that world. Regret is the cost of the way that
the policy chose over that of the best, less one. A moment in which one way alone is open counts as
no regret. Each moment is a line of the file as soon as it is judged, so that a run that was stopped goes on
where it was when it is started again with the same file and seed.

A decision's time is processor time of the pass in which the way was chosen.
"""

import argparse
import time
from collections import Counter
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.report import Report, quantile
from benchmarks.seed_lines import lines_of, state_of_sources
from controlplane.policy.config import PolicyConfig
from controlplane.policy.decide import decide
from controlplane.policy.plan import Plan
from controlplane.policy.snapshot import JobSnapshot
from controlplane.simulator.moments import draw
from controlplane.simulator.rollout import Judged, Unfit, judge

GOAL_MEAN, GOAL_P99, GOAL_DECIDE_MS = 0.02, 0.10, 5.0
SEEDS_APART = 10_000_000
WORST = 10


def one(seed: int) -> dict[str, Any]:
    """A moment's line: its seed, and `unfit` where its world came to no decision or to no end."""
    took_ms: dict[float, float] = {}

    def timed(snapshot: JobSnapshot, config: PolicyConfig) -> Plan:
        began_s = time.thread_time()
        plan = decide(snapshot, config)
        took_ms[snapshot.now_s] = max(took_ms.get(snapshot.now_s, 0.0), (time.thread_time() - began_s) * 1000.0)
        return plan

    try:
        judged = judge(draw(seed), policy=timed)
    except Unfit as error:
        return {"seed": seed, "unfit": str(error)}
    return {
        "seed": seed,
        "chosen": judged.chosen,
        "costs_s": judged.costs,
        "violations": list(judged.violations),
        "decide_ms": round(took_ms.get(judged.at_s, 0.0), 3),
    }


def summed(lines: list[dict[str, Any]], *, seed: int) -> Report:
    """The table of all lines."""
    fit = [line for line in lines if line.get("chosen")]
    judged = [
        Judged(
            seed=line["seed"],
            at_s=0.0,
            chosen=line["chosen"],
            costs=line["costs_s"],
            violations=tuple(line["violations"]),
        )
        for line in fit
    ]
    better = [each for each in judged if each.best != each.chosen]
    report = Report(goal_id="g14", title="G14: regret of the chosen way, by roll-out in the simulator")
    regrets = [100.0 * each.regret for each in judged]
    report.add("regret", "%", regrets, goal="mean <= 2, p99 <= 10")
    alone = [100.0 * each.regret for each in judged if len(draw(each.seed).strikes) == 1]
    report.add("regret where nothing else fails", "%", alone)
    report.add("regret where two ways or more were open", "%", [100.0 * each.regret for each in judged if each.costs])
    report.add("one decision", "ms", [line["decide_ms"] for line in fit], goal="<= 5", note="processor time")
    report.facts = {
        "states": len(lines),
        "of them over before anything was decided": sum(line.get("chosen") == "" for line in lines),
        "first seed": seed * SEEDS_APART,
        "state of the sources": state_of_sources(),
        "worlds": sum(len(each.costs) for each in judged),
        "mean regret (%)": round(mean(regrets), 3),
        "p99 regret (%)": round(quantile(sorted(regrets), 0.99), 3),
        "mean regret where nothing else fails (%)": round(mean(alone), 3) if alone else None,
        "p99 regret where nothing else fails (%)": round(quantile(sorted(alone), 0.99), 3) if alone else None,
        "mean decision (ms)": round(mean(line["decide_ms"] for line in fit), 3),
        "chosen": dict(Counter(each.chosen for each in judged)),
        "ways open": dict(sorted(Counter(len(each.costs) or 1 for each in judged).items())),
        "another was better": dict(Counter(f"{each.chosen}, {each.best} was better" for each in better)),
        "worst": [
            f"seed {each.seed}: {each.chosen}, regret {each.regret:.1%} against {each.best}"
            for each in sorted(better, key=lambda each: -each.regret)[:WORST]
        ],
        "unfit": [line["unfit"] for line in lines if "unfit" in line],
        "violations": [f"seed {each.seed}: {each.violations[0]}" for each in judged if each.violations],
    }
    return report


def main(argv: list[str]) -> int:
    """1 when a goal is missed, a world breaks an invariant, or a moment could not be judged."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks g14", description=__doc__)
    parser.add_argument("--states", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=14)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("var/bench/g14.jsonl"))
    parser.add_argument("--sum", action="store_true", help="judge no more; the table of what the file has")
    args = parser.parse_args(argv)
    wanted = range(args.seed * SEEDS_APART, args.seed * SEEDS_APART + args.states)
    lines = lines_of(args.out, wanted, one, processes=args.processes, sum_alone=args.sum)
    if not lines:
        parser.error(f"{args.out} has no moment of seed {args.seed}")
    report = summed(lines, seed=args.seed)
    report.finish()
    facts = report.facts
    met = facts["mean regret (%)"] <= 100.0 * GOAL_MEAN and facts["p99 regret (%)"] <= 100.0 * GOAL_P99
    met = met and facts["mean decision (ms)"] <= GOAL_DECIDE_MS
    return 0 if met and not facts["unfit"] and not facts["violations"] else 1
