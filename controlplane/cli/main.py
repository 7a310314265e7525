"""The program: commands, global flags, and one place that turns failures into words and
exit codes. Nothing heavy is imported before a command runs."""

import sys
import traceback
from typing import Annotated

import typer

from controlplane.cli.commands import (
    account,
    audit,
    bench,
    bill,
    breaker,
    chaos,
    engine,
    fleet,
    imports,
    job_parts,
    join_token,
    ledger,
    policy,
    project,
    queue,
    rank,
    recovery,
    replay,
    request,
    reservation,
    shadow,
    slurm,
    slurm_pilots,
    window,
)
from controlplane.cli.context import STATE, hint
from controlplane.cli.exits import MEANINGS, CliError, Exit
from controlplane.cli.output import note

EPILOG = "Exit codes: " + "; ".join(f"{code.value} {meaning}" for code, meaning in MEANINGS.items()) + "."

app = typer.Typer(
    name="holdfast",
    help="Keeps training jobs training: submit, watch and understand them.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for name, group in (
    ("job", job_parts.app), ("rank", rank.app), ("node", fleet.node), ("gpu", fleet.gpu),
    ("breaker", breaker.app), ("window", window.app), ("reservation", reservation.app), ("engine", engine.app),
    ("incident", recovery.incident), ("decision", recovery.decision),
    ("request", request.app), ("policy", policy.app), ("project", project.app),
    ("audit", audit.app), ("token", account.token), ("join-token", join_token.app), ("import", imports.app),
    ("slurm", slurm.app), ("bench", bench.app),
):  # fmt: skip
    app.add_typer(group, name=name)
slurm.app.command("pilots")(slurm_pilots.pilots)
policy.app.command("dry-run")(replay.dry_run)
policy.app.add_typer(shadow.app, name="shadow")
recovery.decision.command("replay")(replay.replay)
project.app.command("bill")(bill.bill)
app.command("chaos")(chaos.chaos)
app.command("ledger")(ledger.ledger)
app.command("queue")(queue.queue)
app.command("capacity")(queue.capacity)
app.command("login")(account.login)
app.command("password")(account.password)
app.command("config")(account.show_config)
app.command("version")(account.version)
app.command("up")(account.up)


@app.callback()
def options(
    url: Annotated[str, typer.Option(help="Server; else HOLDFAST_URL, else the config file.")] = "",
    timeout: Annotated[float, typer.Option(help="Seconds for one request.", min=0.1)] = 10.0,
    quiet: Annotated[bool, typer.Option("--quiet", help="Only data and errors.")] = False,
    no_color: Annotated[bool, typer.Option("--no-color", help="As NO_COLOR in the environment.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of a failure.")] = False,
) -> None:
    """Options of every command."""
    STATE.url, STATE.timeout_s = url, timeout
    STATE.quiet, STATE.no_color, STATE.debug = quiet, no_color, debug


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    try:
        code = app(args=argv, standalone_mode=False)
    except CliError as error:
        return _fail(error, str(error), error.fix, error.code)
    except (KeyboardInterrupt, typer.Abort):
        return Exit.INTERRUPTED
    except (BrokenPipeError, SystemExit) as error:
        # The reader has enough (`| head`), which the parser makes an exit with 1; stdout is gone, so nothing may
        # flush it at exit.
        if isinstance(error, SystemExit) and not isinstance(error.__context__, BrokenPipeError):
            raise
        sys.stdout = None
        return Exit.OK
    except Exception as error:
        return _other(error)
    return int(code) if isinstance(code, int) else Exit.OK


def _other(error: Exception) -> int:
    """Usage errors of the parser, refusals of the server, and bugs."""
    show = getattr(error, "show", None)
    if show is not None:
        show(file=sys.stderr)
        return int(getattr(error, "exit_code", Exit.USAGE))
    from controlplane.sdk import errors

    match error:
        case errors.ApiError():
            return _refused(error)
        case errors.UnavailableError():
            fix = "is it running, and is the address right? See `holdfast config`"
            return _fail(error, f"the server does not answer: {error}", fix, Exit.UNAVAILABLE)
        case errors.SdkError():
            return _fail(error, str(error), "do client and server have the same version?", Exit.UNAVAILABLE)
    if STATE.debug:
        note("".join(traceback.format_exception(error)))
    note(f"error: this is a bug: {type(error).__name__}: {error}")
    hint("Run it again with --debug before the command, and report what it prints.")
    return Exit.NEGATIVE


def _refused(error: Exception) -> int:
    from controlplane.sdk import errors

    assert isinstance(error, errors.ApiError)
    table = (
        (errors.NotFoundError, Exit.NOT_FOUND, ""),
        (errors.AuthError, Exit.AUTH, "holdfast login"),
        (errors.ForbiddenError, Exit.AUTH, "ask for a token with a wider scope"),
        (errors.ConflictError, Exit.CONFLICT, ""),
        (errors.InvalidError, Exit.USAGE, ""),
        (errors.ApiError, Exit.UNAVAILABLE, f"try again; request id {error.problem.request_id}"),
    )
    code, fix = next((code, fix) for kind, code, fix in table if isinstance(error, kind))
    for told in error.problem.errors:
        note(f"{told.pointer}: {told.message}" + (f"\n    fix: {told.fix}" if told.fix else ""))
    return _fail(error, str(error), fix, code)


def _fail(error: Exception, message: str, fix: str, code: Exit) -> int:
    if STATE.debug:
        note("".join(traceback.format_exception(error)))
    note(f"error: {message}")
    if fix:
        note(f"fix: {fix}")
    return code
