"""How long the command line takes, as who types it waits: whole processes, from their start to their end.

    python -m benchmarks cli [--runs 100] [--jobs 100]

`holdfast --help` asks no server. `holdfast job ls` lists jobs of a web process on loopback over SQLite, by an API token
from the environment; once for 20 jobs as people type it, once for all. Beside them the interpreter alone, which is in
each of them. The commands take turns, so that what else runs on the machine meets all alike; two runs of each before
the first that counts have read the files. The web process is this one; its work is not in a command's processor time.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from benchmarks.api_size import fill_jobs
from benchmarks.own_database import own_database
from benchmarks.report import Report

HELP_GOAL_S, LS_GOAL_S = 0.25, 0.5
WARM_UPS = 2
PROGRAM = (sys.executable, "-m", "controlplane.cli")


def main(argv: list[str]) -> int:
    """Prints a table; 0 if both medians are within their goals."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100, help="of each command")
    parser.add_argument("--jobs", type=int, default=100, help="that the server has")
    options = parser.parse_args(argv)
    commands = {
        "python -c pass": ((sys.executable, "-c", "pass"), None),
        "holdfast --help": ((*PROGRAM, "--help"), HELP_GOAL_S),
        "holdfast job ls --limit 20": ((*PROGRAM, "job", "ls", "--limit", "20"), LS_GOAL_S),
        "holdfast job ls": ((*PROGRAM, "job", "ls", "--limit", str(options.jobs)), LS_GOAL_S),
    }
    took: dict[str, list[Took]] = {name: [] for name in commands}
    with own_database(postgres=False):
        from tests.integration.api.server import running_whole

        fill_jobs(options.jobs)
        token = _token()
        with running_whole() as url:
            environment = {**os.environ, "HOLDFAST_URL": url, "HOLDFAST_TOKEN": token}
            for turn in range(WARM_UPS + options.runs):
                for name, (command, _) in commands.items():
                    one = run(command, environment)
                    if turn >= WARM_UPS:
                        took[name].append(one)
    report = Report(goal_id="cli", title=f"the command line, {options.jobs} jobs")
    met = True
    for name, (_, goal_s) in commands.items():
        walls = [each.wall_s for each in took[name]]
        report.add(name, "s", walls, goal="" if goal_s is None else f"< {goal_s:g}")
        report.add(f"{name}: its processor time", "s", [each.cpu_s for each in took[name]])
        met &= goal_s is None or sorted(walls)[len(walls) // 2] < goal_s
    report.finish()
    return 0 if met else 1


class Took(NamedTuple):
    """Of one process: what a person waits, and what the machine works for it."""

    wall_s: float
    cpu_s: float


def run(command: Sequence[str], environment: Mapping[str, str]) -> Took:
    """One process to its end. Raises CalledProcessError where it failed."""
    began_s = time.perf_counter()
    process = subprocess.Popen(command, env=dict(environment), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - began_s
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, list(command))
    return Took(wall_s, used.ru_utime + used.ru_stime)


def _token() -> str:
    from django.contrib.auth.models import User

    from controlplane.access.services import create_api_token

    user = User.objects.create_superuser("bench")
    return create_api_token(user, name="bench", scope="read").secret


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
