"""G4: from the fault to its signal in the backend, and on to the decision.

    python -m benchmarks g4 --n 5 [--faults crash,hang,silence,node,xid]

Faults come from outside, by pid: SIGKILL or SIGSTOP of a rank, SIGSTOP of everything on a
node (no connection is closed, as when power fails), SIGKILL of everything on a node. Only
the XID goes through the control plane, because the sensor is simulated; its time runs
from the request, so it includes the delivery of the order.

Confirmed is the `at` of the durable event `signal.<kind>`, which commits with the signal's
row; decided is that of the first decision after it. Server and benchmark are one machine
with one wall clock.
"""

import argparse
import contextlib
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers import workload
from benchmarks.peers.holdfast import RECOVERY_TIMEOUT_S, kill_rank
from benchmarks.peers.runner import PeerFailed
from benchmarks.processes import signal_exactly, start_ticks
from benchmarks.report import Report, quantile
from benchmarks.ring import JobEnded, Ring, ring, unix_s
from controlplane.demo.driver import SceneTimeout
from controlplane.demo.nodes import processes_of

DETECT_TIMEOUT_S = 90.0
DECIDE_TIMEOUT_S = 30.0
CALM_STEPS = 8
HARMLESS_XID = 13
NODE_DOWN_S = 8.0
POLL_S = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """`confirmed_s` and `decided_s` since the fault; None: no decision was needed in time."""

    confirmed_s: float
    decided_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """`inject(ring, job, chance)` returns the wall clock time of the fault and what undoes
    it; `kinds` are the signals that count as its detection."""

    title: str
    kinds: tuple[str, ...]
    goal: str
    inject: Callable[[Ring, str, random.Random], tuple[float, Callable[[], None]]]


def crash(running: Ring, job_id: str, chance: random.Random) -> tuple[float, Callable[[], None]]:
    """SIGKILL of a random rank."""
    slot = (chance.randrange(workload.REPLICAS), chance.randrange(workload.PIPELINE))
    return kill_rank(running, job_id, slot)[0], nothing


def hang(running: Ring, job_id: str, chance: random.Random) -> tuple[float, Callable[[], None]]:
    """SIGSTOP of a random rank; the policy has it killed, so nothing is left to undo."""
    slot = (chance.randrange(workload.REPLICAS), chance.randrange(workload.PIPELINE))
    return kill_rank(running, job_id, slot, signal.SIGSTOP)[0], nothing


def silence(running: Ring, job_id: str, chance: random.Random) -> tuple[float, Callable[[], None]]:
    """SIGSTOP of everything on a node that trains; afterwards it is killed, and the
    supervisor starts the agent again."""
    node = chance.choice(training_nodes(running, job_id))
    frozen = [(pid, start_ticks(pid) or 0) for pid in processes_of(state_dir(running, node))]
    at_s = time.time()
    for pid, ticks in frozen:
        signal_exactly(pid, ticks, signal.SIGSTOP)

    def end() -> None:
        for pid, ticks in frozen:
            signal_exactly(pid, ticks, signal.SIGKILL)

    return at_s, end


def node(running: Ring, job_id: str, chance: random.Random) -> tuple[float, Callable[[], None]]:
    """SIGKILL of everything on a node that trains, by the supervisor that started it; the
    fault is when the agent's process is gone."""
    name = chance.choice(training_nodes(running, job_id))
    pid = running.installation.supervisor.pid(f"agent:{name}")
    assert pid is not None, f"the agent of {name} does not run"
    running.installation.request(f"node:{name}", down_s=NODE_DOWN_S)
    deadline_s = time.monotonic() + DETECT_TIMEOUT_S
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline_s:
        time.sleep(POLL_S)
    return time.time(), nothing


def xid(running: Ring, job_id: str, chance: random.Random) -> tuple[float, Callable[[], None]]:
    """An XID on a simulated device; one that asks for no eviction."""
    names = training_nodes(running, job_id)
    nodes = {item["name"]: item["id"] for item in running.driver.items("/nodes")}
    target = {"node_id": nodes[chance.choice(names)], "device_index": chance.randrange(2)}
    at_s = time.time()
    running.driver.post("/demo/faults", {"kind": "xid", "value": HARMLESS_XID, **target})

    def end() -> None:
        running.driver.post("/demo/faults", {"kind": "heal_device", **target})

    return at_s, end


def nothing() -> None:
    """Nothing to undo."""


