"""Following a job: until its end (`submit --wait`), or its events (`watch`).

Ctrl-C only detaches. What follows is read from the server, so a lost connection is
taken up again.
"""

import time
from typing import TYPE_CHECKING

from controlplane.cli import columns, context
from controlplane.cli.exits import CliError, Exit
from controlplane.cli.output import Format, Screen, emit_rows, put

if TYPE_CHECKING:
    from controlplane.sdk import Client

ENDED = frozenset({"succeeded", "failed", "cancelled"})
POLL_S = 1.0


def until_end(client: "Client", job_id: str, name: str, *, timeout_s: float) -> str:
    """Wait for the end; returns the state. Tells each change on stderr. Raises CliError
    (TIMEOUT) after `timeout_s` (0: never) and passes KeyboardInterrupt on with advice."""
    begun_s, last = time.monotonic(), ""
    try:
        while True:
            job = client.jobs.get(job_id)
            if job.state != last:
                context.hint(f"{name}: {job.state}  {job.state_reason}".rstrip())
                last = job.state
            if job.state in ENDED:
                return str(job.state)
            if timeout_s and time.monotonic() - begun_s >= timeout_s:
                raise CliError(
                    f"{name} is {job.state} after {timeout_s:g} s",
                    fix=f"it keeps running; holdfast job watch {name}",
                    code=Exit.TIMEOUT,
                )
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        detach_note(name)
        raise


def print_events(client: "Client", job: str, since: int | None, form: Format, screen: Screen) -> None:
    """Print events until the job has ended."""
    detail = client.jobs.get(job)
    begin = detail.as_of_seq if since is None else since
    human = form in (Format.TABLE, Format.WIDE)
    if human:
        context.hint(f"{detail.name} is {detail.state}. {detail.why}")
    if detail.state in ENDED and since is None:
        return
    try:
        for event in client.jobs.watch(detail.id, since=begin):
            if event.kind == "resync":
                context.hint("Some events are no longer kept; continuing with the newest.")
                continue
            row = context.plain(event)
            if human:
                put(screen.out, f"{event.at}  {event.sentence}")
                screen.out.flush()
            else:
                emit_rows([row], columns.EVENTS, Format.JSONL if form is Format.JSON else form, screen, name="seq")
                screen.out.flush()
            if event.entity == "job" and (event.patch or {}).get("state") in ENDED:
                return
    except KeyboardInterrupt:
        detach_note(detail.name)
        raise


def detach_note(name: str) -> None:
    """What Ctrl-C did and did not do."""
    context.hint("", f"Detached; {name} keeps running.", f"To cancel it: holdfast job cancel {name}")
