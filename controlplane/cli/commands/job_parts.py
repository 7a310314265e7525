"""holdfast job speed, numerics, budget, timeouts: what is measured and counted about a job."""

from collections.abc import Sequence
from typing import Any

from controlplane.cli import columns, context
from controlplane.cli.commands.job import Job
from controlplane.cli.commands.job import app as app
from controlplane.cli.context import Output
from controlplane.cli.output import Column, Format, emit_object, emit_rows, put

Table = tuple[str, Sequence[Any], Sequence[Column]]


@app.command()
def speed(job: Job, output: Output = Format.TABLE) -> None:
    """How fast its ranks work: straggler scores, the worst first, and the pipeline's stages."""
    with context.client() as client:
        row = context.plain(client.jobs.speed(job))
    _show(row, columns.SPEED, (("Worst", row["worst"], columns.SCORES), ("Stages", row["stages"], columns.STAGES)),
          output, name="ranks")  # fmt: skip


@app.command()
def numerics(job: Job, output: Output = Format.TABLE) -> None:
    """Results that its ranks refused, and how many steps were the same when computed twice."""
    with context.client() as client:
        row = context.plain(client.jobs.numerics(job))
    _show(row, columns.NUMERICS, (("Refused", row["findings"], columns.REFUSED),
          ("Determinism", row["ranks"], columns.DETERMINISM)), output, name="mode")  # fmt: skip


@app.command()
def budget(job: Job, output: Output = Format.TABLE) -> None:
    """What its restarts of every rung have spent, and what is allowed."""
    with context.client() as client:
        row = context.plain(client.jobs.budget(job))
    _show(row, columns.BUDGET, (("Entries", row["entries"], columns.RESTARTS),), output, name="restarts_total")
    if row["entries"]:
        context.next_commands(f"holdfast decision explain {row['entries'][0]['decision_id']}")


@app.command()
def timeouts(job: Job, output: Output = Format.TABLE) -> None:
    """How long each section may last, given or learned."""
    with context.client() as client:
        rows = [context.plain(timeout) for timeout in client.jobs.timeouts(job)]
    emit_rows(rows, columns.TIMEOUTS, output, context.screen(), name="section")


def _show(
    row: dict[str, Any], summary: Sequence[Column], tables: Sequence[Table], output: Format, *, name: str
) -> None:
    """The whole answer to programs; to people its head, then each list as a table."""
    screen = context.screen()
    emit_object(row, summary, output, screen, name=name)
    if output not in (Format.TABLE, Format.WIDE):
        return
    for title, rows, shown in tables:
        put(screen.out, f"\n{title}:")
        if rows:
            emit_rows(rows, shown, output, screen, name=name)
        else:
            put(screen.out, "none")
