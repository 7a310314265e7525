"""holdfast slurm ...: inside a Slurm allocation (docs/slurm.md)."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from controlplane.cli import context
from controlplane.cli.commands.job import File, read_spec
from controlplane.cli.config import load
from controlplane.cli.exits import CliError, Exit
from controlplane.cli.output import say

if TYPE_CHECKING:
    from controlplane.slurm.plan import Asked, Plan

Lent = TypeVar("Lent", bound="Asked")
app = typer.Typer(no_args_is_help=True, help="Run jobs inside Slurm allocations; needs no administrator.")

DIRECTORY = Path("holdfast-slurm")
MAX_CHAIN = 16
OWNERS_HELP = "Of --server: accounts, by commas, whose jobs may run there as you; *: all. Not given: yours alone."


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
    owners: Annotated[str, typer.Option(help=OWNERS_HELP)] = "",
    continues: Annotated[
        str, typer.Option("--continue", help="Continue the job of this run of --directory: the number that it had.")
    ] = "",
    chain: Annotated[
        int, typer.Option(help="So many allocations, each of which continues the one before.", min=1, max=MAX_CHAIN)
    ] = 1,
    show: Annotated[bool, typer.Option("--print", help="Print the batch script and submit nothing.")] = False,
) -> None:
    """Train a job in an allocation of its own: --nodes and --spares, one batch job."""
    spec = read_spec(file)
    plan = _plan(
        spec,
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
        directory=str(directory.absolute()),
        probe=probe,
        server=server.rstrip("/"),
        join_token_file=str(join_token_file.absolute()) if join_token_file else "",
        owners=owners,
        continues=continues,
    )
    _check(plan, spec, chain)
    plan = with_owners(plan)
    if show:
        _show(plan)
    else:
        _submit(plan, directory, chain)


def _plan(spec: bytes, *, gpus_per_node: int | None, **given: object) -> "Plan":
    """Raises CliError."""
    from controlplane.engines.slurm import tools
    from controlplane.slurm.plan import PlanError, plan_of

    kill_wait_s = tools.kill_wait_s() or tools.KILL_WAIT_S
    here = {"python": sys.executable, "checkout": checkout(), "kill_wait_s": kill_wait_s}
    try:
        return plan_of(spec, gpus_per_node=gpus_per_node, **given, **here)
    except PlanError as error:
        raise CliError(str(error), fix=error.fix) from error


def _check(plan: "Plan", spec: bytes, chain: int) -> None:
    """That several allocations can continue each other, and the earlier run be continued. Raises CliError."""
    from controlplane.slurm.plan import PlanError

    if chain > 1 and plan.server:
        raise CliError(
            "--chain does not go with --server",
            fix="a control plane that stands already keeps the job in its queue; submit an allocation at any time",
        )
    try:
        if plan.continues:
            _check_earlier(plan, spec)
    except PlanError as error:
        raise CliError(str(error), fix=error.fix) from error


def with_owners(plan: Lent) -> Lent:
    """Of nodes that are lent to a server, and nobody is named for: jobs of the account whose token is used there. A
    job's ranks run as the user who submits, with all that he can read. Raises CliError."""
    if not plan.server or plan.owners:
        return plan
    from controlplane.sdk import Client
    from controlplane.sdk.errors import SdkError
    from controlplane.slurm.plan import is_account

    named = "name the accounts whose jobs may run there as you: --owners NAME[,NAME]"
    try:
        with Client(plan.server, token=load(plan.server).token, timeout_s=context.STATE.timeout_s) as client:
            name = client.me().username
    except SdkError as error:
        raise CliError(
            f"{plan.server} does not say which account is yours: {error}", fix=f"`holdfast login`, or {named}"
        ) from error
    if not is_account(name):
        raise CliError(f"your account's name, {name!r}, is not one name in a list of several", fix=named)
    return replace(plan, owners=name)


def _show(plan: "Plan") -> None:
    from controlplane.slurm.script import script

    say(script(plan).rstrip("\n"))


