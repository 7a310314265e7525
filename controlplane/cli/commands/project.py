"""holdfast project ..."""

from collections.abc import Mapping
from itertools import islice
from typing import Annotated, Any

import typer

from controlplane.cli import context
from controlplane.cli import project_columns as columns
from controlplane.cli.context import BY_HAND, Output, Reason
from controlplane.cli.exits import CliError, Exit
from controlplane.cli.output import Format, emit_object, emit_rows, say

app = typer.Typer(no_args_is_help=True, help="Projects: what they may use, what they use, and who is in them.")

Project = Annotated[str, typer.Argument(metavar="PROJECT")]
Account = Annotated[str, typer.Argument(metavar="ACCOUNT")]
Quota = Annotated[str | None, typer.Option("--quota", help="GPUs that are its own; none: no limit.", metavar="GPUS")]
Borrow = Annotated[
    str | None,
    typer.Option("--borrow", help="How many more it takes of others'; none: what is free.", metavar="GPUS"),
]
Lend = Annotated[
    str | None, typer.Option("--lend", help="How many of its own others may use; none: all unused.", metavar="GPUS")
]
Weight = Annotated[int | None, typer.Option(help="Its part of what is lent, against other projects.", min=1, max=1000)]
MaxPriority = Annotated[int | None, typer.Option(help="No job of it has a higher one.", min=0, max=1000)]
Visibility = Annotated[
    str | None, typer.Option(help="private (members), visible (all read it) or open (all by their scope).")
]
Description = Annotated[str | None, typer.Option(help="What it is for.")]
NONE = "none"


@app.command("ls")
def list_projects(
    limit: Annotated[int, typer.Option(help="At most this many.", min=1)] = 100, output: Output = Format.TABLE
) -> None:
    """List the projects that you see, with what they use now."""
    with context.client() as client:
        found = islice(client.projects.list(limit=min(limit, 500)), limit)
        emit_rows([context.plain(row) for row in found], columns.PROJECTS, output, context.screen(), name="name")


@app.command()
def show(project: Project, output: Output = Format.TABLE) -> None:
    """One project, and who is in it."""
    with context.client() as client:
        row = context.plain(client.projects.get(project))
    emit_object(row, columns.PROJECTS, output, context.screen(), name="name")
    if output in (Format.TABLE, Format.WIDE):
        say("")
        if row["members"]:
            emit_rows(row["members"], columns.MEMBERS, output, context.screen(), name="account")
        else:
            say("It has no members.")
        context.next_commands(f"holdfast job ls --project {project}")


@app.command()
def create(
    project: Project,
    quota: Quota = None,
    borrow: Borrow = None,
    lend: Lend = None,
    weight: Weight = None,
    max_priority: MaxPriority = None,
    visibility: Visibility = None,
    description: Description = None,
    reason: Reason = BY_HAND,
) -> None:
    """Make a project; private and without a limit unless told otherwise."""
    settings = _settings(quota, borrow, lend) | _given(weight, max_priority, visibility, description)
    with context.client() as client:
        made = client.projects.create(project, reason, **settings)
    say(f"The project {made.name} is there, and {made.visibility}.")
    context.next_commands(f"holdfast project set-member {project} ACCOUNT submitter")


@app.command("set")
def change(
    project: Project,
    quota: Quota = None,
    borrow: Borrow = None,
    lend: Lend = None,
    weight: Weight = None,
    max_priority: MaxPriority = None,
    visibility: Visibility = None,
    description: Description = None,
    reason: Reason = BY_HAND,
) -> None:
    """Change what is named; the rest stays, and so do jobs that were submitted. Refused where another change came
    between reading it and this one."""
    settings = _settings(quota, borrow, lend) | _given(weight, max_priority, visibility, description)
    if not settings:
        raise CliError("nothing was named that is to change", fix="name --quota, --weight, ...", code=Exit.USAGE)
    with context.client() as client:
        before = client.projects.get(project)
        done = client.projects.set(project, reason, if_match=before.etag, **settings)
        for name, value in settings.items():
            say(f"{name}: {_shown(getattr(before, name))} -> {_shown(value)}")
        say(done.detail)


@app.command("set-member")
def set_member(
    project: Project,
    account: Account,
    role: Annotated[str, typer.Argument(metavar="ROLE", help="viewer, submitter, operator or admin.")],
    reason: Reason = BY_HAND,
) -> None:
    """Give an account this role, whatever it had before."""
    with context.client() as client:
        say(client.projects.set_member(project, account, role, reason).detail)


@app.command("remove-member")
def remove_member(project: Project, account: Account, reason: Reason = BY_HAND) -> None:
    """Take an account out; its jobs stay."""
    with context.client() as client:
        say(client.projects.remove_member(project, account, reason).detail)


def _shown(value: Any) -> str:
    return NONE if value is None else str(value)


def _settings(quota: str | None, borrow: str | None, lend: str | None) -> dict[str, int | None]:
    """The limits that were named. Raises CliError for what is no number of GPUs."""
    named: Mapping[str, tuple[str, str | None]] = {
        "quota_gpus": ("--quota", quota),
        "borrow_limit_gpus": ("--borrow", borrow),
        "lend_limit_gpus": ("--lend", lend),
    }
    found: dict[str, int | None] = {}
    for name, (option, text) in named.items():
        if text is None:
            continue
        if text != NONE and not (text.isascii() and text.isdigit()):
            raise CliError(f"{option}: {text!r} is no number of GPUs", fix="use 0, 1, ... or none", code=Exit.USAGE)
        found[name] = None if text == NONE else int(text)
    return found


def _given(
    weight: int | None, max_priority: int | None, visibility: str | None, description: str | None
) -> dict[str, Any]:
    named = {
        "weight": weight, "max_priority": max_priority, "visibility": visibility, "description": description
    }  # fmt: skip
    return {name: value for name, value in named.items() if value is not None}
