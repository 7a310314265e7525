"""holdfast engine ...: what gives the nodes, its pools of pilots, and what is wanted of it."""

from typing import Annotated, Any

import typer

from controlplane.cli import context
from controlplane.cli.context import BY_HAND, Output, Reason
from controlplane.cli.output import ABSENT, Column, Format, Row, emit_rows, number, say, text

app = typer.Typer(no_args_is_help=True, help="What gives the nodes, and its pools of pilots.")
COUNTS = ("in_use", "idle", "cold", "held", "other")


def _node(row: Row) -> str:
    return str(row["node_name"] or row["pool"] or ABSENT)


ENGINES = (
    Column(title="NAME", show=text("name")),
    Column(title="ANSWERED", show=text("answered_at")),
    Column(title="NODES", show=number("nodes", 0)),
    Column(title="POOLS", show=lambda row: str(len(row["pools"]))),
    Column(title="ERROR", show=text("error")),
)
POOLS = (
    Column(title="POOL", show=text("id")),
    Column(title="OWNER", show=text("owner")),
    *(Column(title=name.upper().replace("_", "-"), show=number(name, 0)) for name in COUNTS),
)
PILOTS = (
    Column(title="PILOT", show=text("allocation")),
    Column(title="KIND", show=text("kind")),
    Column(title="STATE", show=text("state")),
    Column(title="NODE", show=text("node_name")),
    Column(title="STARTS", show=text("starts_at")),
    Column(title="ENDS", show=text("ends_at")),
    Column(title="GRACE", show=number("grace_s", 0, " s")),
    Column(title="WAITS", show=text("waits")),
)
INTENTS = (
    Column(title="ID", show=text("id")),
    Column(title="KIND", show=text("kind")),
    Column(title="OF", show=_node),
    Column(title="STATE", show=text("state")),
    Column(title="TRIES", show=number("tries", 0)),
    Column(title="NEXT", show=text("due_at"), wide=True),
    Column(title="WHO", show=text("who"), wide=True),
    Column(title="REASON", show=text("reason")),
    Column(title="DETAIL", show=text("detail")),
)


def _believed(row: Row) -> str:
    engine = row["engine"]
    reason = "a reason that cannot be read" if engine["reason"] is None else engine["reason"]
    who = f" ({engine['reason_by']})" if engine["reason_by"] else ""
    return f"{engine['engine']}: {engine['state']}{f': {reason}{who}' if reason else ''}"


def _allocation(row: Row) -> str:
    lent = row["engine"]["allocation"]
    return f"{lent['allocation']} until {lent['ends_at'] or 'not known'}" if lent else ABSENT


OF_NODE = (
    Column(title="ENGINE", show=_believed),
    Column(title="DIFFERS", show=lambda row: str(row["engine"]["differs"] or "they agree")),
    Column(title="ALLOCATION", show=_allocation),
)
"""Of a node that a scheduler has named, beside its own columns."""


def _engines() -> list[dict[str, Any]]:
    with context.client() as client:
        return [context.plain(row) for row in client.engines.list()]


@app.command("ls")
def list_engines(output: Output = Format.TABLE) -> None:
    """What gives the nodes, when it last answered, and why not since."""
    emit_rows(_engines(), ENGINES, output, context.screen(), name="name")


@app.command()
def pools(output: Output = Format.TABLE) -> None:
    """Pools of pilots: in use, spare, waiting and held."""
    rows = [pool for engine in _engines() for pool in engine["pools"]]
    emit_rows(rows, POOLS, output, context.screen(), name="id")
    if rows and output is Format.TABLE:
        context.next_commands("holdfast engine pilots")


@app.command()
def pilots(output: Output = Format.TABLE) -> None:
    """Each pilot: its node and its end, or the scheduler's own reason for which it waits."""
    rows = [each for engine in _engines() for pool in engine["pools"] for each in pool["elements"]]
    emit_rows(rows, PILOTS, output, context.screen(), name="allocation")


@app.command()
def intents(output: Output = Format.TABLE) -> None:
    """What is wanted of the scheduler, newest first, and what came of it."""
    rows = [each for engine in _engines() for each in engine["intents"]]
    emit_rows(rows, INTENTS, output, context.screen(), name="id")


@app.command()
def resize(
    pool: Annotated[str, typer.Argument(metavar="POOL", help="As `holdfast engine pools` lists it.")],
    size: Annotated[int, typer.Argument(metavar="NUMBER", help="Pilots that run at a time.", min=1, max=1000)],
    reason: Reason = BY_HAND,
) -> None:
    """Let so many pilots of a pool run at a time. Spare ones are given back; those with ranks stay until they end."""
    with context.client() as client:
        say(client.engines.resize(pool, size, reason).detail)
    context.next_commands("holdfast engine intents", "holdfast engine pools")
