"""holdfast job ..."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from controlplane.cli import columns, context, follow, waits
from controlplane.cli.commands.request import Timeout, Wait
from controlplane.cli.commands.request import follow as follow_request
from controlplane.cli.context import BY_HAND, Output, Reason
from controlplane.cli.exits import CliError, Exit
from controlplane.cli.output import Column, Format, emit_object, emit_rows, note, say, text

app = typer.Typer(no_args_is_help=True, help="Submit, look at and steer training jobs.")

Job = Annotated[str, typer.Argument(metavar="JOB", help="Id, or name of the newest job of that name.")]
Expected = Annotated[
    int | None, typer.Option("--expected-attempt", help="Refuse it where the job is at another attempt.", min=0)
]
File = Annotated[Path, typer.Argument(metavar="FILE", help="Job spec, YAML or JSON; - reads stdin.")]


def read_spec(file: Path) -> bytes:
    """The bytes. Raises CliError."""
    if str(file) == "-":
        return sys.stdin.buffer.read()
    try:
        return file.read_bytes()
    except OSError as error:
        raise CliError(f"{file}: {error.strerror}", fix="give the path of a job spec; see examples/") from error


@app.command()
def submit(
    file: File,
    wait: Annotated[bool, typer.Option("--wait", help="Stay until it ends; the exit code says how.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and place, submit nothing.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds for --wait; 0 waits for ever.")] = 0.0,
    project: Annotated[str, typer.Option(help="Into this project, whatever the file names.")] = "",
    output: Output = Format.TABLE,
) -> None:
    """Submit a job."""
    text = _in_project(file, project) if project else read_spec(file)
    with context.client() as client:
        if dry_run:
            _show_dry_run(context.plain(client.jobs.dry_run(text)), output)
            return
        job = client.jobs.submit(text)
        context.hint(f"Submitted {job.name}.")
        if wait:
            follow.until_end(client, job.id, job.name, timeout_s=timeout)
            job = client.jobs.get(job.id)
        emit_object(context.plain(job), columns.JOBS, output, context.screen(), name="id")
        if not wait:
            context.next_commands(
                f"holdfast job watch {job.name}", f"holdfast job get {job.name}", f"holdfast job cancel {job.name}"
            )
        elif job.state != "succeeded":
            context.next_commands(f"holdfast job explain {job.name}")
            raise typer.Exit(Exit.NEGATIVE)


def _in_project(file: Path, project: str) -> dict[str, Any]:
    """The file's spec with another project. Raises CliError where it is no document."""
    from controlplane.protocol.spec_text import SpecTextError, parse_yaml

    try:
        spec = parse_yaml(read_spec(file))
    except SpecTextError as error:
        raise CliError(str(error), fix="fix the file's syntax") from error
    metadata = spec.get("metadata") if isinstance(spec, dict) else None
    if not isinstance(spec, dict) or not isinstance(metadata, dict):
        raise CliError(f"{file}: it has no metadata", fix="a spec names at least metadata.name; see examples")
    return {**spec, "metadata": {**metadata, "project": project}}


@app.command()
def validate(file: File, output: Output = Format.TABLE) -> None:
    """Check a spec offline; -o yaml prints it with every default."""
    from controlplane.protocol.spec_lint import effective, lint
    from controlplane.protocol.spec_text import SpecTextError, parse_yaml

    try:
        result = lint(parse_yaml(read_spec(file)))
    except SpecTextError as error:
        raise CliError(str(error), fix="fix the file's syntax") from error
    if result.spec is None:
        for fault in result.faults:
            note(f"{fault.pointer}: {fault.message}\n    fix: {fault.fix}")
        raise CliError(f"{len(result.faults)} fault(s) in {file}", fix="see above")
    if output in (Format.JSON, Format.YAML, Format.JSONL):
        emit_object(effective(result.spec), (), output, context.screen(), name="kind")
        return
    say(f"{file}: ok")


@app.command("schema")
def show_schema() -> None:
    """The JSON Schema of a job spec, for an editor; needs no server."""
    from controlplane.protocol.spec_schema import text

    say(text().rstrip())


_FEATURES = (
    Column(title="FEATURE", show=text("title")),
    Column(title="LAYER", show=text("layer")),
    Column(title="LABEL", show=text("label")),
    Column(title="NOT IN PRODUCTION BECAUSE", show=text("why")),
    Column(title="NAME", show=text("name"), wide=True),
    Column(title="SHOWN", show=text("shown"), wide=True),
)


