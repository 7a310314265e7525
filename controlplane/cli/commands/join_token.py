"""holdfast join-token ..."""

from typing import Annotated

import typer

from controlplane.cli import columns, context
from controlplane.cli.context import Output
from controlplane.cli.output import Format, emit_object, emit_rows, say

app = typer.Typer(no_args_is_help=True, help="Tokens with which agents enrol.")


@app.command("create")
def create(
    name: Annotated[str, typer.Option(help="The one node that may enrol with it.")] = "",
    name_pattern: Annotated[str, typer.Option(help="Nodes of such names: gpu-a1-*; ? is one character.")] = "",
    pool: Annotated[str, typer.Option(help="Agents of this --segment.")] = "",
    cidr: Annotated[str, typer.Option(help="Agents from these networks, by commas, such as 10.1.0.0/16.")] = "",
    uses: Annotated[int, typer.Option(help="Agents that may enrol with it.", min=1)] = 1,
    ttl: Annotated[float, typer.Option(help="Hours until it expires; 168 at most.", min=0.01, max=168)] = 1.0,
    hold: Annotated[bool, typer.Option("--hold", help="Their nodes get no work until you confirm them.")] = False,
    output: Output = Format.TABLE,
) -> None:
    """Make one, bound to a name, a pattern of names, a pool or networks; it is shown this once."""
    with context.client() as client:
        made = client.join_tokens.create(
            name=name, name_pattern=name_pattern, pool=pool, cidr=cidr, uses=uses, ttl_s=ttl * 3600.0, hold=hold
        )
    show_once(context.plain(made), output)


@app.command("ls")
def list_all(output: Output = Format.TABLE) -> None:
    """List them, without their secrets."""
    with context.client() as client:
        rows = [context.plain(row) for row in client.join_tokens.list()]
        emit_rows(rows, columns.JOIN_TOKENS, output, context.screen(), name="id")


@app.command("revoke")
def revoke(token_id: Annotated[str, typer.Argument(metavar="TOKEN")]) -> None:
    """At once and for good; nodes that enrolled with it stay."""
    with context.client() as client:
        say(client.join_tokens.revoke(token_id).detail)


def show_once(made: dict[str, object], output: Format) -> None:
    """The secret alone for people and pipes; everything for programs."""
    if output not in (Format.TABLE, Format.WIDE):
        emit_object(made, columns.JOIN_TOKENS, output, context.screen(), name="id")
        return
    say(str(made["token"]))
    context.hint("It is shown this once: put it into the file of the agent's --join-token-file, mode 0600.")
