"""Compound faults for minutes: two and three within one recovery, causes and figures checked.

    python -m benchmarks compound --minutes 20 [--seed 1] [--rounds two_kills,store,...]

The whole ring (what `make demo` starts) trains while `benchmarks.compound_faults` breaks it; each
round waits for full strength and a few calm steps. Then `benchmarks.compound_judge` compares what
users are told with what was done: a certificate is green or incomplete with a reason, each cause is
what was done, effective time is within one point of steps x undisturbed step / wall by this
process's own monotonic clock, the ledger's within half a point, and no restart happened, as none was needed. The
undisturbed step is the median of those in the calm stretches: one before the first fault, one after some rounds, one
after the last, as the pace of a machine that others use too changes meanwhile.
"""

import argparse
import json
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.compound_faults import (
    ROUNDS,
    Scene,
    clock_environment,
    leave_clock_set,
    own_file_system,
)
from benchmarks.compound_judge import (
    HALF_A_POINT,
    POINT,
    undisturbed_step_s,
    wrong_causes,
    wrong_certificates,
    wrong_effective_time,
    wrong_steps,
)
from benchmarks.peers import workload
from benchmarks.peers.holdfast import RECOVERY_TIMEOUT_S, SAVE_EVERY_STEPS
from benchmarks.report import Report
from benchmarks.ring import JobEnded, Ring, ring_within
from controlplane.demo.driver import SceneTimeout
from controlplane.policy import disruption

CALM_S, SETTLE_S = 60.0, 15.0
"""Nothing is done for so long, once what came up anew has had time to."""
CALM_EVERY = 20
"""Rounds."""
CALM_STEPS = 8
PROOF_TIMEOUT_S = 1800.0
POLL_S = 15.0
HIGHEST_CAP = 100_000


def measure(args: argparse.Namespace, report: Report) -> list[str]:
    """Break, wait, judge; what was wrong."""
    chance = random.Random(args.seed)
    clock, environment = clock_environment(Path(args.scratch))
    with ring_within("compound", own_file_system, server_env=environment) as (running, frozen):
        lift_caps(running)
        began_s = time.monotonic()
        document = workload.job_document(delay_s=args.delay_s, interval_steps=SAVE_EVERY_STEPS)
        job_id = running.train(document, until_step=CALM_STEPS)
        scene = Scene(running, job_id, chance, frozen, clock)
        try:
            calm_stretch(scene)
            rounds = play(scene, args)
        except SceneTimeout:
            tell(running, job_id)
            raise
        job = running.driver.get(f"/jobs/{job_id}")
        asked_s = time.monotonic()
        running.cancel(job_id)
        incidents = proved(running, job_id)
        steps = running.steps(job_id)
        ledger = running.driver.get(f"/jobs/{job_id}/ledger")["ettr"]
    committed = job["committed_step"]
    undisturbed_s = undisturbed_step_s(steps, replicas=workload.REPLICAS, within=scene.calm)
    computed = committed * undisturbed_s / (asked_s - began_s)
    report.add("rounds", "count", [sum(rounds.values())])
    report.add("faults in ranks, nodes and devices", "count", [len(scene.done)])
    report.add("restarts", "count", [job["restarts"]], goal="0, as none was needed")
    report.add("steps committed", "count", [committed])
    report.add("effective time shown", "ratio", [job["ettr"] or 0.0])
    report.add("effective time of the ledger", "ratio", [ledger or 0.0])
    report.add("effective time computed", "ratio", [computed], goal="shown within 0.01, the ledger's within 0.005")
    report.facts |= {
        "rounds": dict(rounds),
        "seed": args.seed,
        "certificates": dict(Counter(i["certificate"]["state"] if i["certificate"] else "none" for i in incidents)),
        "left unjudged": dict(unjudged(incidents)),
        "outcomes": dict(Counter(i["outcome"] or i["state"] for i in incidents)),
        "left out": sorted(set(scene.left_out)) or "nothing",
        "incidents": len(incidents),
        "undisturbed step": f"{undisturbed_s:.4f} s in {len(scene.calm)} calm stretches"
        f" ({', '.join(f'{each:.4f}' for each in by_stretch(steps, scene.calm))}),"
        f" shown {job['undisturbed_step_s']:.4f} s;"
        f" {undisturbed_step_s(steps, replicas=workload.REPLICAS):.4f} s of all steps that follow two of their view",
    }
    wrong = wrong_causes(incidents, scene.done, scene.rounds) + wrong_certificates(incidents) + wrong_steps(steps)
    wrong += wrong_effective_time("shown", job["ettr"], computed, POINT)
    wrong += wrong_effective_time("of the ledger", ledger, computed, HALF_A_POINT)
    return wrong + [f"{job['restarts']} restarts, none was needed"] * bool(job["restarts"])


