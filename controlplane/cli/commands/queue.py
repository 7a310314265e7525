"""holdfast queue, holdfast capacity: who waits for devices, and what the devices are in use for."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Annotated, Any

import typer

from controlplane.cli import context
from controlplane.cli.context import Output
from controlplane.cli.output import ABSENT, Column, Format, Row, age, emit_rows, number, say, text, to_json

NAMED = 3
"""So many jobs are named in a cell; the rest are counted."""


def _jobs(field: str, most: int = NAMED) -> Any:
    def show(row: Row) -> str:
        jobs = row[field]
        more = [f"and {len(jobs) - most} more"] if len(jobs) > most else []
        return ", ".join([*(job["name"] for job in jobs[:most]), *more]) or ABSENT

    return show


def _behind(row: Row) -> str:
    return ABSENT if row["behind"] is None else str(row["behind"]["name"])


def _expected(row: Row) -> str:
    return row["expected_at"] or "not known"


WAITING = (
    Column(title="PLACE", show=text("place")),
    Column(title="NAME", show=text("name")),
    Column(title="PRIORITY", show=text("priority")),
    Column(title="WAITS", show=age("submitted_at")),
    Column(title="DEVICES", show=text("devices")),
    Column(title="TURN", show=text("turn")),
    Column(title="EXPECTED", show=_expected),
    Column(title="YIELD-TO-IT", show=_jobs("preempts")),
    Column(title="MAKES-ROOM", show=_jobs("makes_room"), wide=True),
    Column(title="BEHIND", show=_behind, wide=True),
    Column(title="STATE", show=text("state"), wide=True),
    Column(title="PROJECT", show=text("project"), wide=True),
    Column(title="OWNER", show=text("owner"), wide=True),
    Column(title="ID", show=text("job_id"), wide=True),
    Column(title="WHY", show=text("sentence")),
)
COUNTS = ("nodes", "devices", "in_use", "leaving", "free", "reserved", "spare", "draining", "cordoned", "down")
DEVICES = (
    Column(title="TYPE", show=text("gpu_type")),
    Column(title="SEGMENT", show=text("segment")),
    *(Column(title=name.upper().replace("_", "-"), show=number(name, 0)) for name in COUNTS),
)


def queue(
    limit: Annotated[int, typer.Option(help="At most this many, the first in line first.", min=1)] = 100,
    output: Output = Format.TABLE,
) -> None:
    """Who waits for devices, in line, and what for."""
    with context.client() as client:
        found = client.queue.list(limit=min(limit, 500))
        rows = [context.plain(row) for row in islice(found, limit)]
    emit_rows(rows, WAITING, output, context.screen(), name="job_id")
    if rows and output in (Format.TABLE, Format.WIDE):
        context.next_commands(f"holdfast job explain {rows[0]['name']}", "holdfast capacity")


def capacity(output: Output = Format.TABLE) -> None:
    """What devices are in use for, each once, and which jobs are expected to end when."""
    with context.client() as client:
        answer = context.plain(client.queue.capacity())
    if output is Format.JSON:
        say(to_json(answer, indent=2))
        return
    emit_rows(list(_rows(answer)), DEVICES, output, context.screen(), name="gpu_type")
    if output in (Format.TABLE, Format.WIDE):
        for line in _words(answer):
            say(line)


def _rows(answer: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """One for each type, and where it lies in several segments one for each of them."""
    for each in answer["types"]:
        several = len(each["segments"]) + each["left_out"] > 1
        one = each["segments"][0]["segment"] if each["segments"] else ""
        yield {"gpu_type": each["gpu_type"], "segment": "all" if several else one or ABSENT, **each["counts"]}
        for part in each["segments"] if several else ():
            yield {"gpu_type": each["gpu_type"], "segment": part["segment"] or "none named", **part["counts"]}


def _words(answer: Mapping[str, Any]) -> Iterator[str]:
    if answer["types_left_out"]:
        yield f"{answer['types_left_out']} types more; -o json has the sum of all."
    yield f"\nWaiting jobs: {answer['waiting']} (holdfast queue)."
    for job in answer["yields"]:
        to = f"to {job['to']['name']} (priority {job['to']['priority']})" if job["to"] else "because a person asked"
        does = "trains on without" if job["trains_on"] else "saves and yields"
        price = "" if job["lost_gpu_s"] is None else f"; {job['lost_gpu_s']:.0f} GPU-seconds are expected to be lost"
        yield f"{job['name']} (priority {job['priority']}) {does} {job['devices']} devices {to}{price}."
    for job in answer["ends"]:
        when = "leaves now" if job["leaves"] else f"is expected to end {job['expected_end_at']}"
        yield f"{job['name']} (priority {job['priority']}), {job['devices']} devices, {when}."
    for each in answer["reserved"]:
        yield f"{each['devices']} free devices are reserved for {each['project']} until {each['ends_at']}."
    more = answer["ends_count"] - len(answer["ends"])
    if more:
        yield f"{more} more are expected to end later."
    if answer["ends_unknown"]:
        yield f"Of {answer['ends_unknown']} jobs that have devices nobody knows when they end."
