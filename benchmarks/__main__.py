"""`python -m benchmarks` lists the benchmarks; `python -m benchmarks g7 [options]` runs one.

Each prints a table and writes benchmarks/results/<goal>.json.
"""

import importlib
import signal
import sys
from types import FrameType
from typing import NoReturn

BENCHMARKS = {
    "g3": ("benchmarks.g3_ettr", "ETTR of real ranks under one SIGKILL a minute"),
    "g4": ("benchmarks.g4_detection", "fault to confirmed in the backend"),
    "g5": ("benchmarks.g5_heartbeats", "false evictions in simulated heartbeats, late and lost"),
    "g7": (
        "benchmarks.g7_stall",
        "survivors' stall, steps lost, time to full strength; peers beside us",
    ),
    "g8": (
        "benchmarks.g8_catch_up",
        "a replica comes back: survivors' extra stall, rate of its transfer; torchft beside us",
    ),
    "g9": ("benchmarks.g9_saves", "blocking time of a save, emergency save to durable; Megatron's savers beside us"),
    "decide": ("benchmarks.decide", "one decision, by the size of the job"),
    "schedule": ("benchmarks.schedule", "the plan of the queue, pure and from rows"),
    "ledger": ("benchmarks.ledger", "the GPU-second ledger: 10,000 devices over 30 days, from rows"),
    "steps": ("benchmarks.steps", "one step of a job, reported by all its nodes, by the size of the job"),
    "queue": ("benchmarks.queue", "what the queue promises, over many seeds of small fleets"),
    "preemption": ("benchmarks.preemption", "who yields to urgent jobs, over a week of a synthetic queue"),
    "quotas": ("benchmarks.quotas", "what quotas that are lent and taken back give, over weeks of a synthetic queue"),
    "map": ("benchmarks.fleet_map", "the sentinel's look at the tables, by the size of the fleet and what changed"),
    "api": ("benchmarks.api_size", "the API's large answers, by the size of the fleet and of the job"),
    "cli": ("benchmarks.cli_speed", "the command line, from its start to its end"),
    "sentinel": ("benchmarks.sentinel_cost", "the sentinel's CPU by part, by nodes and interval"),
    "returns": ("benchmarks.returns", "a whole fleet's agents come back: what a hello and a close cost, by its size"),
    "soak": ("benchmarks.soak", "what grows: memory, rows and files under a fleet for hours"),
    "kills": ("benchmarks.kills", "backend processes killed under a working fleet: nothing lost or done twice"),
    "page": ("benchmarks.page_size", "the overview of a large fleet in a real browser"),
    "replay": ("benchmarks.replay", "a recorded week decided again, byte for byte, and by a candidate"),
    "g14": ("benchmarks.g14_regret", "regret of the chosen way out of a failure, by roll-out"),
    "rejoin": ("benchmarks.rejoin", "a replica's restart, phase by phase"),
    "crashpoints": ("benchmarks.crashpoints", "kills during saves: the newest complete checkpoint loads"),
    "g11": ("benchmarks.agent_cost", "what the agent costs its node"),
    "compound": ("benchmarks.compound", "compound faults for minutes; causes, certificates and figures checked"),
    "flight": ("benchmarks.flight_verdicts", "Flight Recorder cases answered rightly; torch's analyser beside us"),
    "signing": ("benchmarks.signing", "what a signature adds to a command"),
    "bugs": ("benchmarks.old_bugs", "faults of old, put back one by one: which the seeds find, after how many"),
    "clone": ("benchmarks.clone_to_page", "from git clone to a running job on the page"),
}


def leave(number: int, _frame: FrameType | None) -> NoReturn:
    """A signal to stop ends the benchmark the ordinary way, so that its processes end too."""
    raise SystemExit(128 + number)


def main(argv: list[str]) -> int:
    """Exit code of the benchmark; 2 for a name that is none."""
    if not argv or argv[0] in ("-h", "--help"):
        print(__doc__)
        for name, (_module, what) in BENCHMARKS.items():
            print(f"  {name:6} {what}")
        return 0
    if argv[0] not in BENCHMARKS:
        print(f"no benchmark {argv[0]!r}; there are {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, leave)
    return int(importlib.import_module(BENCHMARKS[argv[0]][0]).main(argv[1:]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
