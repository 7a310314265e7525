"""holdfast node ... and holdfast gpu ..."""

from typing import Annotated, Any

import typer

from controlplane.cli import columns, context
from controlplane.cli.context import BY_HAND, Output, Reason
from controlplane.cli.exits import CliError, Exit
from controlplane.cli.output import Format, emit_object, emit_rows, say

node = typer.Typer(no_args_is_help=True, help="Machines with an agent.")
gpu = typer.Typer(no_args_is_help=True, help="Devices.")
Node = Annotated[str, typer.Argument(metavar="NODE", help="Id or name.")]


def find(client: Any, wanted: str) -> str:
    """The id of a node named by id or name. Raises CliError (NOT_FOUND)."""
    if wanted.startswith("node_"):
        return wanted
    for row in client.nodes.list(limit=500):
        if row.name == wanted:
            return str(row.id)
    raise CliError(f"no node {wanted!r}", fix="holdfast node ls", code=Exit.NOT_FOUND)


@node.command("ls")
def list_nodes(output: Output = Format.TABLE) -> None:
    """List nodes by name."""
    with context.client() as client:
        rows = sorted((context.plain(row) for row in client.nodes.list()), key=lambda row: row["name"])
        emit_rows(rows, columns.NODES, output, context.screen(), name="name")


@node.command("get")
def get_node(node: Node, output: Output = Format.TABLE) -> None:
    """One node."""
    with context.client() as client:
        row = context.plain(client.nodes.get(find(client, node)))
        emit_object(row, columns.NODES, output, context.screen(), name="id")


@node.command()
def cordon(node: Node, reason: Reason = BY_HAND) -> None:
    """Give it no new work."""
    with context.client() as client:
        say(client.nodes.cordon(find(client, node), reason).detail)
    context.next_commands(f"holdfast node get {node}", f"holdfast node uncordon {node}")


@node.command()
def uncordon(node: Node, reason: Reason = BY_HAND) -> None:
    """Let it take work again."""
    with context.client() as client:
        say(client.nodes.uncordon(find(client, node), reason).detail)
    context.next_commands(f"holdfast node get {node}")


@gpu.command("ls")
def list_gpus(
    node: Annotated[str | None, typer.Option(help="Only of this node.")] = None, output: Output = Format.TABLE
) -> None:
    """List devices by node and index."""
    with context.client() as client:
        nodes = sorted((context.plain(row) for row in client.nodes.list()), key=lambda row: row["name"])
    rows = [
        device | {"node_name": row["name"]}
        for row in nodes
        if node is None or node in (row["name"], row["id"])
        for device in row["devices"]
    ]
    emit_rows(rows, columns.GPUS, output, context.screen(), name="id")
