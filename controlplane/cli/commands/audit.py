"""holdfast audit ..."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from controlplane.cli import context, spans
from controlplane.cli.exits import CliError, Exit
from controlplane.cli.output import put, to_json

if TYPE_CHECKING:
    from controlplane.sdk import Client

app = typer.Typer(no_args_is_help=True, help="Who did what, when and why; for administrators.")
PAGE = 1000
Since = Annotated[str, typer.Option(help="Not before: 12h, 7d, 4w ago, or an instant as ISO-8601.")]
Until = Annotated[str, typer.Option(help="Before: so long ago, or an instant as ISO-8601.")]
Out = Annotated[Path | None, typer.Option(help="A new file, which only you read; else they are printed.")]


@app.command("export")
def export(
    since: Since = "",
    until: Until = "",
    actor: Annotated[str, typer.Option(help="Only of user:NAME, token:ID, node:NAME, policy, ...")] = "",
    action: Annotated[str, typer.Option(help="Only such as job.cancel; login.* for all that begin so.")] = "",
    subject: Annotated[str, typer.Option(help="Only what was done to the object of this id.")] = "",
    out: Out = None,
) -> None:
    """The sealed rows as JSON lines in the order of the chain, each with its digests."""
    now = datetime.now().astimezone()
    times = {name: spans.since(words, now).isoformat() for name, words in (("since", since), ("until", until)) if words}
    exact = {name: words for name, words in (("actor", actor), ("action", action), ("subject", subject)) if words}
    with context.client() as client, _opened(out) as file:
        count = 0
        for row in rows(client, exact | times):
            put(file, to_json(row, sort_keys=True))
            count += 1
    context.hint(f"{count} rows" + (f" in {out}" if out else ""))


def rows(client: "Client", filters: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Up to the row that is the newest now. Raises CliError where the server gives a row again, none of its number, or
    one that came later: it would never end."""
    newest, last = client.audit.state().newest_seq or 0, 0
    while last < newest:
        page = client.audit.export(after_seq=last, limit=PAGE, **filters)
        for row in page:
            seq = row.get("seq")
            if type(seq) is not int or seq <= last:
                raise CliError(
                    f"the server gives a row again, or one without a number: {seq!r} after row {last}",
                    fix="nothing after that row was written; `manage.py verify_audit` says whether the log is whole",
                    code=Exit.UNAVAILABLE,
                )
            if seq > newest:
                return
            last = seq
            yield row
        if not page:
            return


@contextmanager
def _opened(out: Path | None) -> Iterator[TextIO]:
    """stdout, or a new file of mode 0600 that is gone again where not all of it was written."""
    if out is None:
        yield sys.stdout
        return
    try:
        descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise CliError(f"{out}: cannot be made: {error.strerror}", fix="give the name of a new file") from error
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            yield file
    except BaseException:
        with suppress(OSError):
            out.unlink()
        raise
