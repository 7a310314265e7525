"""holdfast import ...: read what others measured. Works on files alone; asks no server."""

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from controlplane.cli import columns, context
from controlplane.cli.context import Output
from controlplane.cli.exits import CliError
from controlplane.cli.output import Format, emit_object, emit_rows, say
from controlplane.policy.straggler_trace import MAX_WINDOW, TraceRow, TraceVerdict, judge
from controlplane.policy.stragglers import MIN_SAMPLES
from controlplane.protocol.spec import Stragglers

app = typer.Typer(no_args_is_help=True, help="Read what others measured.")

NEEDED = ("dp_rank", "stage", "rank", "step", "optype", "duration")


@app.callback()
def group() -> None:
    """Keeps the name of the one command below it."""


@app.command("straggler-trace")
def straggler_trace(
    trace: Annotated[Path, typer.Argument(metavar="TRACE", help="A .parquet or .csv file, one row an operation.")],
    window: Annotated[int, typer.Option(help="Steps that are judged together.", min=MIN_SAMPLES, max=MAX_WINDOW)] = 6,
    threshold: Annotated[float, typer.Option(help="Score below which a rank is slow.", min=0.01, max=0.99)] = 0.7,
    output: Output = Format.TABLE,
) -> None:
    """Judge the trace of a slow job by the scores that judge live ones: worker, stage or none."""
    try:
        found = judge(read(trace), window=window, settings=Stragglers(relative_threshold=threshold, individual=False))
    except ValueError as error:
        raise CliError(f"{trace}: {error}", fix="see docs/cli.md for what a trace holds") from error
    _show(found, output)


def read(path: Path) -> Iterator[TraceRow]:
    """The rows of a trace. Raises CliError where it cannot be read, ValueError where a row is wrong."""
    try:
        rows = _parquet(path) if path.suffix == ".parquet" else _csv(path)
        for number, row in enumerate(rows, start=1):
            yield _row(number, row)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise CliError(f"{path}: cannot be read: {error}", fix="give a .parquet or .csv file") from error


def _csv(path: Path) -> Iterator[Mapping[str, Any]]:
    with path.open(newline="", encoding="utf-8") as file:
        yield from csv.DictReader(line for line in file if not line.startswith("#"))


def _parquet(path: Path) -> Iterator[Mapping[str, Any]]:
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise CliError(
            f"{path}: Parquet is read by pyarrow, which is not installed here",
            fix='pip install "holdfast[cli,parquet]", or convert the trace to .csv',
        ) from error
    for batch in parquet.ParquetFile(path).iter_batches(batch_size=8_192):
        yield from batch.to_pylist()


def _row(number: int, row: Mapping[str, Any]) -> TraceRow:
    missing = [name for name in NEEDED if row.get(name) in (None, "")]
    if missing:
        raise ValueError(f"row {number} has no {', '.join(missing)}")
    try:
        found = TraceRow(
            replica=int(row["dp_rank"]),
            stage=int(row["stage"]),
            rank=int(row["rank"]),
            step=int(row["step"]),
            operation=str(row["optype"]),
            duration_s=float(row["duration"]),
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"row {number} makes no sense: {error}") from error
    if not 0.0 <= found.duration_s < float("inf"):
        raise ValueError(f"row {number}: a duration of {row['duration']} s cannot be")
    return found


def _show(found: TraceVerdict, output: Format) -> None:
    import msgspec

    plain = msgspec.to_builtins(found)
    if output not in (Format.TABLE, Format.WIDE):
        emit_object(plain, (), output, context.screen(), name="verdict")
        return
    say(f"{found.verdict}: {found.sentence}")
    if found.slow:
        emit_rows(plain["slow"], columns.SLOW_RANKS, output, context.screen(), name="rank")
    context.hint(f"{found.ranks} ranks, {found.steps} steps in {found.windows} windows")
