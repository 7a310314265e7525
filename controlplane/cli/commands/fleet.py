"""holdfast node ... and holdfast gpu ..."""

import contextlib
from typing import Annotated, Any

import typer

from controlplane.cli import columns, context
from controlplane.cli.commands.engine import OF_NODE
from controlplane.cli.commands.join_token import show_once
from controlplane.cli.commands.request import Timeout, Wait, follow
from controlplane.cli.context import BY_HAND, Output, Reason
from controlplane.cli.exits import CliError, Exit
from controlplane.cli.output import Format, emit_object, emit_rows, say
from controlplane.cli.spans import begins, length_of

node = typer.Typer(no_args_is_help=True, help="Machines with an agent.")
gpu = typer.Typer(no_args_is_help=True, help="Devices.")
SHOWN_HELD = 5
MAX_NAME = 100
"""Characters of a node's name."""
MAX_IN_PATH = 64
"""Characters of what a path of the API names."""
Node = Annotated[str, typer.Argument(metavar="NODE", help="Id or name.")]


def find(client: Any, wanted: str) -> str:
    """The id of a node named by id or name. Raises CliError (NOT_FOUND)."""
    if wanted.startswith("node_"):
        return wanted
    if len(wanted) <= MAX_IN_PATH:
        from controlplane.sdk import NotFoundError

        with contextlib.suppress(NotFoundError):
            return str(client.nodes.get(wanted).id)
    elif len(wanted) <= MAX_NAME:
        from controlplane.api.shapes import rows_of

        found = client.nodes.columns(fields="id,name", q=wanted)
        for row in rows_of(found.columns):
            if row["name"] == wanted:
                return str(row["id"])
    raise CliError(f"no node {wanted!r}", fix="holdfast node ls", code=Exit.NOT_FOUND)