@app.command()
def features(output: Output = Format.TABLE) -> None:
    """How mature each resilience feature is, and what was shown for it; needs no server."""
    from controlplane.jobs.maturity import rows

    emit_rows(rows(), _FEATURES, output, context.screen(), name="name")


@app.command("ls")
def ls(
    state: Annotated[str | None, typer.Option(help="One state, or several with commas.")] = None,
    q: Annotated[str | None, typer.Option("--query", "-q", help="Part of the name or project.")] = None,
    label: Annotated[list[str] | None, typer.Option("--label", "-l", help="key=value; all of them.")] = None,
    project: Annotated[str | None, typer.Option(help="Of this project alone.")] = None,
    sort: Annotated[str | None, typer.Option(help="created, priority or name, - before it for downwards.")] = None,
    limit: Annotated[int, typer.Option(help="At most this many.", min=1)] = 100,
    output: Output = Format.TABLE,
) -> None:
    """List jobs, newest first unless --sort says otherwise."""
    from itertools import islice

    with context.client() as client:
        labels = ",".join(label or ()) or None
        rows = client.jobs.list(state=state, q=q, project=project, labels=labels, limit=min(limit, 500), sort=sort)
        found = islice(rows, limit)
        emit_rows([context.plain(job) for job in found], columns.JOBS, output, context.screen(), name="name")


@app.command()
def get(job: Job, output: Output = Format.TABLE) -> None:
    """One job."""
    with context.client() as client:
        row = context.plain(client.jobs.get(job))
        emit_object(row, columns.JOB, output, context.screen(), name="id")


@app.command()
def describe(job: Job) -> None:
    """A job with its replicas, checkpoints, incidents and last events, for people."""
    with context.client() as client:
        detail = client.jobs.get(job)
        screen = context.screen()
        emit_object(context.plain(detail), columns.JOB, Format.WIDE, screen, name="id")
        replicas = [context.plain(replica) for replica in client.jobs.replicas(detail.id)]
        for title, rows, shown in (
            ("Replicas", [replica for replica in replicas if replica["current"]], columns.REPLICAS),
            ("Checkpoints", [context.plain(c) for c in client.jobs.checkpoints(detail.id)][:5], columns.CHECKPOINTS),
            ("Incidents", [context.plain(i) for i in client.jobs.incidents(detail.id)][:5], columns.INCIDENTS),
            ("Decisions", [context.plain(d) for d in client.jobs.decisions(detail.id, routine=False)][:5],
             columns.DECISIONS),
        ):  # fmt: skip
            say(f"\n{title}:")
            if rows:
                emit_rows(rows, shown, Format.TABLE, screen, name="id")
            else:
                say("none")


@app.command()
def logs(
    job: Job,
    replica: Annotated[int, typer.Option(help="Replica slot.", min=0)] = 0,
    rank: Annotated[int, typer.Option(help="Rank inside the replica.", min=0)] = 0,
    incarnation: Annotated[
        int | None,
        typer.Option(help="One incarnation of the replica; default: the newest of which something was kept.", min=0),
    ] = None,
    tail: Annotated[int, typer.Option(help="Lines of the end.", min=1, max=10_000)] = 200,
) -> None:
    """The last output of a rank, as it was kept when it ended; of a live one, as last looked at."""
    with context.client() as client:
        log = client.jobs.logs(job, replica=replica, rank=rank, incarnation=incarnation, tail=tail)
    whose = f"Rank {log.rank} of replica {log.replica}, incarnation {log.incarnation}"
    if log.source == "none":
        ask = f"; holdfast rank debug {job} {replica} {rank} log reads it now" if log.state != "exited" else ""
        context.hint(f"{whose} ({log.state}): nothing was kept{ask}.")
        return
    context.hint(f"{whose}: as {'it ended' if log.source == 'exit' else f'it ran at {log.at}'}.")
    say(log.text)


@app.command()
def events(
    job: Job,
    after_seq: Annotated[int, typer.Option(help="Only later ones.", min=0)] = 0,
    limit: Annotated[int, typer.Option(min=1, max=500)] = 100,
    output: Output = Format.TABLE,
) -> None:
    """What happened to a job, oldest first."""
    with context.client() as client:
        page = client.jobs.events(job, after_seq=after_seq, limit=limit)
        rows = [context.plain(event) for event in page.items]
        emit_rows(rows, columns.EVENTS, output, context.screen(), name="seq")


@app.command()
def watch(
    job: Job,
    since: Annotated[int | None, typer.Option(help="Begin after this sequence number.", min=0)] = None,
    output: Output = Format.TABLE,
) -> None:
    """Print events as they happen, until the job ends or Ctrl-C."""
    with context.client() as client:
        follow.print_events(client, job, since, output, context.screen())


