"""holdfast reservation ..."""

from itertools import islice
from typing import Annotated

import typer

from controlplane.cli import context
from controlplane.cli.commands.fleet import find
from controlplane.cli.commands.window import MANY, Length, Nodes, Segment, Start
from controlplane.cli.context import BY_HAND, Output, Reason
from controlplane.cli.output import Column, Format, Row, emit_rows, say, text
from controlplane.cli.spans import begins, length_of

app = typer.Typer(no_args_is_help=True, help="Nodes that are reserved for a project.")


def _nodes(row: Row) -> str:
    names = [node["name"] for node in row["nodes"]]
    more = row["node_count"] - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")


COLUMNS = (
    Column(title="ID", show=text("id")),
    Column(title="PROJECT", show=text("project")),
    Column(title="NODES", show=_nodes),
    Column(title="FROM", show=text("starts_at")),
    Column(title="UNTIL", show=text("ends_at")),
    Column(title="REASON", show=text("reason")),
    Column(title="WHO", show=text("who")),
    Column(title="OVER", show=text("over_at"), wide=True),
    Column(title="BECAUSE", show=text("over_by"), wide=True),
)
Project = Annotated[str, typer.Argument(metavar="PROJECT", help="Whose jobs alone start there.")]


@app.command("ls")
def list_reservations(
    every: Annotated[bool, typer.Option("--all", help="Those that are over, too.")] = False,
    project: Annotated[str, typer.Option("--project", help="Only for this project.")] = "",
    output: Output = Format.TABLE,
) -> None:
    """Which nodes are reserved for whom, newest first."""
    with context.client() as client:
        found = client.reservations.list(project=project or None, holds=not every)
        rows = [context.plain(row) for row in islice(found, MANY)]
    emit_rows(rows, COLUMNS, output, context.screen(), name="id")


@app.command("set")
def set_reservation(
    project: Project,
    nodes: Nodes = None,
    start: Start = "0m",
    length: Length = "1h",
    segment: Segment = "",
    reason: Reason = BY_HAND,
) -> None:
    """Only jobs of the project start on these nodes, for so long. What runs there stays."""
    starts_at = begins(start)
    times = (starts_at.isoformat(), (starts_at + length_of(length)).isoformat())
    with context.client() as client:
        ids = [find(client, node) for node in nodes or ()]
        taken = client.reservations.set(project, times, reason, nodes=ids, segment=segment or None)
        say(taken.detail)
    context.next_commands("holdfast reservation ls", f"holdfast reservation cancel {taken.reservation}")


@app.command()
def cancel(
    reservation: Annotated[str, typer.Argument(metavar="RESERVATION", help="As `holdfast reservation ls` lists it.")],
    reason: Reason = BY_HAND,
) -> None:
    """Its nodes are everybody's again; what runs there stays."""
    with context.client() as client:
        say(client.reservations.cancel(reservation, reason).detail)
    context.next_commands("holdfast reservation ls")