@node.command("ls")
def list_nodes(
    sort: Annotated[
        str | None, typer.Option(help="name, -name, -risk (the highest first) or health (worst first).")
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """List nodes, by name unless --sort says otherwise."""
    with context.client() as client:
        rows = [context.plain(row) for row in client.nodes.list(sort=sort)]
        emit_rows(rows, columns.NODES, output, context.screen(), name="name")
    if held := [row["name"] for row in rows if row["held"]]:
        commands = (f"  holdfast node confirm {name} --reason ..." for name in held[:SHOWN_HELD])
        context.hint(f"Enrolled and waiting for an administrator: {len(held)}.", *commands)


@node.command("get")
def get_node(node: Node, output: Output = Format.TABLE) -> None:
    """One node."""
    with context.client() as client:
        row = context.plain(client.nodes.get(find(client, node)))
        shown = (*columns.NODES, *(OF_NODE if row.get("engine") else ()))
        emit_object(row, shown, output, context.screen(), name="id")


@node.command("dead-letters")
def list_dead_letters(node: Node, output: Output = Format.TABLE) -> None:
    """List events of its agent that could not be applied, newest first."""
    with context.client() as client:
        rows = [context.plain(row) for row in client.nodes.dead_letters(find(client, node))]
        emit_rows(rows, columns.DEAD_LETTERS, output, context.screen(), name="id")
    if any(row["state"] == "waiting" for row in rows):
        context.next_commands(f"manage.py replay_dead_letters --node {node}", "on the server, once the fault is fixed")


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


@node.command()
def drain(
    node: Node,
    reason: Reason = BY_HAND,
    withdraw: Annotated[bool, typer.Option("--withdraw", help="Take it back; what has moved stays moved.")] = False,
    wait: Wait = False,
    timeout: Timeout = 0.0,
) -> None:
    """Empty it: it gets no new work, what runs there moves away, and then it is cordoned."""
    with context.client() as client:
        node_id = find(client, node)
        if withdraw:
            drains = client.requests.list(kind="drain", state="open,taken", node_id=node_id)
            found = next(iter(drains), None)
            if found is None:
                raise CliError(f"{node} is not being drained", fix=f"holdfast node get {node}", code=Exit.CONFLICT)
            say(client.requests.withdraw(found.id, reason).detail)
            context.next_commands(f"holdfast node get {node}")
            return
        then = (f"holdfast node drain {node} --withdraw", f"holdfast node get {node}")
        follow(client, client.nodes.drain(node_id, reason), wait=wait, timeout_s=timeout, then=then)


@node.command()
def maintain(
    node: Node,
    start: Annotated[str, typer.Option("--from", help="When: an instant, or so long from now (30m, 2h, 3d).")] = "0m",
    length: Annotated[str, typer.Option("--for", help="For how long: 30m, 2h, 3d.")] = "1h",
    reason: Reason = BY_HAND,
) -> None:
    """Set a maintenance window: it is empty when that starts, and takes work again when it is over."""
    starts_at = begins(start)
    ends_at = starts_at + length_of(length)
    with context.client() as client:
        node_id = find(client, node)
        taken = client.windows.maintain(node_id, starts_at.isoformat(), ends_at.isoformat(), reason)
        say(taken.detail)
    context.next_commands(f"holdfast node get {node}", f"holdfast window cancel {taken.window}")


@node.command("reset-device")
def reset_device(
    node: Node,
    device: Annotated[int, typer.Argument(metavar="DEVICE", help="Its index on the node.", min=0)],
    reason: Reason = BY_HAND,
) -> None:
    """Have a device reset by its node's agent; refused while a rank is on it."""
    with context.client() as client:
        found = next((d for d in client.nodes.get(find(client, node)).devices if d.index == device), None)
        if found is None:
            raise CliError(f"{node} has no device {device}", fix="holdfast gpu ls", code=Exit.NOT_FOUND)
        say(client.nodes.reset_device(found.id, reason).detail)
    context.next_commands(f"holdfast gpu ls --node {node}")


@node.command()
def revoke(node: Node, reason: Reason = BY_HAND) -> None:
    """Shut it out: its key is worth nothing from now on."""
    with context.client() as client:
        say(client.nodes.revoke(find(client, node), reason).detail)
    context.next_commands(f"holdfast node restore {node}", f"holdfast node re-enrol {node}", f"holdfast node rm {node}")


@node.command()
def restore(node: Node, reason: Reason = BY_HAND) -> None:
    """Take a revocation back; the same key counts again."""
    with context.client() as client:
        say(client.nodes.restore(find(client, node), reason).detail)
    context.next_commands(f"holdfast node get {node}")


@node.command("re-enrol")
def re_enrol(
    node: Node,
    reason: Reason = BY_HAND,
    ttl: Annotated[float, typer.Option(help="Hours until the token expires; 168 at most.", min=0.01, max=168)] = 1.0,
    output: Output = Format.TABLE,
) -> None:
    """A join token with which this node, and no other, gets a new key; shown this once."""
    with context.client() as client:
        made = client.nodes.re_enrol(find(client, node), reason, ttl_s=ttl * 3600.0)
    show_once(context.plain(made), output)


@node.command("rotate-key")
def rotate_key(node: Node, reason: Reason = BY_HAND) -> None:
    """Have its agent make a new key, signed by the old one."""
    with context.client() as client:
        say(client.nodes.rotate_key(find(client, node), reason).detail)


@node.command()
def confirm(
    node: Node, reason: Annotated[str, typer.Option("--reason", "-r", help="Why; kept in the audit log.")]
) -> None:
    """Vouch for a quarantined node: what speaks as it now is it. Admits one that waits since it enrolled."""
    with context.client() as client:
        say(client.nodes.confirm(find(client, node), reason).detail)
    context.next_commands(f"holdfast node get {node}")


@node.command("rm")
def remove(node: Node, reason: Reason = BY_HAND) -> None:
    """Forget it; refused while ranks are placed there."""
    with context.client() as client:
        say(client.nodes.remove(find(client, node), reason).detail)


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
