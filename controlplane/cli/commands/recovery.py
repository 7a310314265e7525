"""holdfast incident ... and holdfast decision ..."""

from collections.abc import Iterable
from itertools import islice
from typing import Annotated, Any

import typer

from controlplane.cli import columns, context, readings
from controlplane.cli.context import BY_HAND, Output, Reason
from controlplane.cli.exits import CliError, Exit
from controlplane.cli.output import Format, emit_object, emit_rows, say, span

incident = typer.Typer(no_args_is_help=True, help="What went wrong, and how it ended.")
decision = typer.Typer(no_args_is_help=True, help="What was decided, and why.")
MACHINE = (Format.JSON, Format.YAML, Format.JSONL, Format.NAME)
MANY = 100
Decision = Annotated[str, typer.Argument(metavar="DECISION")]
NO_SERIES = 2
"""Points of a series that is not shown: as few as can be asked for."""


def _at_most(found: Iterable[Any]) -> list[dict[str, Any]]:
    """The first of them, and a word where there are more."""
    rows = [context.plain(row) for row in islice(found, MANY + 1)]
    if len(rows) > MANY:
        context.hint(f"The newest {MANY} are shown; there are more, on the page and in the API.")
    return rows[:MANY]


@incident.command("ls")
def list_incidents(
    state: Annotated[str | None, typer.Option(help="open, recovering, mitigated or resolved.")] = None,
    sort: Annotated[str | None, typer.Option(help="opened: the oldest first.")] = None,
    output: Output = Format.TABLE,
) -> None:
    """List incidents, newest first unless --sort says otherwise."""
    with context.client() as client:
        rows = _at_most(client.incidents.list(state=state, sort=sort))
        emit_rows(rows, columns.INCIDENTS, output, context.screen(), name="id")


@incident.command("get")
def get_incident(incident: Annotated[str, typer.Argument(metavar="INCIDENT")], output: Output = Format.TABLE) -> None:
    """One incident: phases, device readings around the fault, decisions, certificate."""
    with context.client() as client:
        row = context.plain(client.incidents.get(incident))
        wanted = output not in MACHINE and any(signal["node_id"] for signal in row["signals"])
        around = context.plain(client.incidents.readings(incident, max_points=NO_SERIES)) if wanted else None
    emit_object(row, columns.INCIDENTS, output, context.screen(), name="id")
    if output in MACHINE:
        return
    _ending(row)
    say("\nPhases:")
    for phase in row["phases"]:
        since = phase["since_fault_s"]
        say(f"  {'-' if since is None else span(since):>8}  {phase['name']}")
    if row["stall_s"] is not None:
        others = f", and {span(row['stall_others_s'])} because of other incidents" if row["stall_others_s"] else ""
        say(f"\nTraining stood still for {span(row['stall_s'])} because of it{others}.")
    if around is not None:
        say("\nDevice readings around the fault:")
        for line in readings.lines(around, whole=False):
            say(f"  {line}")
    say("\nDecisions:")
    for item in row["decisions"]:
        say(f"  {'(routine) ' if item['routine'] else ''}{item['sentence']}")
    _certificate(row["certificate"])


@incident.command("readings")
def get_readings(incident: Annotated[str, typer.Argument(metavar="INCIDENT")], output: Output = Format.TABLE) -> None:
    """What its devices read around the fault: before it, lowest, highest, after it, what changed first."""
    machine = output in MACHINE
    with context.client() as client:
        around = context.plain(client.incidents.readings(incident, max_points=None if machine else NO_SERIES))
    if machine:
        emit_object(around | {"id": incident}, (), output, context.screen(), name="id")
        return
    for line in readings.lines(around, whole=True):
        say(line)


@incident.command()
def acknowledge(incident: Annotated[str, typer.Argument(metavar="INCIDENT")], reason: Reason = BY_HAND) -> None:
    """Say that you have seen it and take on what is left, as a GPU to replace."""
    with context.client() as client:
        say(client.incidents.acknowledge(incident, reason).detail)
    context.next_commands(f"holdfast incident get {incident}")


@decision.command("ls")
def list_decisions(
    job: Annotated[str | None, typer.Option(help="Of this job; else the newest of the fleet.")] = None,
    routine: Annotated[bool, typer.Option("--routine", help="Also the orderly ones.")] = False,
    output: Output = Format.TABLE,
) -> None:
    """List decisions, newest first."""
    with context.client() as client:
        if job is None and routine:
            raise CliError("--routine is of one job: name it by --job", code=Exit.USAGE)
        if job is None:
            found = iter(client.overview().recent_decisions)
        else:
            found = client.jobs.decisions(job, routine=None if routine else False)
        rows = _at_most(found)
        emit_rows(rows, columns.DECISIONS, output, context.screen(), name="id")