@app.command()
def explain(job: Job, output: Output = Format.TABLE) -> None:
    """Why a job is in its state, and what was decided about it."""
    with context.client() as client:
        detail = client.jobs.get(job)
        decisions = [context.plain(d) for d in client.jobs.decisions(detail.id, routine=False)][:10]
        queue = client.jobs.queue(detail.id) if detail.state in ("pending", "preempted") else None
        if output in (Format.JSON, Format.YAML, Format.JSONL):
            answer = {"job": detail.name, "state": detail.state, "why": detail.why, "decisions": decisions}
            if queue is not None:
                answer["queue"] = context.plain(queue)
            emit_object(answer, (), output, context.screen(), name="job")
            return
        say(f"{detail.name} is {detail.state}. {detail.why}")
        if queue is not None:
            for line in waits.lines(queue):
                say(line)
        for decision in decisions:
            say(f"\n{decision['at']}  {decision['rule']}: {decision['sentence']}")
            for other in decision["alternatives"]:
                say(f"    not {other['action']}: {other['why_not'] or 'dearer'}")
        if decisions:
            context.next_commands(f"holdfast decision explain {decisions[0]['id']}")


@app.command()
def checkpoint(
    job: Job, reason: Reason = BY_HAND, wait: Wait = False, timeout: Timeout = 0.0, expected: Expected = None
) -> None:
    """Ask for a save at the next step boundary; with --wait until a newer checkpoint is committed."""
    with context.client() as client:
        asked = client.jobs.checkpoint(job, reason, expected_attempt=expected)
        follow_request(client, asked, wait=wait, timeout_s=timeout, then=(f"holdfast job describe {job}",))


@app.command()
def preempt(
    job: Job, reason: Reason = BY_HAND, wait: Wait = False, timeout: Timeout = 0.0, expected: Expected = None
) -> None:
    """Have a job save, yield its devices and wait for `resume`; with --wait until its attempt ends."""
    with context.client() as client:
        asked = client.jobs.preempt(job, reason, expected_attempt=expected)
        follow_request(client, asked, wait=wait, timeout_s=timeout, then=(f"holdfast job resume {job}",))


@app.command()
def resume(
    job: Job, reason: Reason = BY_HAND, wait: Wait = False, timeout: Timeout = 0.0, expected: Expected = None
) -> None:
    """Give a job that a person preempted its turn back: it continues when there is room for it."""
    with context.client() as client:
        asked = client.jobs.resume(job, reason, expected_attempt=expected)
        follow_request(client, asked, wait=wait, timeout_s=timeout, then=(f"holdfast job explain {job}",))


@app.command()
def cancel(
    job: Job,
    reason: Reason = BY_HAND,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    expected: Expected = None,
) -> None:
    """End a job for good."""
    if not yes and sys.stdin.isatty():
        typer.confirm(f"This stops every rank of {job} for good. Cancel it?", abort=True, err=True)
    with context.client() as client:
        say(client.jobs.cancel(job, reason, expected_attempt=expected).detail)
    context.next_commands(f"holdfast job get {job}")


@app.command("evict-replica")
def evict_replica(
    job: Job,
    replica: Annotated[int, typer.Argument(help="Replica slot.", min=0)],
    reason: Reason = BY_HAND,
    wait: Wait = False,
    timeout: Timeout = 0.0,
    expected: Expected = None,
) -> None:
    """Take one replica out once another has its place; where no device is free, or if told again, without another."""
    with context.client() as client:
        asked = client.jobs.evict_replica(job, replica, reason, expected_attempt=expected)
        then = (f"holdfast job watch {job}", f"holdfast job explain {job}")
        follow_request(client, asked, wait=wait, timeout_s=timeout, then=then)


def _show_dry_run(answer: dict[str, object], output: Format) -> None:
    if output in (Format.JSON, Format.YAML, Format.JSONL):
        emit_object(answer, (), output, context.screen(), name="spec")
    faults = answer["faults"]
    assert isinstance(faults, list)
    for fault in faults:
        note(f"{fault['pointer']}: {fault['message']}\n    fix: {fault['fix']}")
    if faults:
        raise CliError(f"{len(faults)} fault(s); nothing was submitted", fix="see above")
    if output in (Format.TABLE, Format.WIDE, Format.NAME):
        placement = answer["placement"]
        say("ok: it would start now" if placement else f"ok: it would wait: {answer['waits_for']}")
