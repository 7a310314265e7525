"""holdfast request ..., and waiting for what was asked for."""

import time
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from controlplane.cli import columns, context
from controlplane.cli.context import BY_HAND, Output, Reason
from controlplane.cli.exits import CliError, Exit
from controlplane.cli.output import Format, emit_object, emit_rows, say

if TYPE_CHECKING:
    from controlplane.sdk import Client

app = typer.Typer(no_args_is_help=True, help="What people asked for, and what came of it.")

Request = Annotated[str, typer.Argument(metavar="REQUEST")]
Wait = Annotated[bool, typer.Option("--wait", help="Stay until it is done; the exit code says how it ended.")]
Timeout = Annotated[float, typer.Option(help="Seconds for --wait; 0 waits for ever.", min=0.0)]
LIVE = ("open", "taken")
POLL_S = 0.5


@app.command("ls")
def list_requests(
    kind: Annotated[str | None, typer.Option(help="evict, checkpoint, drain or fault; several with commas.")] = None,
    state: Annotated[
        str | None, typer.Option(help="open, taken, done, refused, lapsed or withdrawn; several with commas.")
    ] = None,
    job: Annotated[str | None, typer.Option(help="Only what was asked of this job.")] = None,
    limit: Annotated[int, typer.Option(help="At most this many.", min=1)] = 100,
    output: Output = Format.TABLE,
) -> None:
    """List requests, newest first."""
    with context.client() as client:
        job_id = client.jobs.get(job).id if job else None
        found = client.requests.list(kind=kind, state=state, job_id=job_id, limit=min(limit, 500))
        emit_rows(
            [context.plain(row) for row in islice(found, limit)], columns.REQUESTS, output, context.screen(), name="id"
        )


@app.command("get")
def get_request(request: Request, output: Output = Format.TABLE) -> None:
    """One request: who asked, and what came of it."""
    with context.client() as client:
        row = context.plain(client.requests.get(request))
    emit_object(row, columns.REQUESTS, output, context.screen(), name="id")
    if output in (Format.TABLE, Format.WIDE):
        say(f"\n{row['answer'] or 'It has not been answered yet.'}")
        for part in row["parts"]:
            say(f"  {part['id']}  {part['state']}  {part['answer']}")
    if row["decision_id"]:
        context.next_commands(f"holdfast decision explain {row['decision_id']}")


@app.command()
def withdraw(request: Request, reason: Reason = BY_HAND) -> None:
    """Take it back: what has not happened yet does not happen."""
    with context.client() as client:
        say(client.requests.withdraw(request, reason).detail)
    context.next_commands(f"holdfast request get {request}")


def follow(client: "Client", accepted: Any, *, wait: bool, timeout_s: float, then: tuple[str, ...]) -> None:
    """What was answered to an act, and with `wait` the end of its request, which decides the exit code."""
    say(accepted.detail)
    if not wait:
        context.next_commands(f"holdfast request get {accepted.request}", *then)
        return
    row = _until_ended(client, accepted.request, timeout_s)
    say(f"{row.state}: {row.answer}")
    if row.state != "done":
        raise typer.Exit(Exit.NEGATIVE)


def _until_ended(client: "Client", request_id: str, timeout_s: float) -> Any:
    """The request as it ended. Tells each change on stderr. Raises CliError (TIMEOUT)."""
    begun_s, last = time.monotonic(), ""
    while True:
        row = client.requests.get(request_id)
        if row.state not in LIVE:
            return row
        if row.state != last:
            context.hint(f"{row.id}: {row.state}  {row.answer}".rstrip())
            last = row.state
        if timeout_s and time.monotonic() - begun_s >= timeout_s:
            raise CliError(
                f"{row.id} is {row.state} after {timeout_s:g} s",
                fix=f"it continues; holdfast request get {row.id}, holdfast request withdraw {row.id}",
                code=Exit.TIMEOUT,
            )
        time.sleep(POLL_S)