def _submit(plan: "Plan", directory: Path, chain: int) -> None:
    """Raises CliError."""
    jobs = _hand_over(plan, directory, chain)
    first, last = jobs[0], jobs[-1]
    context.hint(f"Submitted {plan.job_name} as job {first} of Slurm: {plan.nodes} nodes and {plan.spares} spare ones.")
    if len(jobs) > 1:
        context.hint(f"Behind it, one after the other until the job is done: {', '.join(jobs[1:])}.")
    context.next_commands(
        f"squeue --jobs {','.join(jobs)}",
        f"tail -f {plan.directory}/slurm-{first}.out",
        f"scancel --signal=TERM {first}" if first == last else f"scancel {' '.join(reversed(jobs))}",
    )


Config = Annotated[
    Path | None,
    typer.Option(help="The file with url and token; else HOLDFAST_SLURM_CONFIG, else /etc/holdfast/slurm.toml."),
]


@app.command("healthcheck")
def healthcheck(config: Config = None) -> None:
    """Slurm's HealthCheckProgram: drain this node where Holdfast finds it unfit, and undo that once it is well."""
    _hook("healthcheck", config)


@app.command("prolog")
def prolog(config: Config = None) -> None:
    """Slurm's Prolog: refuse the job with exit code 17 where this node is unfit; 0 in all other cases."""
    _hook("prolog", config)


@app.command("epilog")
def epilog(config: Config = None) -> None:
    """Slurm's Epilog: drain this node where Holdfast finds it unfit; the exit code is 0."""
    _hook("epilog", config)


def _hook(name: str, config: Path | None) -> None:
    from controlplane.slurm.observer import guarded

    raise typer.Exit(guarded(name, config))


def _check_earlier(plan: "Plan", spec: bytes) -> None:
    """The run that is to be continued can be. Raises PlanError."""
    from controlplane.engines.slurm import tools
    from controlplane.slurm import continuing
    from controlplane.slurm.plan import PlanError

    run = plan.continues
    state = tools.state_of(run)
    if state:
        raise PlanError(
            f"run {run} is in Slurm's queue still ({state})",
            f"wait until it has ended, or end it: scancel --signal=TERM {run}",
        )
    found = continuing.find(Path(plan.directory), run, spec)
    if isinstance(found, continuing.Over):
        raise PlanError(
            f"the job of run {run} has ended already: {found.state} at step {found.committed_step}",
            "there is nothing to continue; submit a job without --continue",
        )
    if state is None and not continuing.ended_itself(Path(plan.directory), run):
        raise PlanError(
            f"run {run} has not said that it ended, and Slurm does not say whether it runs (squeue)",
            "try again when squeue answers: two allocations must not train one job",
        )
    at = f"resumes at step {found.step}" if found.step is not None else "begins at step 0"
    context.hint(f"Run {run} is continued: {found.name} {at}.")


def _hand_over(plan: "Plan", directory: Path, chain: int) -> list[str]:
    """The ids of Slurm's jobs, each said as soon as it is known. Raises CliError."""
    from controlplane.engines.slurm import tools
    from controlplane.slurm import places
    from controlplane.slurm.script import options, script

    jobs: list[str] = []
    try:
        places.yours(directory)
        while len(jobs) < chain:
            each = plan if not jobs else replace(plan, continues=jobs[-1], chained=True)
            jobs.append(tools.submit(script(each), options(each), partition=plan.partition))
            say(jobs[-1])
    except places.PlaceError as error:
        raise CliError(error.what, fix=error.fix) from error
    except tools.SlurmError as error:
        code = Exit.NOT_FOUND if error.missing else Exit.NEGATIVE
        before = f" after {', '.join(jobs)}, which stay submitted" if jobs else ""
        raise CliError(f"{error}{before}", fix=error.fix, code=code) from error
    return jobs


def checkout() -> str:
    """Where Holdfast lies, with the program that makes a control plane's tables. Raises CliError."""
    root = Path(__file__).resolve().parents[3]
    if not (root / "manage.py").exists():
        raise CliError(
            f"{root} has no manage.py, so no control plane can be started from it",
            fix="run holdfast from a checkout, or from a directory that was installed as docs/install.md says",
        )
    return str(root)