@decision.command()
def explain(decision: Decision, output: Output = Format.TABLE) -> None:
    """Evidence, alternatives with their cost, orders and what became of them."""
    with context.client() as client:
        row = context.plain(client.decisions.get(decision))
    if output in MACHINE:
        emit_object(row, columns.DECISIONS, output, context.screen(), name="id")
        return
    applied = "" if row["applied"] else f" (not applied: mode {row['mode']})"
    say(f"{row['sentence']}{applied}\n\nrule {row['rule']}, choice {row['choice']}, reason {row['reason_code']}")
    made_by = ", ".join(f"{kind} {number}" for kind, number in (row["policy_documents"] or {}).items())
    documents = f" (documents: {made_by})" if made_by else ""
    say(f"epoch {row['epoch_before']} -> {row['epoch_after']}, policy {row['policy_version']}{documents}")
    say("\nEvidence:")
    for name, value in row["evidence"].items():
        say(f"  {name}: {'-' if value is None else value}")
    say("\nInstead:")
    for other in row["alternatives"]:
        say(f"  {other['action']}: {_cost(other['cost_gpu_s'])}  {other['why_not']}".rstrip())
    say(f"  {row['choice']} (chosen): {_cost(row['cost_gpu_s'])}")
    if row["commands"]:
        say("\nCommands:")
    for command in row["commands"]:
        say(f"  {command['kind']} to {command['node_name']}: {command['state']} {command['detail']}".rstrip())
    _words(row)


@decision.command()
def approve(decision: Decision, reason: Reason = BY_HAND) -> None:
    """Have a decision carried out that was only recommended, if the policy still recommends it."""
    with context.client() as client:
        say(client.decisions.approve(decision, reason).detail)


@decision.command()
def reject(decision: Decision, reason: Reason = BY_HAND) -> None:
    """Have a recommended decision not carried out."""
    with context.client() as client:
        say(client.decisions.reject(decision, reason).detail)


@decision.command()
def hold(decision: Decision, reason: Reason = BY_HAND) -> None:
    """Stop the countdown of a recommended decision: it waits until somebody approves or rejects it."""
    with context.client() as client:
        say(client.decisions.hold(decision, reason).detail)


def _words(row: dict[str, Any]) -> None:
    """What people said of one that was only recommended, and what it waits for."""
    if row["mode"] != "recommend":
        return
    say(f"\nIt would {'; '.join(row['reach']) or 'change nothing but its record'}.")
    for word in row["verdicts"]:
        say(f"  {word['at']}  {word['who']} {word['verdict']}: {word['reason']}")
    if why := row["capabilities"]["approve"]:
        say(f"Nobody is asked any more: {why}.")
    elif row["acts_at"]:
        say(f"It is carried out at {row['acts_at']} unless somebody objects: `holdfast decision hold {row['id']}`.")
    elif row["approvals_needed"]:
        people = "one person" if row["approvals_needed"] == 1 else f"{row['approvals_needed']} people"
        say(f"It waits for the approval of {people}: `holdfast decision approve {row['id']}`.")


def _cost(cost_gpu_s: float | None) -> str:
    return "cost unknown" if cost_gpu_s is None else f"{cost_gpu_s:.0f} GPU-seconds"


def _repeated(row: dict[str, Any]) -> str:
    text = f"Steps {row['first']} to {row['last']} were trained again, {row['again']} of {row['steps']} so far"
    if row["largest_difference"] is None:
        return f"{text}; no loss could be compared."
    return f"{text}; {row['compared']} losses differ by at most {row['largest_difference']:.1e}."


def _ending(row: dict[str, Any]) -> None:
    if row["resolution"]:
        say(f"\n{row['outcome'] or row['state']}: {row['resolution']}")
    if row["needs_hardware"] and row["state"] != "resolved":
        say(f"Needs hardware: reset or replace it; holdfast incident acknowledge {row['id']}")
    if row["acknowledged_by"]:
        say(f"Acknowledged by {row['acknowledged_by']}: {row['acknowledgement']}")
    if row["part_of"]:
        say(f"Part of one cause with incidents of other jobs: holdfast incident get {row['part_of']}")
    for part in row["parts"]:
        say(f"  {part['id']}  {part['job_name']}: {part['title']} ({part['outcome'] or part['state']})")


def _certificate(certificate: dict[str, Any] | None) -> None:
    if certificate is None:
        say("\nCertificate: none yet")
        return
    say(f"\nCertificate: {columns.verdict(certificate)}")
    if certificate["repeated"]:
        say(f"  {_repeated(certificate['repeated'])}")
    words = {True: "ok", False: "BROKEN", None: "not judged"}
    for check in certificate["checks"]:
        say(f"  {words[check['ok']]:>10}  {check['name']}: {check['detail']}")
