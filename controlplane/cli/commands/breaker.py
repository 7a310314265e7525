"""holdfast breaker ..."""

from itertools import islice
from typing import Annotated

import typer

from controlplane.cli import columns, context
from controlplane.cli.context import BY_HAND, Output, Reason
from controlplane.cli.output import Format, emit_rows, say

app = typer.Typer(no_args_is_help=True, help="What holds automation, and why.")
MANY = 20


@app.command()
def show(output: Output = Format.TABLE) -> None:
    """Breakers, newest first: what opened them, what waits, who closed them."""
    with context.client() as client:
        rows = [context.plain(row) for row in islice(client.breakers.list(), MANY)]
    emit_rows(rows, columns.BREAKERS, output, context.screen(), name="id")
    waiting = [row for row in rows if row["closed_at"] is None]
    if output is Format.TABLE and waiting:
        context.next_commands(*(f"holdfast breaker close {row['id']} --reason ..." for row in waiting))


@app.command()
def close(breaker: Annotated[str, typer.Argument(metavar="BREAKER")], reason: Reason = BY_HAND) -> None:
    """Let automation go on. What it has done so far counts no more; what is found anew does."""
    with context.client() as client:
        say(client.breakers.close(breaker, reason).detail)
    context.next_commands("holdfast breaker show")
