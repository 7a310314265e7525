"""Backend processes are killed one after another while a fleet works: is anything lost, or done twice?

    python -m benchmarks kills [--kills 1000] [--agents 200] [--each-s 4] [--xids 400] [--out var/bench/kills.jsonl]

Two web processes, two sentinels (each leads a shard), two workers and three beats, PostgreSQL and Redis; the fleet is
that of `holdfast bench fleet`. Each `--each-s` one process, drawn from the seed, gets SIGKILL (Redis too with
`--redis`), and is started again after a second, as by systemd. When all that agents had to say is stored, rows are
compared with what they said: each event once, each XID one finding, of those that blame a device one incident and one
command at most, no command open or sent under two numbers. A kill is a line of `--out`.
"""

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import psycopg

from benchmarks.report import Report
from controlplane.bench.report import Outcome, table
from controlplane.bench.run import Wanted, run
from controlplane.bench.script import RESET_XIDS, Faults, Fleet
from controlplane.bench.stack import Shape, Stack
from controlplane.bench.tally import Counted

SHAPE = Shape(webs=2, sentinels=2, workers=2, beats=3)
SETTLED_S, POLL_S = 120.0, 2.0
DONE = ("succeeded", "failed", "expired", "superseded")
FINDINGS = """
    SELECT node.name, signal.device_index, count(*) FROM recovery_signal signal
    JOIN fleet_node node ON node.id = signal.node_id WHERE signal.kind = 'xid' GROUP BY 1, 2"""
INCIDENTS = """
    SELECT node.name, count(DISTINCT incident.id) FROM recovery_signal signal
    JOIN recovery_incident incident ON incident.id = signal.incident_id
    JOIN fleet_node node ON node.id = signal.node_id WHERE signal.kind = 'xid' GROUP BY 1"""
COMMANDS = "SELECT node.name, command.state, command.decision_id, command.kind FROM dispatch_command command" \
    " JOIN fleet_node node ON node.id = command.node_id"  # fmt: skip


class Killer:
    """Kills by the seed, and counts by name."""

    def __init__(self, names: tuple[str, ...], seed: int, out: Path) -> None:
        self._names, self._random, self._out = names, random.Random(seed), out
        self.killed: Counter[str] = Counter()
        self.down = 0
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text("")

    def __call__(self, stack: Stack) -> None:
        """One of them; one that is down is counted, and no other is taken for it."""
        name = self._random.choice(self._names)
        if stack.supervisor.kill(name):
            self.killed[name] += 1
        else:
            self.down += 1
        with self._out.open("a") as file:
            file.write(json.dumps({"at_s": time.monotonic(), "killed": name}) + "\n")


class Judge:
    """What rows say at the end, beside what agents said."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self.seen: dict[str, int] = {}

    def __call__(self, stack: Stack, said: Counted) -> None:
        """Waits until no command is open, as one whose answer was lost is sent again after a while."""
        with psycopg.connect(stack.env["HOLDFAST_DATABASE_URL"], autocommit=True) as connection:
            until_s = time.monotonic() + SETTLED_S
            commands = connection.execute(COMMANDS).fetchall()
            while any(state not in DONE for _, state, *_ in commands) and time.monotonic() < until_s:
                time.sleep(POLL_S)
                commands = connection.execute(COMMANDS).fetchall()
            findings = {(name, device): number for name, device, number in connection.execute(FINDINGS)}
            incidents: dict[str, int] = dict(connection.execute(INCIDENTS).fetchall())
        sent = Counter((xid.node, xid.device) for xid in said.xids)
        of_devices = Counter(xid.node for xid in said.xids if xid.xid in RESET_XIDS)
        self.seen = {
            "events": said.events, "xids": len(said.xids), "findings": sum(findings.values()),
            "incidents": sum(incidents.values()), "commands": len(commands),
        }  # fmt: skip
        self.wrong += differences(sent, findings)
        self.wrong += [f"{number} incidents of {of_devices[name]} XIDs of devices on {name}"
                       for name, number in incidents.items() if number > of_devices[name]]  # fmt: skip
        orders = Counter((name, kind, decision) for name, _, decision, kind in commands if decision)
        self.wrong += [f"{number} times {kind} to {name} by one decision" for (name, kind, _), number in orders.items()
                       if number > 1]  # fmt: skip
        self.wrong += [f"a command of {name} is {state}" for name, state, *_ in commands if state not in DONE]
        if said.unacknowledged:
            self.wrong.append(f"{said.unacknowledged} events were never acknowledged")


def differences(sent: Mapping[tuple[str, int], int], stored: Mapping[tuple[str, int], int]) -> list[str]:
    """Of XIDs by node and device: each that is lost, doubled or of nobody."""
    return [
        f"{sent.get(key, 0)} XIDs of device {key[1]} of {key[0]} are {stored.get(key, 0)} findings"
        for key in sorted({*sent, *stored})
        if sent.get(key, 0) != stored.get(key, 0)
    ]


def main(argv: list[str]) -> int:
    """0: nothing was lost or done twice, and every agent has its session."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--agents", type=int, default=200)
    parser.add_argument("--each-s", type=float, default=4.0)
    parser.add_argument("--interval", type=float, default=2.0, help="seconds between two frames of an agent")
    parser.add_argument("--xids", type=int, default=400)
    parser.add_argument("--redis", action="store_true", help="Redis is killed with the others")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("var/bench/kills.jsonl"))
    options = parser.parse_args(argv)
    fleet = Fleet(
        agents=options.agents, interval_s=options.interval, duration_s=options.kills * options.each_s,
        seed=options.seed, faults=Faults(xids=options.xids),
    )  # fmt: skip
    names = (*SHAPE.names(), *(["redis"] if options.redis else []))
    killer, judge = Killer(names, options.seed, options.out), Judge()
    wanted = Wanted(fleet=fleet, shape=SHAPE, watch=killer, watch_each_s=options.each_s, judge=judge)
    outcome = run(wanted, lambda text: print(text, flush=True))
    print(table(outcome))
    return _told(outcome, killer, judge)


def _told(outcome: Outcome, killer: Killer, judge: Judge) -> int:
    # That processes ended is what was done to them.
    wrong = [*judge.wrong, *(each for each in outcome.failures if "ended within" not in each)]
    report = Report(goal_id="kills", title="Backend processes killed under a working fleet")
    report.add("kills", "count", [killer.killed.total()], goal="1,000, nothing lost or doubled")
    report.add("lost or doubled", "count", [len(wrong)], goal="0")
    report.facts |= {
        "killed": dict(killer.killed), "down already": killer.down, **judge.seen, "wrong": wrong[:50],
        "agents": outcome.wanted.fleet.agents, "seed": outcome.wanted.fleet.seed,
    }  # fmt: skip
    report.finish()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
