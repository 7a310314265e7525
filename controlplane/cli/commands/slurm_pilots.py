"""holdfast slurm pilots: nodes of Slurm's for a control plane that stands (docs/slurm.md)."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controlplane.cli import context
from controlplane.cli.commands.slurm import OWNERS_HELP, checkout, with_owners
from controlplane.cli.exits import CliError, Exit
from controlplane.cli.output import say

if TYPE_CHECKING:
    from controlplane.slurm.pilots import Pilots

DIRECTORY = Path("holdfast-pilots")


def pilots(
    nodes: Annotated[int, typer.Option(help="Pilots that run at a time, one node each.", min=1)],
    server: Annotated[str, typer.Option(help="The control plane: https://HOST[:PORT].")],
    join_token_file: Annotated[
        Path, typer.Option(help="A file with a join token of it, with a use for each node where a pilot may start.")
    ],
    owners: Annotated[str, typer.Option(help=OWNERS_HELP)] = "",
    cold: Annotated[
        int, typer.Option(help="Pilots behind them in Slurm's queue: one starts when one ends.", min=0)
    ] = 1,
    time: Annotated[str, typer.Option(help="Time limit of each, as Slurm writes it: 4:00:00, 2-12.")] = "",
    partition: Annotated[str, typer.Option(help="Of Slurm; names with commas.")] = "",
    account: Annotated[str, typer.Option(help="Of Slurm.")] = "",
    qos: Annotated[str, typer.Option(help="Of Slurm.")] = "",
    constraint: Annotated[str, typer.Option(help="Features of nodes, as Slurm's --constraint.")] = "",
    reservation: Annotated[str, typer.Option(help="Of Slurm.")] = "",
    gpus_per_node: Annotated[int, typer.Option(help="Asked of Slurm as --gres=gpu:N; 0: not asked for.", min=0)] = 0,
    grace: Annotated[int, typer.Option(help="Seconds before the time limit at which a pilot begins to leave.")] = 60,
    directory: Annotated[
        Path, typer.Option(help="On a file system of all nodes: what each node is known by, and logs.")
    ] = DIRECTORY,
    probe: Annotated[str, typer.Option(help="nvml, or simulated for a trial without GPUs.")] = "nvml",
    show: Annotated[bool, typer.Option("--print", help="Print the batch script and submit nothing.")] = False,
) -> None:
    """Lend nodes of Slurm's to a control plane that stands: an array of one-node jobs."""
    from controlplane.engines.slurm import tools
    from controlplane.slurm.pilots import Pilots, script
    from controlplane.slurm.plan import PlanError

    try:
        plan = Pilots(
            nodes=nodes,
            cold=cold,
            gpus_per_node=gpus_per_node,
            server=server.rstrip("/"),
            join_token_file=str(join_token_file.absolute()),
            owners=owners,
            python=sys.executable,
            directory=str(directory.absolute()),
            checkout=checkout(),
            time=time,
            partition=partition,
            account=account,
            qos=qos,
            constraint=constraint,
            reservation=reservation,
            grace_s=grace,
            kill_wait_s=tools.kill_wait_s() or tools.KILL_WAIT_S,
            probe=probe,
        )
    except PlanError as error:
        raise CliError(str(error), fix=error.fix) from error
    plan = with_owners(plan)
    if show:
        say(script(plan).rstrip("\n"))
    else:
        _submit(plan, directory)


def _submit(plan: "Pilots", directory: Path) -> None:
    """Raises CliError."""
    from controlplane.engines.slurm import tools
    from controlplane.slurm import places
    from controlplane.slurm.pilots import options, script

    try:
        Path(plan.join_token_file).read_bytes()
    except OSError as error:
        fix = "holdfast join-token create --name-pattern NAMES --cidr NETWORK --uses NODES, and put it into that file"
        raise CliError(f"{plan.join_token_file} cannot be read: {error.strerror}", fix=fix) from error
    try:
        places.yours(directory)
        job = tools.submit(script(plan), options(plan), partition=plan.partition)
    except places.PlaceError as error:
        raise CliError(error.what, fix=error.fix) from error
    except tools.SlurmError as error:
        code = Exit.NOT_FOUND if error.missing else Exit.NEGATIVE
        raise CliError(str(error), fix=error.fix, code=code) from error
    say(job)
    context.hint(f"Submitted array {job} of Slurm: {plan.nodes} pilots at a time, {plan.cold} cold ones behind them.")
    whose = "every account" if plan.owners == "*" else plan.owners
    context.hint(f"Jobs of {whose} may run there, as you and with all that you can read.")
    context.next_commands(f"squeue --array --jobs {job}", "holdfast node ls", f"scancel {job}")
