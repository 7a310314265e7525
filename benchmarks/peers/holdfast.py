"""Holdfast itself as a contestant: the whole control plane, the demo's job, ranks killed from outside.

    python -m benchmarks.peers.holdfast --kills 5 --json OUT

Step times are those of the API: the moment a rank committed, by its own clock's age,
stamped by the server of the same machine. Kill times are that machine's wall clock.
"""

import argparse
import random
import signal
import sys
import time
from statistics import median
from typing import Any

from benchmarks.outages import Kill, alone_step_s, is_full_again, normal_step_s, outage, progress
from benchmarks.peers import workload
from benchmarks.peers.command import finish, parser
from benchmarks.peers.runner import PeerFailed, Result
from benchmarks.processes import signal_exactly, start_ticks
from benchmarks.records import Record
from benchmarks.ring import Ring, ring, unix_s

RECOVERY_TIMEOUT_S = 180.0
SAVE_EVERY_STEPS = 50
CERTIFICATE_WAIT_S = 300.0
POLL_S = 0.1


def measure(args: argparse.Namespace) -> Result:
    """Start an installation, train, kill `args.kills` ranks one at a time."""
    chance = random.Random(args.seed)
    with ring("g7") as running:
        document = workload.job_document(delay_s=args.delay_s, interval_steps=SAVE_EVERY_STEPS)
        job_id = running.train(document, until_step=args.calm_steps + 2)
        normal_s = normal_step_s(_settled(records(running, job_id)), until_s=time.time())
        kills = [_kill_one(running, job_id, args, chance, normal_s) for _ in range(args.kills)]
        alone_s = _alone_s(running, job_id)
        # The runs that certificates compare with get the ranks' cores once these are measured.
        running.cancel(job_id)
        certificates = judged(running, job_id)
        steps = running.steps(job_id)
        found = records(running, job_id)
        incidents = running.incidents(job_id)
    outages = [
        outage(_as_new_process(found, kill), kill, replicas=workload.REPLICAS, normal_s=normal_s, alone_s=alone_s)
        for kill in kills
    ]
    return Result(
        name="holdfast",
        normal_s=normal_s,
        outages=[item for item in outages if item is not None],
        losses={item["step"] + 1: item["loss"] for item in steps if item["step"] < args.calm_steps},
        facts={
            "a step with a replica less, undisturbed (s)": round(alone_s, 4),
            "certificates": certificates,
            "stall by the ranks' own clocks (s)": [round(item, 3) for item in _own_stalls(steps, kills)],
            "stands still in the joiner's view, by the ranks' own clocks (s)": [
                round(item, 3) for item in _own_rejoins(steps, kills)
            ],
            "phases": [_phases(item) for item in incidents],
        }
        | evidence(steps, incidents),
    )


def records(running: Ring, job_id: str) -> list[Record]:
    """The job's committed steps in the form that the peers write. `pid` is the attempt:
    the API tells of steps, not of processes."""
    return [
        Record(
            kind="step", at_s=unix_s(item["at"]), replica=-1, rank=-1, pid=item["attempt"], ticks=0,
            step=item["step"] + 1, contributors=item["contributors"], loss=item["loss"],
        )
        for item in running.steps(job_id)
    ]  # fmt: skip


def judged(running: Ring, job_id: str) -> dict[str, int]:
    """How many certificates are green, red, incomplete and pending, after a while for the last ones."""
    deadline_s = time.monotonic() + CERTIFICATE_WAIT_S
    while True:
        counts = {"green": 0, "red": 0, "incomplete": 0, "pending": 0, "none": 0}
        for incident in running.incidents(job_id):
            certificate = incident["certificate"]
            counts[certificate["state"] if certificate else "none"] += 1
        if not counts["pending"] or time.monotonic() > deadline_s:
            return counts
        time.sleep(1.0)


def evidence(steps: list[dict[str, Any]], incidents: list[dict[str, Any]]) -> dict[str, Any]:
    """Whether each sample was trained once and replicas stayed equal; what is against it.
    The newest two steps are left out: not every rank has told of them."""
    certificates = [item["certificate"] for item in incidents if item["certificate"]]
    checks = [check for item in certificates if item["state"] == "red" for check in item["checks"]]
    inexact = [item["step"] for item in steps[:-2] if not item["samples_exact"]]
    unequal = [item["step"] for item in steps if item["hashes_equal"] is False]
    found: dict[str, Any] = {"every sample once": not inexact, "replicas equal": not unequal}
    against = {
        "steps without every sample": inexact,
        "steps with unequal replicas": unequal,
        "checks of red certificates": [f"{item['name']}: {item['detail']}" for item in checks if item["ok"] is False],
    }
    return found | {name: value for name, value in against.items() if value}


