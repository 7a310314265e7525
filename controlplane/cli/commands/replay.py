"""holdfast decision replay, and the dry run of holdfast policy: the journal page by page."""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from controlplane.cli import context
from controlplane.cli.commands import continuing
from controlplane.cli.commands.policy import File, OfJob, OfProject, show_changes, text_of
from controlplane.cli.context import Output
from controlplane.cli.exits import Exit
from controlplane.cli.faults import of_file
from controlplane.cli.output import Format, emit_object, say
from controlplane.cli.spans import length_of

if TYPE_CHECKING:
    from controlplane.sdk import Client

MAX_SEEDS = 64
PAGE = 500
SHOWN = 50
Seeds = Annotated[
    int,
    typer.Option(help="Worlds for what nobody can know, of each decision; 0: continue none.", min=0, max=MAX_SEEDS),
]
Within = Annotated[str, typer.Option(help="Continue decisions in the simulator for so long at most: 90s, 10m.")]
Since = Annotated[str, typer.Option(help="How far back: 90s, 30m, 24h, 7d.")]
_ENFORCE = "enforce"


def dry_run(
    file: File,
    since: Since = "7d",
    job: OfJob = None,
    project: OfProject = None,
    seeds: Seeds = 4,
    within: Within = "2m",
    output: Output = Format.TABLE,
) -> None:
    """Which recorded decisions a document would have changed, and their price; nothing is stored."""
    with of_file(file):
        _show(text_of(file), since, _of(job, project), output, seeds=seeds, within_s=length_of(within).total_seconds())


def replay(
    since: Since = "7d",
    policy: Annotated[str, typer.Option(help="A file: by this document instead of the policies that decided.")] = "",
    job: OfJob = None,
    project: OfProject = None,
    seeds: Seeds = 4,
    within: Within = "2m",
    output: Output = Format.TABLE,
) -> None:
    """Make recorded decisions again and compare them byte for byte, exit 1 if one differs by its own policy; or by
    another policy, each that comes out otherwise continued in the simulator by both."""
    from pathlib import Path

    within_s = length_of(within).total_seconds()
    if not policy:
        _show(None, since, _of(job, project), output, seeds=0, within_s=within_s)
        return
    with of_file(Path(policy)):
        _show(text_of(Path(policy)), since, _of(job, project), output, seeds=seeds, within_s=within_s)


def _of(job: str | None, project: str | None) -> dict[str, str]:
    """Whose decisions, as the client takes it."""
    return {"job_id": job or "", "project": project or ""}


def _show(text: str | None, since: str, of: dict[str, str], output: Format, *, seeds: int, within_s: float) -> None:
    with context.client() as client:
        whole = merged(_pages(client, text, length_of(since).total_seconds(), of))
    whole = continuing.continued(whole, seeds=seeds, within_s=within_s)
    if output not in (Format.TABLE, Format.WIDE):
        emit_object(whole, (), output, context.screen(), name="replayed")
    else:
        _say(whole, candidate=text is not None, since=since)
    if text is None and whole["differences"]:
        raise typer.Exit(Exit.NEGATIVE)


def _pages(client: "Client", text: str | None, since_s: float, of: dict[str, str]) -> Iterator[dict[str, Any]]:
    cursor, seen = "", set[str]()
    while True:
        page = context.plain(client.policy.replay(since_s=since_s, text=text, cursor=cursor, limit=PAGE, **of))
        yield page
        if page["next"] is None:
            return
        cursor = page["next"]
        if cursor in seen:
            again = {"the rest of the journal: the server gives the same page again": 1}
            yield page | {"replayed": 0, "equal": 0, "differences": [], "left_out": again}
            return
        seen.add(cursor)


