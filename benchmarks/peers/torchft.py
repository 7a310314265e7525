"""Peer: torchft 0.2.0, a lighthouse and one replica group for each data-parallel copy.

    python -m benchmarks.peers.torchft --kills 5 --json OUT

torchft is installed on demand into a virtual environment of its own under var/peers.
Each group runs under its own torchrun, which starts it again when a rank dies.
`--heartbeat-timeout-s` is 1 s here; torchft's default of 5 s costs as much more.
"""

import argparse
import subprocess
import sys
import sysconfig
from pathlib import Path

from benchmarks.peers import runner, workload
from benchmarks.peers.command import finish, parser, scratch
from benchmarks.peers.launch import LOOPBACK, QUIET, torchrun_argv
from benchmarks.processes import REPOSITORY, Processes
from controlplane.demo.ports import free_port

VERSION = "0.2.0"
ENVIRONMENT = REPOSITORY / "var" / "peers" / "torchft"
INSTALL_TIMEOUT_S = 300.0
MONITOR_S = 0.1
JOIN_TIMEOUT_MS = 10_000
TICK_MS = 50


def environment() -> Path:
    """Python of an environment that has torchft and sees this one's packages."""
    python = ENVIRONMENT / "bin" / "python"
    if not (ENVIRONMENT / "bin" / "torchft_lighthouse").exists():
        _run(sys.executable, "-m", "venv", str(ENVIRONMENT))
        site = ENVIRONMENT / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
        (site / "parent.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
        _run(str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"torchft=={VERSION}")
    return python


def _run(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise runner.PeerFailed(f"{' '.join(argv)} failed:\n{done.stderr[-2000:]}")


def measure(args: argparse.Namespace, directory: Path, body: runner.Body = runner.run) -> runner.Result:
    """Start the lighthouse and the groups and do `body` to them; by default kill `args.kills`
    ranks, one at a time. Raises PeerFailed."""
    python = environment()
    records = directory / "records"
    records.mkdir(parents=True)
    port = free_port(LOOPBACK)
    facts = {
        "torchft": VERSION,
        "heartbeat timeout (s)": args.heartbeat_timeout_s,
        "outer timeout (s)": args.outer_timeout_s,
        "quorum": "asynchronous",
    }
    plan = runner.Plan(
        name="torchft", kills=args.kills, seed=args.seed, replicas=workload.REPLICAS, ranks=workload.PIPELINE,
        calm_steps=args.calm_steps, facts=facts,
    )  # fmt: skip
    lighthouse = (
        str(ENVIRONMENT / "bin" / "torchft_lighthouse"), "--bind", f"{LOOPBACK}:{port}", "--min_replicas", "1",
        "--join_timeout_ms", str(JOIN_TIMEOUT_MS), "--quorum_tick_ms", str(TICK_MS),
        "--heartbeat_timeout_ms", str(round(args.heartbeat_timeout_s * 1000)),
    )  # fmt: skip
    with Processes(directory / "logs") as processes:
        processes.start("lighthouse", lighthouse, QUIET)
        for replica in range(workload.REPLICAS):
            program = (
                "benchmarks.peers.torchft_rank", "--records", str(records), "--replica", str(replica),
                "--lighthouse", f"http://{LOOPBACK}:{port}", "--outer-timeout-s", str(args.outer_timeout_s),
                "--delay-s", str(args.delay_s),
            )  # fmt: skip
            argv = torchrun_argv(
                str(python), ranks=workload.PIPELINE, max_restarts=args.kills + 3, monitor_s=MONITOR_S, program=program
            )
            processes.start(f"group-{replica}", argv, QUIET)
        return body(plan, processes=processes, directory=records)


def add_options(options: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """This peer's own."""
    options.add_argument("--heartbeat-timeout-s", type=float, default=1.0, help="lighthouse: silence that means dead")
    options.add_argument("--outer-timeout-s", type=float, default=5.0, help="torchft: outer process group and manager")
    return options


def main(argv: list[str]) -> int:
    """Command line."""
    args = add_options(parser(__doc__)).parse_args(argv)
    with scratch("torchft") as directory:
        return finish(measure(args, directory), args)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
