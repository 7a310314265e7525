"""holdfast policy shadow: a policy beside the live one, which acts on nothing."""

from typing import Annotated, Any

import typer

from controlplane.cli import context
from controlplane.cli import policy_columns as columns
from controlplane.cli.commands.policy import File, Parent, text_of
from controlplane.cli.context import BY_HAND, Output, Reason
from controlplane.cli.exits import CliError, Exit
from controlplane.cli.faults import of_file
from controlplane.cli.output import Format, emit_object, emit_rows, say

app = typer.Typer(no_args_is_help=True, help="A policy that decides beside the live one, and acts on nothing.")
MinDecisions = Annotated[int, typer.Option(help="Compared decisions that a promotion asks for.", min=1, max=100_000)]
MinDays = Annotated[float, typer.Option(help="And days.", min=0, max=90)]
MaxUnpriced = Annotated[float, typer.Option(help="Share of differing decisions that may have no price.", min=0, max=1)]
Tolerance = Annotated[
    float, typer.Option(help="It may waste more by so much of what the incidents cost.", min=0, max=1)
]


@app.command()
def start(
    file: File,
    reason: Reason = BY_HAND,
    min_decisions: MinDecisions = 50,
    min_days: MinDays = 1.0,
    max_unpriced: MaxUnpriced = 0.1,
    tolerance: Tolerance = 0.02,
) -> None:
    """Let a document of the fleet decide beside the live policy from now on."""
    bar = {
        "min_decisions": min_decisions,
        "min_days": min_days,
        "max_unpriced": max_unpriced,
        "tolerance": tolerance,
    }
    text = text_of(file)
    with context.client() as client, of_file(file):
        made = client.policy.start_shadow(text, reason=reason, bar=bar)
    say(f"Shadow {made.run} decides beside version {made.live_number}, and acts on nothing.")
    context.next_commands("holdfast policy shadow show", "holdfast policy shadow stop")


@app.command()
def show(
    run: Annotated[int, typer.Argument(metavar="[RUN]", help="Else the one that runs, or the newest.", min=0)] = 0,
    output: Output = Format.TABLE,
) -> None:
    """How far it agrees, what its way would have cost, and whether it may be promoted."""
    row = _of(run)
    if output not in (Format.TABLE, Format.WIDE):
        emit_object(row, (), output, context.screen(), name="run")
        return
    what = "watches" if row["role"] == "watch" else "runs beside"
    say(f"Shadow {row['run']}, {row['state']}: it {what} version {row['live_number']}. {row['reason']}")
    if row["ended_why"]:
        say(f"Ended at {row['ended_at']}: {row['ended_why']}")
    say("")
    emit_rows(row["matrix"], columns.AGREEMENT, output, context.screen(), name="rule")
    say("")
    for said in words(row):
        say(said)


@app.command()
def promote(
    run: Annotated[int, typer.Argument(metavar="[RUN]", help="Else the one that runs.", min=0)] = 0,
    reason: Reason = BY_HAND,
    parent: Parent = None,
) -> None:
    """Make it the policy; the one before it watches, and comes back by itself where it did better."""
    row = _of(run)
    with context.client() as client:
        known = client.policy.get().number if parent is None else parent
        made = client.policy.promote_shadow(row["run"], parent=known, reason=reason)
    say(f"Version {made.live_number} is in force; shadow {made.run} watches it.")
    context.next_commands("holdfast policy shadow show", f"holdfast policy rollback {known}")


@app.command()
def stop(
    run: Annotated[int, typer.Argument(metavar="[RUN]", help="Else the one that runs.", min=0)] = 0,
    reason: Reason = BY_HAND,
) -> None:
    """End it; the live policy is as it was."""
    row = _of(run)
    with context.client() as client:
        made = client.policy.stop_shadow(row["run"], reason=reason)
    say(f"Shadow {made.run} is stopped.")


def words(row: dict[str, Any]) -> list[str]:
    """Its score, and what keeps it from being promoted."""
    score, whose = row["score"], "the policy before it" if row["role"] == "watch" else "it"
    said = [f"{score['decisions']} decisions over {score['days']:.1f} days: {score['differing']} differ."]
    priced = f"{score['continued']} continued in the simulator, {score['expected']} by their own prices"
    said.append(f"Of these {priced}, {score['unpriced']} without a price, {row['waiting']} still to come.")
    if score["incidents"]:
        word = "less" if score["change_gpu_s"] < 0 else "more"
        over = f"{score['incidents']} incident{'' if score['incidents'] == 1 else 's'} that it answers otherwise"
        said.append(
            f"Over {over}, {whose} would have wasted {abs(score['change_gpu_s']):.0f} GPU-seconds {word}"
            f" (+/- {score['error_gpu_s']:.0f}); all that were compared cost {score['live_gpu_s']:.0f}."
        )
    if row["role"] == "candidate" and row["state"] == "running":
        said += [f"It may not be promoted: {reason}." for reason in row["below"]]
        said += [] if row["below"] else ["It may be promoted: holdfast policy shadow promote."]
    return said


def _of(run: int) -> dict[str, Any]:
    """Raises CliError where there is none."""
    with context.client() as client:
        row: dict[str, Any] | None = context.plain(client.policy.shadow(run=run))["shadow"]
    if row is None:
        raise CliError(
            "no policy has run beside the live one yet", fix="holdfast policy shadow start FILE", code=Exit.NOT_FOUND
        )
    return row