def merged(pages: Iterator[dict[str, Any]]) -> dict[str, Any]:
    """All pages as one; what a candidate adds to a job is one difference, however many passes would decide it."""
    whole: dict[str, Any] = {
        "replayed": 0, "equal": 0, "differences": [], "left_out": Counter(), "changes": [], "policies": {},
    }  # fmt: skip
    added: set[tuple[str | None, str]] = set()
    for page in pages:
        whole["replayed"] += page["replayed"]
        whole["equal"] += page["equal"]
        whole["left_out"].update(page["left_out"])
        whole["changes"] = page["changes"]
        whole["policies"] |= page["policies"]
        for each in page["differences"]:
            name = (each["job_id"], each["key"])
            if each["kind"] != "added" or name not in added:
                whole["differences"].append(each)
                added |= {name} if each["kind"] == "added" else set()
    return whole | {"left_out": dict(whole["left_out"])} | balance(whole["differences"])


def balance(differences: list[dict[str, Any]]) -> dict[str, Any]:
    """Acts by choice that would have been carried out besides, and those that would not; and what that changes in
    GPU-seconds, by the prices of the decisions themselves, of `priced` differences."""
    more: Counter[str] = Counter()
    fewer: Counter[str] = Counter()
    cost_s, priced = 0.0, 0
    for each in differences:
        before, after = each["before"], each["after"]
        done, would = (side is not None and side["mode"] == _ENFORCE for side in (before, after))
        if done and not (would and after["choice"] == before["choice"]):
            fewer[before["choice"]] += 1
        if would and not (done and after["choice"] == before["choice"]):
            more[after["choice"]] += 1
        costs = [side["cost_gpu_s"] for side, acts in ((before, done), (after, would)) if acts]
        if costs and None not in costs:
            cost_s += (after["cost_gpu_s"] if would else 0.0) - (before["cost_gpu_s"] if done else 0.0)
            priced += 1
    return {"more": dict(more), "fewer": dict(fewer), "cost_gpu_s": cost_s, "priced": priced}


def _say(whole: dict[str, Any], *, candidate: bool, since: str) -> None:
    if candidate:
        show_changes(whole["changes"])
        say("")
    differ = len(whole["differences"])
    say(f"{whole['replayed']} decisions of the last {since}: {whole['equal']} equal, {differ} differ.")
    for word, counts in (("more", whole["more"]), ("fewer", whole["fewer"])):
        if candidate and counts:
            listed = ", ".join(f"{choice} {number}" for choice, number in sorted(counts.items()))
            say(f"It would have carried out {word}: {listed}.")
    if candidate and whole["priced"]:
        cost_s, of = whole["cost_gpu_s"], whole["priced"]
        word = "less" if cost_s < 0 else "more"
        say(
            f"By their own prices the acts would have cost {abs(cost_s):.0f} GPU-seconds {word}, of {of} that have one;"
        )
        say("what it costs not to act is not in this.")
    if candidate:
        for line in continuing.words(whole):
            say(line)
    for each in whole["differences"][:SHOWN]:
        say(f"\n{each['at']}  {each['job_name'] or 'fleet'}  {each['kind']}  {each['decision_id']}")
        for side in ("before", "after"):
            made = each[side]
            say(f"  {side:>6}: {'nothing' if made is None else _line(made)}")
        if each["fields"]:
            fields = ", ".join(each["fields"])
            say(f"  not the same: {fields}. The rule's code has changed since, or the row was edited.")
        if candidate:
            say(f"  {continuing.line(each)}")
            if each["assumed"]:
                say("  It asked for more of the fleet than was recorded: taken as if nothing more was free.")
    if differ > SHOWN:
        say(f"\n{differ - SHOWN} more; -o json has them all.")
    for reason, number in whole["left_out"].items():
        say(f"\nNot compared: {number}, {reason}.")


def _line(made: dict[str, Any]) -> str:
    cost = "" if made["cost_gpu_s"] is None else f", {made['cost_gpu_s']:.0f} GPU-seconds"
    return f"{made['rule']}: {made['choice']} ({made['mode']}{cost}). {made['sentence']}"
