"""holdfast slurm ...: inside a Slurm allocation (docs/slurm.md)."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controlplane.cli import context
from controlplane.cli.commands.job import File, read_spec
from controlplane.cli.exits import CliError, Exit
from controlplane.cli.output import say

if TYPE_CHECKING:
    from controlplane.slurm.plan import Plan

app = typer.Typer(no_args_is_help=True, help="Run jobs inside Slurm allocations; needs no administrator.")

DIRECTORY = Path("holdfast-slurm")


@app.command("submit")
def submit(
    file: File,
    nodes: Annotated[int, typer.Option(help="Nodes that the job trains on.", min=1)],
    spares: Annotated[int, typer.Option(help="Nodes beside them, for replicas whose node is lost.", min=0)] = 1,
    time: Annotated[str, typer.Option(help="Time limit as Slurm writes it: 4:00:00, 2-12.")] = "",
    partition: Annotated[str, typer.Option(help="Of Slurm; names with commas.")] = "",
    account: Annotated[str, typer.Option(help="Of Slurm.")] = "",
    qos: Annotated[str, typer.Option(help="Of Slurm.")] = "",
    constraint: Annotated[str, typer.Option(help="Features of nodes, as Slurm's --constraint.")] = "",
    reservation: Annotated[str, typer.Option(help="Of Slurm.")] = "",
    gpus_per_node: Annotated[int | None, typer.Option(help="Else as many as the spec asks for.", min=0)] = None,
    grace: Annotated[int, typer.Option(help="Seconds before the time limit at which the job begins to save.")] = 60,
    directory: Annotated[
        Path, typer.Option(help="On a file system of all nodes; a folder each allocation.")
    ] = DIRECTORY,
    probe: Annotated[str, typer.Option(help="nvml, or simulated for a trial without GPUs.")] = "nvml",
    server: Annotated[str, typer.Option(help="A control plane that stands already; else one is started.")] = "",
    join_token_file: Annotated[Path | None, typer.Option(help="Of --server: a file with a join token.")] = None,
    show: Annotated[bool, typer.Option("--print", help="Print the batch script and submit nothing.")] = False,
) -> None:
    """Train a job in an allocation of its own: --nodes and --spares, one batch job."""
    from controlplane.slurm import tools
    from controlplane.slurm.plan import PlanError, plan_of
    from controlplane.slurm.script import script

    try:
        plan = plan_of(
            read_spec(file),
            gpus_per_node=gpus_per_node,
            nodes=nodes,
            spares=spares,
            time=time,
            partition=partition,
            account=account,
            qos=qos,
            constraint=constraint,
            reservation=reservation,
            grace_s=grace,
            kill_wait_s=tools.kill_wait_s() or tools.KILL_WAIT_S,
            python=sys.executable,
            checkout=_checkout(),
            directory=str(directory.absolute()),
            probe=probe,
            server=server.rstrip("/"),
            join_token_file=str(join_token_file.absolute()) if join_token_file else "",
        )
    except PlanError as error:
        raise CliError(str(error), fix=error.fix) from error
    if show:
        say(script(plan).rstrip("\n"))
        return
    say(job := _hand_over(plan, directory))
    context.hint(f"Submitted {plan.job_name} as job {job} of Slurm: {plan.nodes} nodes and {plan.spares} spare ones.")
    context.next_commands(
        f"squeue --jobs {job}", f"tail -f {plan.directory}/slurm-{job}.out", f"scancel --signal=TERM {job}"
    )


def _hand_over(plan: "Plan", directory: Path) -> str:
    """The id of Slurm's job. Raises CliError."""
    from controlplane.slurm import tools
    from controlplane.slurm.script import options, script

    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        return tools.submit(script(plan), options(plan), partition=plan.partition)
    except OSError as error:
        fix = "name another with --directory"
        raise CliError(f"{directory} cannot be made: {error.strerror}", fix=fix) from error
    except tools.SlurmError as error:
        code = Exit.NOT_FOUND if error.missing else Exit.NEGATIVE
        raise CliError(str(error), fix=error.fix, code=code) from error


def _checkout() -> str:
    """Where Holdfast lies, with the program that makes a control plane's tables. Raises CliError."""
    root = Path(__file__).resolve().parents[3]
    if not (root / "manage.py").exists():
        raise CliError(
            f"{root} has no manage.py, so no control plane can be started from it",
            fix="run holdfast from a checkout, or from a directory that was installed as docs/install.md says",
        )
    return str(root)
