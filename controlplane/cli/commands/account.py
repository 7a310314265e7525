"""holdfast login, password, config, version, token ..., up."""

import sys
from socket import gethostname
from typing import TYPE_CHECKING, Annotated

import typer

from controlplane.cli import columns, context
from controlplane.cli.config import config_path, write_file
from controlplane.cli.context import Output
from controlplane.cli.exits import CliError, Exit
from controlplane.cli.output import Format, emit_object, emit_rows, say
from controlplane.protocol.version import VERSION

if TYPE_CHECKING:
    from controlplane.protocol.rest import Me

MADE_FOR_DAYS = 90.0
SCOPES = ("read", "submit", "operate", "admin")
"""Each includes the ones before it."""

token = typer.Typer(no_args_is_help=True, help="API tokens.")


def login(
    user: Annotated[str, typer.Option(help="Sign in as this person and make the token.", metavar="NAME")] = "",
    days: Annotated[float, typer.Option(help="The made token is valid so long.", min=0.01)] = MADE_FOR_DAYS,
) -> None:
    """Save a token for a server: read from stdin, or asked for without echo; with --user it is made,
    for the password, or one-time password, that is read instead."""
    from controlplane.sdk import Client

    url = context.config().url
    secret = _read_secret(f"Password of {user} at {url}: " if user else f"API token for {url}: ")
    if user:
        with Client(url, timeout_s=context.STATE.timeout_s) as client:
            most = _widest(client.sign_in(user, secret))
            made = client.tokens.create(f"login at {gethostname()}"[:100], scope=most, expires_in_s=days * 86400)
            client.sign_out()
        secret = made.token
    with Client(url, token=secret) as client:
        me = client.me()
    path = config_path()
    write_file(path, url=url, token=secret)
    context.hint(f"Signed in to {url} as {me.username} ({', '.join(me.roles)}); saved in {path}.")
    context.next_commands("holdfast job ls")


def _widest(me: "Me") -> str:
    """The widest scope that is held anywhere, in the fleet or in a project."""
    held = {*me.roles, *me.projects.values()}
    return [scope for scope in SCOPES if scope in held][-1]


def password(user: Annotated[str, typer.Argument(metavar="NAME", help="Whose.")]) -> None:
    """Set or change a password: the present (or a one-time) one, then twice the new one, are asked
    for without echo; of a pipe, the first and the second line."""
    from controlplane.sdk import Client

    url = context.config().url
    current = _read_secret(f"Password so far, or one-time password, of {user} at {url}: ")
    new = _read_secret("New password: ")
    if sys.stdin.isatty() and _read_secret("New password, again: ") != new:
        raise CliError("the two are not the same", fix="nothing was changed; run it again", code=Exit.USAGE)
    with Client(url, timeout_s=context.STATE.timeout_s) as client:
        client.change_password(user, current, new)
    context.hint(f"The password of {user} was changed; sessions of the page have ended, tokens have not.")
    context.next_commands(f"holdfast login --user {user}")


def _read_secret(asked: str) -> str:
    """Without echo on a terminal, else the next line of stdin."""
    from getpass import getpass

    secret = getpass(asked) if sys.stdin.isatty() else sys.stdin.readline()
    if not secret.strip():
        raise CliError("nothing was given", fix="pipe it in, or paste it when asked", code=Exit.AUTH)
    return secret.strip()


def show_config(output: Output = Format.TABLE) -> None:
    """The effective configuration, and where each value came from."""
    settings = context.config()
    rows = [
        {"key": "url", "value": settings.url, "source": settings.sources["url"]},
        {"key": "token", "value": _masked(settings.token), "source": settings.sources["token"]},
    ]
    from controlplane.cli.output import Column, text

    shown = tuple(Column(title=name.upper(), show=text(name)) for name in ("key", "value", "source"))
    emit_rows(rows, shown, output, context.screen(), name="key")


def version(output: Output = Format.TABLE) -> None:
    """Of this program, and of the server if it answers."""
    from controlplane.cli.output import Column, text
    from controlplane.sdk import SdkError

    try:
        with context.client() as client:
            server = client.version().version
    except SdkError:
        server = None
    shown = (Column(title="CLIENT", show=text("client")), Column(title="SERVER", show=text("server")))
    emit_object({"client": VERSION, "server": server}, shown, output, context.screen(), name="client")


@token.command("create")
def create_token(
    name: Annotated[str, typer.Argument(help="What it is for.")],
    scope: Annotated[str, typer.Option(help="read, submit, operate or admin.")] = "read",
    days: Annotated[float, typer.Option(help="Valid so long; 0: as long as the token that asks.", min=0)] = 90.0,
    project: Annotated[str, typer.Option(help="Good in this project alone; else wherever you are.")] = "",
    output: Output = Format.TABLE,
) -> None:
    """Make one; it is shown this once."""
    with context.client() as client:
        made = client.tokens.create(name, scope=scope, expires_in_s=days * 86400 or None, project=project)
    if output in (Format.TABLE, Format.WIDE):
        say(made.token)
        context.hint("It is shown this once; keep it like a password.")
    else:
        emit_object(context.plain(made), columns.TOKENS, output, context.screen(), name="id")


@token.command("ls")
def list_tokens(
    everybody: Annotated[bool, typer.Option("--everybody", help="Of all accounts; administrators only.")] = False,
    output: Output = Format.TABLE,
) -> None:
    """List the token in use and what it made, without their secrets."""
    with context.client() as client:
        rows = [context.plain(row) for row in client.tokens.list(everybody=everybody or None)]
        emit_rows(rows, columns.TOKENS, output, context.screen(), name="id")


@token.command("revoke")
def revoke_token(token_id: Annotated[str, typer.Argument(metavar="TOKEN")]) -> None:
    """At once and for good."""
    with context.client() as client:
        say(client.tokens.revoke(token_id).detail)


def up(
    port: Annotated[int, typer.Option(help="Port of the page.")] = 8000,
    keep: Annotated[bool, typer.Option("--keep", help="Continue with the files of the last demo.")] = False,
) -> None:
    """Start the demo on this machine: every process, simulated GPUs, one job."""
    try:
        from controlplane.demo.__main__ import main as demo
    except ImportError as error:
        raise CliError(
            f"the server is not installed here: {error}", fix='pip install "holdfast[server,trainer]"'
        ) from error
    raise typer.Exit(demo(["--port", str(port), *(["--keep"] if keep else [])]))


def _masked(secret: str) -> str:
    return f"{secret[:14]}..." if secret else ""
