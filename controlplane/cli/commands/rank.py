"""holdfast rank ...: look at one rank, command it, or break it on purpose."""

import time
from typing import Annotated, Any

import typer

from controlplane.cli import context
from controlplane.cli.commands.job import Job
from controlplane.cli.commands.rank_commands import ENDED, POLL_S, Rank, Replica, giver
from controlplane.cli.commands.request import Timeout, Wait, follow
from controlplane.cli.context import BY_HAND, Reason
from controlplane.cli.exits import CliError, Exit
from controlplane.cli.output import say
from controlplane.protocol.diagnostics import named
from controlplane.protocol.rank_commands import BY_NAME

app = typer.Typer(no_args_is_help=True, help="Look at one rank of a job, command it, or break it on purpose.")


@app.command()
def debug(
    job: Job,
    replica: Replica,
    rank: Rank,
    look: Annotated[str, typer.Argument(metavar="KIND", help=f"{named()}.")] = "stacks",
    duration: Annotated[float | None, typer.Option(help="Seconds of a profile, at most 10.", min=0.1, max=10.0)] = None,
    wait: Annotated[float, typer.Option(help="Seconds to wait for the answer.", min=0.1)] = 30.0,
    reason: Reason = BY_HAND,
) -> None:
    """What a rank says about itself, also while it hangs."""
    with context.client() as client:
        order = client.jobs.debug(job, replica, rank, look.replace("-", "_"), reason, duration_s=duration)
        found = _answer(client, job, order.command_ids[0], wait)
    context.hint(f"{found.rank}: {found.method}")
    say(found.text)


@app.command()
def fault(
    job: Job,
    replica: Replica,
    rank: Rank,
    kind: Annotated[str, typer.Argument(metavar="KIND", help="As docs/faults.md lists them.")],
    value: Annotated[float, typer.Option(help="Seconds, where the kind takes some.", min=0.0)] = 0.0,
    reason: Reason = BY_HAND,
    wait: Wait = False,
    timeout: Timeout = 0.0,
) -> None:
    """Break a rank on purpose; only where the job's spec allows faults."""
    with context.client() as client:
        asked = client.jobs.fault(job, replica, rank, kind.replace("-", "_"), reason, value=value)
        then = ("holdfast incident ls", f"holdfast job watch {job}")
        follow(client, asked, wait=wait, timeout_s=timeout, then=then)


for name, kind in BY_NAME.items():
    app.command(name.replace("_", "-"))(giver(kind))


def _answer(client: Any, job: str, command_id: str, wait_s: float) -> Any:
    """The look, once it is there. Raises CliError when the agent refuses or time runs out."""
    until_s = time.monotonic() + wait_s
    while time.monotonic() < until_s:
        found = next(iter(client.jobs.diagnostics(job, command_id=command_id)), None)
        if found is not None:
            return found
        command = next((c for c in client.jobs.commands(job) if c.id == command_id), None)
        if command is not None and command.state in ENDED[1:]:
            raise CliError(f"the agent did not look: {command.detail or command.state}", code=Exit.CONFLICT)
        time.sleep(POLL_S)
    raise CliError(
        f"no answer within {wait_s:g} s",
        fix=f"is its node connected? The answer may still come: holdfast job events {job}",
        code=Exit.TIMEOUT,
    )