def kill_rank(
    running: Ring, job_id: str, slot: tuple[int, int], number: signal.Signals = signal.SIGKILL
) -> tuple[float, int]:
    """Signal the rank's process from outside; (wall clock time, pid). Raises PeerFailed."""
    pid = running.ranks(job_id)[slot]["pid"]
    ticks = start_ticks(pid) if pid else None
    at_s = time.time()
    if ticks is None or not signal_exactly(pid, ticks, number):
        raise PeerFailed(f"rank {slot[1]} of replica {slot[0]} was gone before it was killed")
    return at_s, pid


def _kill_one(running: Ring, job_id: str, args: argparse.Namespace, chance: random.Random, normal_s: float) -> Kill:
    """Kill a random rank in mid-step, wait for full strength and for calm."""
    slot = (chance.randrange(workload.REPLICAS), chance.randrange(workload.PIPELINE))
    seen = running.driver.get(f"/jobs/{job_id}")["committed_step"]
    running.wait_for_step(job_id, seen + 1, timeout_s=RECOVERY_TIMEOUT_S)
    time.sleep(chance.uniform(0.2, 0.8) * normal_s)
    at_s, pid = kill_rank(running, job_id, slot)
    kill = Kill(at_s=at_s, replica=slot[0], rank=slot[1], pid=pid)

    def full() -> bool:
        found = _as_new_process(records(running, job_id), kill)
        return is_full_again(found, kill, replicas=workload.REPLICAS) is not None

    running.driver.wait("full strength", full, timeout_s=RECOVERY_TIMEOUT_S)
    running.wait_full(job_id, timeout_s=RECOVERY_TIMEOUT_S)
    now = running.driver.get(f"/jobs/{job_id}")["committed_step"]
    running.wait_for_step(job_id, now + args.calm_steps, timeout_s=RECOVERY_TIMEOUT_S)
    return kill


def _alone_s(running: Ring, job_id: str) -> float:
    """Median gap of undisturbed steps with a replica less: one is killed that may go nowhere, and
    comes back afterwards."""
    nodes = [node["id"] for node in running.driver.items("/nodes")]
    for node_id in nodes:
        running.driver.post(f"/nodes/{node_id}:cordon", {"reason": "a replica shall stay away for a while"})
    kill_rank(running, job_id, (workload.REPLICAS - 1, 0))

    def alone_s() -> float | None:
        return alone_step_s(records(running, job_id), replicas=workload.REPLICAS)

    found_s = float(running.driver.wait("steps of fewer replicas", alone_s, timeout_s=RECOVERY_TIMEOUT_S))
    for node_id in nodes:
        running.driver.post(f"/nodes/{node_id}:uncordon", {"reason": "it may come back"})
    running.wait_full(job_id, timeout_s=RECOVERY_TIMEOUT_S)
    return found_s


def _as_new_process(found: list[Record], kill: Kill) -> list[Record]:
    """Mark the killed slot's return: a step after the kill with every replica counts as the
    new process's once some step was committed without it."""
    after = [item for item in progress(found) if item.at_s > kill.at_s]
    without = next((item.step for item in after if item.contributors < workload.REPLICAS), None)
    if without is None:
        return found
    return [
        Record(
            kind="step", at_s=item.at_s, replica=kill.replica, rank=kill.rank, pid=-1, ticks=0, step=item.step,
            contributors=item.contributors, loss=item.loss,
        )
        if item.step > without and item.at_s > kill.at_s and item.contributors == workload.REPLICAS
        else item
        for item in found
    ]  # fmt: skip


def _own_stalls(steps: list[dict[str, Any]], kills: list[Kill]) -> list[float]:
    """Time of the first step without the killed replica, less the median step, as the
    survivors' own monotonic clocks measured it."""
    normal_s = median(item["step_time_s"] for item in steps if item["step_time_s"])
    found = []
    for kill in kills:
        hit = [s for s in steps if unix_s(s["at"]) > kill.at_s and s["contributors"] < workload.REPLICAS]
        if hit:
            found.append(max(0.0, hit[0]["step_time_s"] - normal_s))
    return found


def _own_rejoins(steps: list[dict[str, Any]], kills: list[Kill]) -> list[float]:
    """How long the rank that waited longest stood still for the view that takes the replica back:
    the first after the one without it."""
    found = []
    for kill in kills:
        after = [item for item in steps if unix_s(item["at"]) > kill.at_s]
        without = next((item["epoch"] for item in after if item["contributors"] < workload.REPLICAS), None)
        joined = next((item for item in after if without is not None and item["epoch"] > without), None)
        if joined is not None:
            found.append(float(joined["stall_s"] or 0.0))
    return found


def _phases(incident: dict[str, Any]) -> dict[str, float]:
    """Phase -> seconds since the fault."""
    return {phase["name"]: phase["since_fault_s"] for phase in incident["phases"]}


def _settled(found: list[Record]) -> list[Record]:
    """Without the first two steps: they carry the first-use costs of every library."""
    return [item for item in found if item.step > 2]


def main(argv: list[str]) -> int:
    """Command line."""
    args = parser(__doc__).parse_args(argv)
    return finish(measure(args), args)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
