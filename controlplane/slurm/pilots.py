"""Pilots: an array of one-node jobs of Slurm's, each of which lends its node to a control plane that stands. Pure.

Called by `holdfast slurm pilots`. So many elements as there are to be nodes run at a time; the others wait in Slurm's
queue as cold spares, and each that ends lets the next one start, on whatever node Slurm has (ADR 0061).
"""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, fields

from controlplane.slurm.plan import PlanError, check_values
from controlplane.slurm.script import NAMED, grace_of, surroundings

MAX_ELEMENTS = 1000
"""Slurm's own default (slurm.conf(5), MaxArraySize, less one)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pilots:
    """`nodes` at a time, with `cold` spare ones behind them, for the control plane `server`, which admits them by the
    token in `join_token_file`. All else as in `plan.Plan`: `directory` keeps what each node is known by from one
    allocation to the next."""

    nodes: int
    cold: int
    gpus_per_node: int
    server: str
    join_token_file: str
    python: str
    directory: str
    checkout: str = ""
    time: str = ""
    partition: str = ""
    account: str = ""
    qos: str = ""
    constraint: str = ""
    reservation: str = ""
    grace_s: int = 60
    kill_wait_s: int = 30
    probe: str = "nvml"

    def __post_init__(self) -> None:
        """Raises PlanError: pilots that are wrong do not exist."""
        check_values({field.name: getattr(self, field.name) for field in fields(self)})
        if not self.server or not self.join_token_file:
            raise PlanError(
                "pilots lend their nodes to a control plane that stands: --server and --join-token-file name it",
                "`holdfast join-token create --name-pattern ... --uses N` makes a token; without a server of your own,"
                " `holdfast slurm submit` brings one",
            )
        if self.nodes + self.cold > MAX_ELEMENTS:
            raise PlanError(
                f"{self.nodes} pilots and {self.cold} cold ones are more than the {MAX_ELEMENTS} elements that an array"
                " of Slurm's has",
                "submit several, each with a part of them",
            )


def script(pilots: Pilots) -> str:
    """The whole text for `sbatch`. The script becomes the pilot, so that signals reach it."""
    argv = (
        pilots.python, "-m", "controlplane.slurm.pilot", "--server", pilots.server,
        "--join-token-file", pilots.join_token_file, "--directory", pilots.directory,
        "--grace-s", str(grace_of(pilots.grace_s, pilots.kill_wait_s)), "--probe", pilots.probe,
        "--devices", str(pilots.gpus_per_node),
    )  # fmt: skip
    return f"""#!/bin/bash
{chr(10).join(f"#SBATCH {option}" for option in options(pilots))}
# Made by `holdfast slurm pilots`; docs/slurm.md says what runs where, what it writes, and how to end it.
set -eu
umask 077
{surroundings(pilots.checkout)}exec {" ".join(map(shlex.quote, argv))}
"""


def options(pilots: Pilots) -> tuple[str, ...]:
    """What is asked of Slurm, one option each. A pilot that Slurm preempts or whose node fails waits in the queue again
    (`--requeue`), behind the cold ones. Before the time limit the pilot itself gets SIGTERM (`B:`)."""
    return (
        f"--job-name={NAMED}-pilots",
        f"--array=1-{pilots.nodes + pilots.cold}%{pilots.nodes}",
        "--nodes=1",
        "--ntasks=1",
        "--exclusive",
        "--mem=0",
        "--requeue",
        f"--signal=B:TERM@{pilots.grace_s}",
        f"--output={pilots.directory}/pilot-%A_%a.out",
        "--open-mode=append",
        *_named(pilots),
    )


def _named(pilots: Pilots) -> Iterator[str]:
    if pilots.gpus_per_node:
        yield f"--gres=gpu:{pilots.gpus_per_node}"
    for name in ("time", "partition", "account", "qos", "constraint", "reservation"):
        if value := getattr(pilots, name):
            yield f"--{name}={value}"
