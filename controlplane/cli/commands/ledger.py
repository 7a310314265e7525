"""holdfast ledger: where the seconds of devices went."""

import csv
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from controlplane.cli import context, spans
from controlplane.cli.context import Output
from controlplane.cli.exits import CliError
from controlplane.cli.output import ABSENT, Column, Format, Row, emit_rows, number, percent, say, span, text, to_json

HOUR_S = 3600.0
ABSENT_MEAN = "not observed"
FIELDS = ("since", "until", "by", "kind", "id", "label", "class", "gpu_s", "gpu_hours", "money", "currency")

LOSSES = ("degraded", "checkpoint", "stall", "recovery", "lost_work", "preempted")


class By(StrEnum):
    """What each row is."""

    CLASS = "class"
    CAUSE = "cause"
    JOB = "job"
    NODE = "node"


def _gpu_time_of(*classes: str) -> Callable[[Row], str]:
    """Of these classes of a row of the ledger; of none: of all."""

    def show(row: Row) -> str:
        return gpu_time(sum(row["classes"].get(of, 0.0) for of in classes) if classes else row["gpu_s"])

    return show


def gpu_time(gpu_s: float) -> str:
    """As the page writes it: GPU-hours, and GPU-seconds below one; "1,234 GPU-h", "12.3 GPU-h", "120 GPU-s"."""
    size_s = abs(gpu_s)
    if size_s < HOUR_S:
        return f"{gpu_s:.{1 if size_s < 10.0 else 0}f} GPU-s"
    return f"{gpu_s / HOUR_S:,.{0 if size_s >= 100.0 * HOUR_S else 1}f} GPU-h"


def _queued(row: Row) -> str:
    return ABSENT if row["queued_gpu_s"] is None else gpu_time(row["queued_gpu_s"])


COLUMNS = (
    Column(title="NAME", show=text("label")),
    Column(title="KIND", show=text("kind"), wide=True),
    Column(title="ID", show=text("id"), wide=True),
    Column(title="GPU TIME", show=_gpu_time_of()),
    Column(title="SHARE", show=percent("share")),
    Column(title="PRODUCTIVE", show=_gpu_time_of("productive")),
    Column(title="LOST", show=_gpu_time_of(*LOSSES)),
    Column(title="QUEUED", show=_queued, wide=True),
    Column(title="ETTR", show=percent("ettr"), wide=True),
    Column(title="MONEY", show=number("money", 2), wide=True),
)


def ledger(
    since: Annotated[str, typer.Option(help="30m, 12h, 7d, 4w before the end, or an instant as ISO-8601.")] = "7d",
    until: Annotated[str | None, typer.Option(help="An instant as ISO-8601. Default: now.")] = None,
    by: Annotated[By, typer.Option(help="What each row is.")] = By.CLASS,
    job: Annotated[str | None, typer.Option(help="Only what this job held.")] = None,
    project: Annotated[str | None, typer.Option(help="Only what jobs of this project held.")] = None,
    node: Annotated[str | None, typer.Option(help="Only devices of this node.")] = None,
    limit: Annotated[int, typer.Option(help="At most this many rows, the largest first.", min=1, max=500)] = 100,
    export: Annotated[Path | None, typer.Option(help="Write them to this .csv or .parquet file.")] = None,
    output: Output = Format.TABLE,
) -> None:
    """Every second of every device in one class, with its cause."""
    if export is not None and export.suffix not in (".csv", ".parquet"):
        raise CliError(f"{export}: neither .csv nor .parquet", fix="give a name that ends in one of them")
    last = datetime.now(UTC) if until is None else spans.instant(until)
    with context.client() as client:
        name = job and client.jobs.get(job).id
        found = client.ledger.get(
            by=by.value, since=spans.since(since, last).isoformat(), until=last.isoformat(), limit=limit, job=name,
            project=project, node=node,
        )  # fmt: skip
        answer = context.plain(found)
    if export is not None:
        write(export, answer)
        say(f"{export}: {answer['since']} to {answer['until']}, by {by.value}.")
        return
    if output is Format.JSON:
        say(to_json(answer, indent=2))
        return
    emit_rows(answer["rows"], COLUMNS, output, context.screen(), name="id")
    if output in (Format.TABLE, Format.WIDE):
        context.hint(*_words(answer))


def lines(answer: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """One for each row and class, so that they sum to all that is known."""
    for row in answer["rows"]:
        for of, gpu_s in row["classes"].items():
            price = answer["price"]
            yield {
                "since": answer["since"], "until": answer["until"], "by": answer["by"], "kind": row["kind"],
                "id": row["id"], "label": row["label"], "class": of, "gpu_s": gpu_s, "gpu_hours": gpu_s / HOUR_S,
                "money": None if price is None else gpu_s / HOUR_S * price, "currency": answer["currency"],
            }  # fmt: skip


def write(path: Path, answer: dict[str, Any]) -> None:
    """The rows as CSV or Parquet. Raises CliError where that cannot be written."""
    try:
        if path.suffix == ".parquet":
            _parquet(path, answer)
            return
        with path.open("w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, FIELDS)
            table.writeheader()
            table.writerows({name: inert(value) for name, value in line.items()} for line in lines(answer))
    except OSError as error:
        raise CliError(f"{path}: cannot be written: {error}", fix="give another name") from error


def inert(value: Any) -> Any:
    """What people and nodes wrote is no formula of a spreadsheet."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


def _parquet(path: Path, answer: dict[str, Any]) -> None:
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise CliError(
            f"{path}: Parquet is written by pyarrow, which is not installed here",
            fix='pip install "holdfast[cli,parquet]", or write a .csv file',
        ) from error
    numbers = ("gpu_s", "gpu_hours", "money")
    schema = pyarrow.schema([(name, pyarrow.float64() if name in numbers else pyarrow.string()) for name in FIELDS])
    parquet.write_table(pyarrow.Table.from_pylist(list(lines(answer)), schema=schema), path)


def failures(found: dict[str, Any]) -> str:
    """How often jobs failed, and how soon that was found and over; "not observed" where there was nothing."""
    means = (("to failure (MTTF)", "mttf_s"), ("to detection (MTTD)", "mttd_s"), ("to recovery (MTTR)", "mttr_s"))
    known = ", ".join(f"{name} {ABSENT_MEAN if found[key] is None else span(found[key])}" for name, key in means)
    number = f"{found['failures']} failure{'' if found['failures'] == 1 else 's'}"
    return f"{number} in {span(found['up_s'])} of training; mean time {known}."


def _words(answer: dict[str, Any]) -> Iterator[str]:
    yield f"{answer['since']} to {answer['until']}: {gpu_time(answer['known_gpu_s'])}, each second once."
    if answer["queued_gpu_s"]:
        yield f"Beside them jobs asked for {gpu_time(answer['queued_gpu_s'])} that they did not hold."
    if answer["ettr"] is not None:
        yield f"Effective training time: {100 * answer['ettr']:.1f} % of what jobs asked for since they began."
    if answer["failures"] is not None:
        yield failures(answer["failures"])
    if answer["restated_gpu_s"]:
        yield f"{gpu_time(answer['restated_gpu_s'])} lie in stretches that were restated later."
    if answer["left_out"]:
        yield f"{answer['left_out']} rows more: --limit."
