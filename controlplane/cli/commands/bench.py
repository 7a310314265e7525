"""holdfast bench ...: how large a fleet a control plane carries (docs/load.md)."""

import signal
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn
from urllib.parse import urlsplit

import typer

from controlplane.cli import context
from controlplane.cli.config import load
from controlplane.cli.exits import CliError, Exit
from controlplane.cli.output import say, to_json

if TYPE_CHECKING:
    from controlplane.bench.report import Outcome
    from controlplane.bench.run import Wanted

app = typer.Typer(no_args_is_help=True, help="Load tests with agents that speak the real protocol.")
LOOPBACK = ("127.0.0.1", "::1", "localhost")


@app.command("fleet")
def fleet(
    agents: Annotated[int, typer.Option(help="Nodes, each with an agent of its own.", min=1)] = 100,
    devices: Annotated[int, typer.Option(help="Devices of each node.", min=1)] = 8,
    interval: Annotated[float, typer.Option(help="Seconds from a frame of an agent to its next.")] = 1.0,
    minutes: Annotated[float, typer.Option(help="How long is measured.", min=0.084)] = 1.0,
    seed: Annotated[int, typer.Option(help="The same seed, the same script.")] = 1,
    xids: Annotated[int, typer.Option(help="XIDs, by turns of programs and of devices.", min=0)] = 0,
    heat: Annotated[int, typer.Option(help="Nodes of which a device becomes far too warm.", min=0)] = 0,
    silence: Annotated[int, typer.Option(help="Nodes that say nothing for --silence-s.", min=0)] = 0,
    silence_s: Annotated[float, typer.Option("--silence-s", help="Seconds.", min=0)] = 15.0,
    late: Annotated[float, typer.Option(help="Share of all frames that come up to 2 s late.", min=0, max=1)] = 0.0,
    drops: Annotated[
        int, typer.Option("--storm", help="Times that half the fleet drops its sessions at once.", min=0)
    ] = 0,
    hostile: Annotated[int, typer.Option(help="Nodes that break the rules of the protocol.", min=0)] = 0,
    kill_web: Annotated[bool, typer.Option("--kill-web", help="At the end kill -9 every web process.")] = False,
    webs: Annotated[int, typer.Option(help="Web processes of the stack that is started.", min=1, max=16)] = 1,
    sentinels: Annotated[
        int, typer.Option(help="Sentinels of that stack, and shards of its fleet.", min=1, max=16)
    ] = 1,
    generators: Annotated[
        int, typer.Option(help="Processes that play agents; 0: as few as will do.", min=0, max=64)
    ] = 0,
    server: Annotated[str, typer.Option(help="A control plane that stands already; else one is started.")] = "",
    join_token_file: Annotated[Path | None, typer.Option(help="Of --server: a token for so many agents.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures there.")] = None,
) -> None:
    """Start the production shape here, let a fleet of agents speak to it, and say what it cost and what was lost."""
    from controlplane.bench.script import Faults, Fleet

    faults = Faults(
        xids=xids, heated=heat, silent=silence, silence_s=silence_s, late_ratio=late, drops=drops, hostile=hostile
    )
    played = Fleet(
        agents=agents, devices=devices, interval_s=interval, duration_s=minutes * 60.0, seed=seed, faults=faults
    )
    if server and (kill_web or webs != 1 or sentinels != 1):
        raise CliError(
            "--kill-web, --webs and --sentinels are of a stack that is started here: leave them out with --server"
        )
    chosen: dict[str, Any] = {"kill_web": kill_web, "generators": generators}
    if server:
        address = _address(server)
        chosen |= {"server": address, **_tokens(join_token_file, address)}
    outcome = _measured(played, chosen, {"webs": webs, "sentinels": sentinels})
    _tell(outcome, json_file)


def _measured(played: Any, chosen: dict[str, Any], numbers: dict[str, int]) -> "Outcome":
    """`numbers`: of processes of each kind. Raises CliError."""
    wanted, shape, run, failures = _parts()
    # A shell's background job begins with SIGINT ignored.
    before = {number: signal.signal(number, _interrupt) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        return run(wanted(fleet=played, shape=shape(**numbers), **chosen), context.hint)  # type: ignore[no-any-return]
    except failures as error:
        usage = type(error).__name__ == "ScriptInvalid"
        raise CliError(str(error), code=Exit.USAGE if usage else Exit.UNAVAILABLE) from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _parts() -> tuple[type["Wanted"], Any, Any, tuple[type[Exception], ...]]:
    """The load test needs the server's and the agent's packages; the command line alone does not."""
    try:
        from controlplane.bench.players import GeneratorError
        from controlplane.bench.run import RunError, Wanted, run
        from controlplane.bench.script import ScriptInvalid
        from controlplane.bench.stack import Shape, StackError
        from controlplane.demo.ports import MissingProgram
        from controlplane.demo.private_postgres import MissingPostgres
    except ImportError as error:
        fix = 'pip install "holdfast[server,agent]"'
        raise CliError(f"the server is not installed here: {error}", fix=fix) from error
    return Wanted, Shape, run, (ScriptInvalid, RunError, GeneratorError, StackError, MissingProgram, MissingPostgres)


def _tell(outcome: "Outcome", json_file: Path | None) -> None:
    """The table; exit 1 where the figures are refused or something did not hold."""
    from controlplane.bench.report import as_json, table

    if json_file is not None:
        try:
            json_file.write_text(to_json(as_json(outcome), indent=1) + "\n")
        except OSError as error:
            raise CliError(f"{json_file} cannot be written: {error.strerror}") from error
    say(table(outcome))
    if outcome.refused or outcome.failures:
        raise typer.Exit(Exit.NEGATIVE)


def _address(server: str) -> str:
    """http:// on loopback, https:// anywhere. Raises CliError."""
    parts = urlsplit(server.rstrip("/"))
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
        raise CliError(f"--server must be http://HOST:PORT or https://HOST[:PORT], not {server!r}")
    if parts.scheme == "http" and parts.hostname not in LOOPBACK:
        raise CliError(f"plain http:// to {parts.hostname} shows the join token to others", fix="use https://")
    return server.rstrip("/")


def _tokens(join_token_file: Path | None, server: str) -> dict[str, str]:
    """The API token is the one for this server, if any. Raises CliError."""
    if join_token_file is None:
        fix = "holdfast join-token create --cidr NETWORK --uses AGENTS, and put it into a file"
        raise CliError("--server needs --join-token-file", fix=fix)
    try:
        join_token = join_token_file.read_text().strip()
    except OSError as error:
        raise CliError(f"{join_token_file} cannot be read: {error.strerror}") from error
    return {"join_token": join_token, "api_token": load(server).token}


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """Either signal ends it with all that was started."""
    raise KeyboardInterrupt
