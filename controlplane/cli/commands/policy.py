"""holdfast policy ..."""

from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from controlplane.cli import context
from controlplane.cli import policy_columns as columns
from controlplane.cli.context import BY_HAND, Output, Reason
from controlplane.cli.exits import CliError
from controlplane.cli.faults import of_file
from controlplane.cli.output import Format, emit_object, emit_rows, say

app = typer.Typer(no_args_is_help=True, help="By which settings is decided: read them, change them, bring them back.")

File = Annotated[Path, typer.Argument(metavar="FILE", help="YAML or JSON; the fields that differ from the defaults.")]
OfJob = Annotated[str | None, typer.Option("--job", help="Of this job, which may only narrow; else the fleet's.")]
OfProject = Annotated[str | None, typer.Option("--project", help="Of this project, which may only narrow.")]
Parent = Annotated[
    int | None, typer.Option(help="The number that you have read; else whatever is the newest now.", min=0)
]
MANY = 100


@app.command()
def show(
    job: OfJob = None,
    project: OfProject = None,
    whole: Annotated[bool, typer.Option("--all", help="Also the fields that have their default.")] = False,
    recorded: Annotated[str, typer.Option(help="The policy behind this version of a decision instead.")] = "",
    output: Output = Format.TABLE,
) -> None:
    """What is in force, and where each value comes from."""
    with context.client() as client:
        if recorded:
            _show_recorded(context.plain(client.policy.recorded(recorded)), output)
            return
        row = context.plain(client.policy.get(project=project, job_id=job))
    if output not in (Format.TABLE, Format.WIDE):
        emit_object(row | {"id": row["version"]}, (), output, context.screen(), name="id")
        return
    of_project = f"of the project {row['project']}" if row["project"] else "of the fleet"
    whose = f"of {row['job_name']}" if row["job_name"] else of_project
    say(f"Policy {whose}: document {row['number']}, version {row['version']}\n")
    fields = [field for field in row["fields"] if whole or field["set_by"] != "default"]
    if fields:
        emit_rows(fields, columns.FIELDS, output, context.screen(), name="name")
    for name, table in (("rule_modes", row["modes"]), ("xid_overrides", row["xids"])):
        for key, word in table.items():
            say(f"{name}.{key}: {word}")
    if not (fields or row["modes"] or row["xids"]):
        say("Every field has its default; --all shows them.")


@app.command()
def versions(job: OfJob = None, project: OfProject = None, output: Output = Format.TABLE) -> None:
    """Who changed it, when and why, newest first."""
    with context.client() as client:
        rows = [context.plain(row) for row in islice(client.policy.versions(project=project, job_id=job), MANY)]
        emit_rows(rows, columns.VERSIONS, output, context.screen(), name="number")


@app.command()
def diff(
    before: Annotated[int, typer.Argument(metavar="NUMBER", help="0: the defaults.", min=0)],
    after: Annotated[int | None, typer.Argument(metavar="[NUMBER]", help="Else the newest.", min=0)] = None,
    job: OfJob = None,
    project: OfProject = None,
    output: Output = Format.TABLE,
) -> None:
    """What differs between two versions."""
    with context.client() as client:
        newest = client.policy.get(project=project, job_id=job).number if after is None else after
        found = context.plain(client.policy.diff(before, newest, project=project, job_id=job))
    if output not in (Format.TABLE, Format.WIDE):
        emit_object(found, (), output, context.screen(), name="after")
        return
    show_changes(found["changes"])


@app.command()
def xids(
    disagree: Annotated[bool, typer.Option("--disagree", help="Only those of which the sources disagree.")] = False,
    output: Output = Format.TABLE,
) -> None:
    """What follows each XID: the words of NVIDIA, gpud and AWS beside the site's, and what holds now."""
    with context.client() as client:
        found = context.plain(client.policy.xids())
    rows = [row for row in found["items"] if row["disagreements"] or not disagree]
    emit_rows(rows, columns.XIDS, output, context.screen(), name="xid")
    if output in (Format.TABLE, Format.WIDE):
        say("\n" + "\n".join(f"{name}: {source}" for name, source in found["sources"].items()))


@app.command("set")
def put(
    file: File, reason: Reason = BY_HAND, job: OfJob = None, project: OfProject = None, parent: Parent = None
) -> None:
    """Make a document the policy; it is in force with each job's next pass."""
    text = text_of(file)
    with context.client() as client:
        known = _known(client, project, job, parent)
        with of_file(file):
            made = client.policy.put(text, reason=reason, project=project or "", job_id=job or "", **known)
        _report(made, context.plain(client.policy.diff(made.parent, made.number, project=project, job_id=job)))


@app.command()
def rollback(
    to: Annotated[int, typer.Argument(metavar="NUMBER", help="The version that comes back; 0: the defaults.", min=0)],
    reason: Reason = BY_HAND,
    job: OfJob = None,
    project: OfProject = None,
    parent: Parent = None,
) -> None:
    """Bring an earlier version back, as the newest."""
    with context.client() as client:
        known = _known(client, project, job, parent)
        made = client.policy.rollback(to, reason=reason, project=project or "", job_id=job or "", **known)
        _report(made, context.plain(client.policy.diff(made.parent, made.number, project=project, job_id=job)))


def _known(client: Any, project: str | None, job: str | None, parent: int | None) -> dict[str, Any]:
    """What the change rests on: the number that was named, else the policy as it is now."""
    if parent is not None:
        return {"parent": parent}
    return {"if_match": client.policy.get(project=project, job_id=job).etag}


def text_of(file: Path) -> str:
    """Raises CliError where it cannot be read."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(f"{file}: cannot be read: {error}", fix="give a YAML or JSON file") from error


def show_changes(changes: list[dict[str, Any]]) -> None:
    """A line each."""
    for change in changes:
        before, after = ("-" if change[side] is None else change[side] for side in ("before", "after"))
        say(f"{change['field']}: {before} -> {after}")
    if not changes:
        say("Nothing differs in force.")


def _show_recorded(row: dict[str, Any], output: Format) -> None:
    if output not in (Format.TABLE, Format.WIDE):
        emit_object(row, (), output, context.screen(), name="version")
        return
    numbers = ", ".join(map(str, row["numbers"])) or "none of the fleet's (a project's or job's, or the defaults)"
    say(f"Version {row['version']}, document {numbers}; besides the defaults:")
    show_changes(row["changes"])


def _report(made: Any, diff: dict[str, Any]) -> None:
    say(f"Version {made.number} is in force.")
    show_changes(diff["changes"])
    context.next_commands(f"holdfast policy rollback {made.parent}", "holdfast policy versions")
