"""holdfast window ..."""

from itertools import islice
from typing import Annotated

import typer

from controlplane.cli import context
from controlplane.cli.commands.fleet import find
from controlplane.cli.context import BY_HAND, Output, Reason
from controlplane.cli.output import Column, Format, emit_rows, say, text
from controlplane.cli.spans import begins, length_of

app = typer.Typer(no_args_is_help=True, help="When nodes are known to leave, and to be back.")
MANY = 50
COLUMNS = (
    Column(title="ID", show=text("id")),
    Column(title="NODE", show=text("node_name")),
    Column(title="SOURCE", show=text("source")),
    Column(title="LEAVES", show=text("leaves_at")),
    Column(title="BACK", show=text("back_at")),
    Column(title="REASON", show=text("reason")),
    Column(title="WHO", show=text("who")),
    Column(title="OVER", show=text("over_at"), wide=True),
    Column(title="BECAUSE", show=text("over_by"), wide=True),
)
Start = Annotated[str, typer.Option("--from", help="When it starts: an instant, or so long from now (30m, 2h, 3d).")]
Length = Annotated[str, typer.Option("--for", help="How long it lasts: 30m, 2h, 3d.")]
Nodes = Annotated[list[str] | None, typer.Argument(metavar="[NODE]...", help="Names or ids of nodes.")]
Segment = Annotated[str, typer.Option("--segment", help="Over the nodes that are in this segment now.")]


@app.command("ls")
def list_windows(
    every: Annotated[bool, typer.Option("--all", help="Those that are over, too.")] = False,
    output: Output = Format.TABLE,
) -> None:
    """Maintenance windows and notices of providers, newest first."""
    with context.client() as client:
        rows = [context.plain(row) for row in islice(client.windows.list(holds=not every), MANY)]
    emit_rows(rows, COLUMNS, output, context.screen(), name="id")


@app.command("set")
def set_window(
    nodes: Nodes = None, start: Start = "0m", length: Length = "1h", segment: Segment = "", reason: Reason = BY_HAND
) -> None:
    """Nodes are empty when the window starts, and take work again when it is over."""
    starts_at = begins(start)
    ends_at = starts_at + length_of(length)
    times = (starts_at.isoformat(), ends_at.isoformat())
    with context.client() as client:
        ids = [find(client, node) for node in nodes or ()]
        taken = client.windows.set(*times, reason, nodes=ids, segment=segment or None)
        say(taken.detail)
    context.next_commands("holdfast window ls", f"holdfast window cancel {taken.window}")


@app.command()
def cancel(
    window: Annotated[str, typer.Argument(metavar="WINDOW", help="As `holdfast window ls` lists it.")],
    reason: Reason = BY_HAND,
) -> None:
    """The node stays: what has not left it stays too."""
    with context.client() as client:
        say(client.windows.cancel(window, reason).detail)
    context.next_commands("holdfast window ls")