def calm_stretch(scene: Scene) -> None:
    """Nothing is done for a minute; which steps were made in it is kept for the judge."""
    time.sleep(SETTLE_S)
    first = scene.running.driver.get(f"/jobs/{scene.job_id}")["committed_step"]
    time.sleep(CALM_S)
    scene.calm.append((first, scene.running.driver.get(f"/jobs/{scene.job_id}")["committed_step"]))


def unjudged(incidents: list[dict[str, Any]]) -> Counter[str]:
    """Why checks of certificates have no answer; how often each."""
    checks = [check for i in incidents if i["certificate"] for check in i["certificate"]["checks"]]
    return Counter(f"{check['name']}: {check['detail']}" for check in checks if check["ok"] is None)


def by_stretch(steps: list[dict[str, Any]], calm: list[tuple[int, int]]) -> list[float]:
    """The undisturbed step of each."""
    return [undisturbed_step_s(steps, replicas=workload.REPLICAS, within=[each]) for each in calm]


def lift_caps(running: Ring) -> None:
    """Of one job in an hour fail here as many replicas as of a whole fleet: what caps acts by the hour is none of
    what this shows. What stops automation when much looks bad at once stays as it is."""
    fields = sorted({*disruption.CAPS.values(), *disruption.CAPS_OF_SEGMENT.values()})
    text = json.dumps(dict.fromkeys(fields, HIGHEST_CAP))
    running.driver.post("/policy:put", {"text": text, "parent": 0, "reason": "a drill fails more than a fleet does"})


def play(scene: Scene, args: argparse.Namespace) -> Counter[str]:
    """Rounds in an order drawn anew each time around, until the time is over; how often each."""
    names, played = args.rounds.split(",") if args.rounds else list(ROUNDS), Counter[str]()
    queue: list[str] = []
    end_s = time.monotonic() + args.minutes * 60.0
    while time.monotonic() < end_s:
        queue = queue or scene.chance.sample(names, len(names))
        name = queue.pop()
        print(f"{time.strftime('%H:%M:%S')} {name}", flush=True)
        scene.begin(name)
        ROUNDS[name](scene)
        played[name] += 1
        time.sleep(1.0)
        scene.running.wait_full(scene.job_id, timeout_s=RECOVERY_TIMEOUT_S)
        for heal in scene.healing:
            heal()
        scene.healing.clear()
        now = scene.running.driver.get(f"/jobs/{scene.job_id}")["committed_step"]
        scene.running.wait_for_step(scene.job_id, now + CALM_STEPS, timeout_s=RECOVERY_TIMEOUT_S)
        # A fault that was not yet noticed when it was first asked has been by now.
        scene.running.wait_full(scene.job_id, timeout_s=RECOVERY_TIMEOUT_S)
        if sum(played.values()) % CALM_EVERY == 0:
            calm_stretch(scene)
    leave_clock_set(scene)
    calm_stretch(scene)
    return played


def tell(running: Ring, job_id: str) -> None:
    """What the server says of a job that does not get on."""
    print(running.driver.get(f"/jobs/{job_id}")["why"])
    for replica in running.driver.items(f"/jobs/{job_id}/replicas"):
        if replica["current"]:
            print(replica["id"], replica["state"], [(r["node_name"], r["state"]) for r in replica["ranks"]])
    for node in running.driver.items("/nodes"):
        devices = [(d["index"], d["healthy"], d["health_reason"]) for d in node["devices"]]
        print(node["name"], node["state"], node["connected"], node["state_reason"], devices)
    for decision in running.driver.items(f"/jobs/{job_id}/decisions?limit=30"):
        print(decision["at"], decision["rule"], decision["choice"], decision["sentence"])


def proved(running: Ring, job_id: str) -> list[dict[str, Any]]:
    """All incidents once no certificate is pending, or the time for that is over."""
    deadline_s = time.monotonic() + PROOF_TIMEOUT_S
    while True:
        found = running.incidents(job_id)
        waiting = [i for i in found if i["certificate"] and i["certificate"]["state"] == "pending"]
        if not waiting or time.monotonic() > deadline_s:
            return found
        time.sleep(POLL_S)


def main(argv: list[str]) -> int:
    """0 when everything that users were told is what was done."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--minutes", type=float, default=20.0, help="length of the disturbed part")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--rounds", default="", help=f"of {', '.join(ROUNDS)}; all")
    options.add_argument("--delay-s", type=float, default=workload.DELAY_S, help="sleep added to each micro-batch")
    options.add_argument("--scratch", default="var/bench", help="where the clock's file lies")
    args = options.parse_args(argv)
    report = Report(goal_id="compound", title=f"two and three faults within one recovery for {args.minutes:g} min")
    try:
        wrong = measure(args, report)
    except (SceneTimeout, JobEnded) as error:
        wrong = [f"it did not come to its end: {error}"]
    report.facts["wrong"] = wrong or "nothing"
    report.finish()
    return min(1, len(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