FAULTS = {
    "crash": Fault(title="rank crash (SIGKILL)", kinds=("rank_exit",), goal="0.3 s", inject=crash),
    "hang": Fault(
        title="rank hang (SIGSTOP)", kinds=("rank_overdue",), goal="max(3 x p99 step, 5 s)", inject=hang
    ),
    "silence": Fault(
        title="node silent (all stopped)", kinds=("node_silent",), goal="2.5 s", inject=silence
    ),
    "node": Fault(title="node gone (all killed)", kinds=("node_silent", "rank_exit"), goal="2.5 s", inject=node),
    "xid": Fault(title="XID (simulated sensor)", kinds=("xid",), goal="1.2 s", inject=xid),
}  # fmt: skip


def measure(running: Ring, job_id: str, fault: Fault, chance: random.Random) -> Seen:
    """One fault, its signal and its decision. Raises SceneTimeout."""
    since = newest_seq(running)
    at_s, undo = fault.inject(running, job_id, chance)
    kinds = {f"signal.{kind}" for kind in fault.kinds}
    try:
        found = running.driver.wait(
            fault.title, lambda: first(running, since, lambda event: event["kind"] in kinds), timeout_s=DETECT_TIMEOUT_S
        )
        decided = decision_after(running, job_id, int(found["seq"])) if fault.kinds != ("xid",) else None
    finally:
        undo()
    confirmed_s = unix_s(found["at"]) - at_s
    decided_s = unix_s(decided["at"]) - at_s if decided else None
    return Seen(confirmed_s=confirmed_s, decided_s=decided_s)


def decision_after(running: Ring, job_id: str, seq: int) -> dict[str, Any] | None:
    """First decision about the job after that event; None when there is none in time."""
    with contextlib.suppress(SceneTimeout):
        answer: dict[str, Any] = running.driver.wait(
            "a decision",
            lambda: first(running, seq, lambda item: item["entity"] == "decision" and item["job_id"] == job_id),
            timeout_s=DECIDE_TIMEOUT_S,
        )
        return answer
    return None


def recover(running: Ring, job_id: str) -> None:
    """Full strength, then some calm steps."""
    running.wait_full(job_id, timeout_s=RECOVERY_TIMEOUT_S)
    now = running.driver.get(f"/jobs/{job_id}")["committed_step"]
    running.wait_for_step(job_id, now + CALM_STEPS, timeout_s=RECOVERY_TIMEOUT_S)


def newest_seq(running: Ring) -> int:
    """Sequence number up to which the overview speaks."""
    return int(running.driver.get("/overview")["as_of_seq"])


def first(running: Ring, since: int, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any] | None:
    """The first wanted event after `since`, over all pages."""
    while True:
        items = running.driver.items(f"/events?after_seq={since}&limit=200")
        for item in items:
            if wanted(item):
                return item
        if not items:
            return None
        since = items[-1]["seq"]


def training_nodes(running: Ring, job_id: str) -> list[str]:
    """Names of the nodes that hold a rank of the job, sorted."""
    return sorted({rank["node_name"] for rank in running.ranks(job_id).values()})


def state_dir(running: Ring, name: str) -> Path:
    """The node's directory, as its processes know it."""
    return running.installation.config.node_state(name).absolute()


def main(argv: list[str]) -> int:
    """0 when every fault was seen."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--n", type=int, default=5, help="times each fault")
    options.add_argument("--faults", default=",".join(FAULTS))
    options.add_argument("--seed", type=int, default=7)
    options.add_argument("--delay-s", type=float, default=workload.DELAY_S, help="sleep added to each micro-batch")
    args = options.parse_args(argv)
    chance = random.Random(args.seed)
    report = Report(goal_id="G4", title="fault to signal (confirmed) and to decision in the backend")
    failed = 0
    with ring("g4") as running:
        job_id = running.train(workload.job_document(delay_s=args.delay_s, interval_steps=50), until_step=20)
        for name in args.faults.split(","):
            seen: list[Seen] = []
            try:
                for _ in range(args.n):
                    seen.append(measure(running, job_id, FAULTS[name], chance))
                    recover(running, job_id)
            except (SceneTimeout, PeerFailed, JobEnded) as error:
                failed += 1
                report.facts[f"{name} did not finish"] = str(error)[:500]
            add_rows(report, FAULTS[name], seen)
        times = sorted(item["step_time_s"] for item in running.steps(job_id) if item["step_time_s"])
        report.facts["p99 step (s), disturbed ones included"] = round(quantile(times, 0.99), 3) if times else None
    report.facts["caveat"] = "one machine, one wall clock; load of the machine is part of the figures"
    report.finish()
    return min(1, failed)


def add_rows(report: Report, fault: Fault, seen: list[Seen]) -> None:
    """Confirmed and decided of one fault."""
    report.add(f"{fault.title}: confirmed", "s", [item.confirmed_s for item in seen], goal=fault.goal)
    if fault.kinds != ("xid",):
        report.add(f"{fault.title}: decided", "s", [item.decided_s for item in seen if item.decided_s is not None])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
