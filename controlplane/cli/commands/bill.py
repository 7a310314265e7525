"""holdfast project bill: what a project pays for a month."""

import csv
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from controlplane.cli import context
from controlplane.cli.commands.ledger import HOUR_S, gpu_time, inert
from controlplane.cli.context import Output
from controlplane.cli.exits import CliError
from controlplane.cli.output import Column, Format, Row, emit_object, emit_rows, number, say, text

MOST = 500
FIELDS = (
    "project", "month", "state", "kind", "id", "name", "charged_gpu_s", "charged_gpu_hours", "money", "currency",
    "not_charged_gpu_s",
)  # fmt: skip


def _why(row: Row) -> str:
    return "an incident" if row["incident"] else "the job"


LINES = (
    Column(title="CLASS", show=text("of")),
    Column(title="DUE TO", show=_why),
    Column(title="CHARGED", show=lambda row: "yes" if row["charged"] else "no"),
    Column(title="GPU TIME", show=lambda row: gpu_time(row["gpu_s"])),
    Column(title="MONEY", show=number("money", 2)),
)
JOBS = (
    Column(title="JOB", show=text("name")),
    Column(title="ID", show=text("id"), wide=True),
    Column(title="CHARGED", show=lambda row: gpu_time(row["charged_gpu_s"])),
    Column(title="MONEY", show=number("money", 2)),
    Column(title="NOT CHARGED", show=lambda row: gpu_time(row["not_charged_gpu_s"])),
)


def bill(
    project: Annotated[str, typer.Argument(metavar="PROJECT")],
    month: Annotated[str | None, typer.Option(help="YYYY-MM, in UTC. Default: the month before this one.")] = None,
    export: Annotated[Path | None, typer.Option(help="Write it, by job, to this .csv file.")] = None,
    output: Output = Format.TABLE,
) -> None:
    """What a project pays for a month: charged or not by class of the ledger, and by job."""
    if export is not None and export.suffix != ".csv":
        raise CliError(f"{export}: not .csv", fix="give a name that ends in .csv")
    with context.client() as client:
        found = context.plain(client.projects.bill(project, month or last_month(datetime.now(UTC)), limit=MOST))
    if export is not None:
        write(export, found)
        say(f"{export}: {project}, {found['month']}, {found['state']}.")
    elif output in (Format.TABLE, Format.WIDE):
        emit_rows(found["lines"], LINES, output, context.screen(), name="of")
        say("")
        emit_rows(found["jobs"], JOBS, output, context.screen(), name="id")
        for line in sums(found):
            say(line)
    else:
        emit_object(found, (), output, context.screen(), name="month")


def last_month(now: datetime) -> str:
    """The month before that of `now`."""
    return f"{now.replace(day=1) - timedelta(days=1):%Y-%m}"


def sums(found: dict[str, Any]) -> Iterator[str]:
    """What it comes to, in words."""
    yield f"Charged: {_amount(found['charged_gpu_s'], found['charged_money'], found['currency'])}."
    if found["restated"] is not None:
        more = found["restated"]
        yield f"Restated since it was closed: {_amount(more['gpu_s'], more['money'], found['currency'])}."
    if found["state"] == "open":
        yield f"The month is open: as the ledger has it until {found['judged_until'] or 'its first pass'}."
    else:
        yield f"The month was closed at {found['closed_at']}."


def _amount(gpu_s: float, money: float | None, currency: str | None) -> str:
    return gpu_time(gpu_s) + ("" if money is None else f", {money:,.2f} {currency}")


def rows(found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """By job, what is left out in one row and a restatement in another: they sum to the bill."""
    head = {name: found[name] for name in ("project", "month", "state", "currency")}
    left = found["not_charged_gpu_s"] - sum(job["not_charged_gpu_s"] for job in found["jobs"])
    price, of_others = found["price"], found["left_out_gpu_s"]
    parts = [("job", job["id"], job["name"], job["charged_gpu_s"], job["money"], job["not_charged_gpu_s"])
             for job in found["jobs"]]  # fmt: skip
    if found["jobs_left_out"]:
        money = None if price is None else of_others / HOUR_S * price
        parts.append(("more", "", f"{found['jobs_left_out']} more jobs", of_others, money, left))
    if found["restated"] is not None:
        parts.append(
            ("restated", "", "since it was closed", found["restated"]["gpu_s"], found["restated"]["money"], 0.0)
        )
    for kind, job, name, gpu_s, money, free in parts:
        yield head | {
            "kind": kind, "id": job, "name": name, "charged_gpu_s": gpu_s, "charged_gpu_hours": gpu_s / HOUR_S,
            "money": money, "not_charged_gpu_s": free,
        }  # fmt: skip


def write(path: Path, found: dict[str, Any]) -> None:
    """Raises CliError where the file cannot be written."""
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, FIELDS)
            table.writeheader()
            table.writerows({name: inert(value) for name, value in row.items()} for row in rows(found))
    except OSError as error:
        raise CliError(f"{path}: cannot be written: {error}", fix="give another name") from error
