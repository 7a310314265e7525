"""Pilots: an array of one-node jobs of Slurm's, each of which lends its node to a control plane that stands. Pure.

Called by `holdfast slurm pilots`. So many elements as there are to be nodes run at a time; the others wait in Slurm's
queue as cold spares, and each that ends lets the next one start, on whatever node Slurm has (ADR 0061).
"""

import shlex
from dataclasses import dataclass

from controlplane.engines.slurm.answers import COMMENT, PILOTS
from controlplane.slurm.plan import Asked, PlanError
from controlplane.slurm.script import agents_grace_s, named, surroundings

MAX_ELEMENTS = 1000
"""Slurm's own default (slurm.conf(5), MaxArraySize, less one)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pilots(Asked):
    """`nodes` at a time, with `cold` spare ones behind them, for the control plane `server`. `directory` keeps what
    each node is known by from one allocation to the next."""

    cold: int

    def __post_init__(self) -> None:
        """Raises PlanError: pilots that are wrong do not exist."""
        Asked.__post_init__(self)
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
        pilots.python, "-m", "controlplane.slurm.pilot", "--server", pilots.server.replace("http", "ws", 1),
        "--join-token-file", pilots.join_token_file, "--directory", pilots.directory,
        "--grace-s", str(agents_grace_s(pilots)), "--probe", pilots.probe,
        "--devices", str(pilots.gpus_per_node), "--owners", pilots.owners,
    )  # fmt: skip
    return f"""#!/bin/bash
{chr(10).join(f"#SBATCH {option}" for option in options(pilots))}
# Made by `holdfast slurm pilots`; docs/slurm.md says what runs where, what it writes, and how to end it.
set -eu
umask 077
{surroundings(pilots)}exec {" ".join(map(shlex.quote, argv))}
"""


def options(pilots: Pilots) -> tuple[str, ...]:
    """What is asked of Slurm, one option each. A pilot that Slurm preempts or whose node fails waits in the queue again
    (`--requeue`), behind the cold ones. Before the time limit the pilot itself gets SIGTERM (`B:`). The comment is what
    the server reads back of it (`engines.slurm`)."""
    return (
        f"--job-name={PILOTS}",
        f"--array=1-{pilots.nodes + pilots.cold}%{pilots.nodes}",
        "--nodes=1",
        "--ntasks=1",
        "--exclusive",
        "--mem=0",
        "--requeue",
        f"--signal=B:TERM@{pilots.grace_s}",
        f"--comment={COMMENT}server={pilots.server};grace_s={agents_grace_s(pilots)}",
        f"--output={pilots.directory}/pilot-%A_%a.out",
        "--open-mode=append",
        *named(pilots),
    )
