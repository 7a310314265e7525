"""What a command has at hand: the client, the screen, and the flags given before it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from controlplane.cli.config import Config, load
from controlplane.cli.output import SERVER, Format, Screen, note

if TYPE_CHECKING:
    from controlplane.sdk import Client

Output = Annotated[Format, typer.Option("--output", "-o", help="table, wide, json, yaml, name or jsonl.")]
Reason = Annotated[str, typer.Option("--reason", "-r", help="Why; kept in the audit log.")]
BY_HAND = "by hand, from the command line"


@dataclass(slots=True)
class State:
    """Flags of the program itself, set once before the command runs."""

    url: str = ""
    debug: bool = False
    quiet: bool = False
    no_color: bool = False
    timeout_s: float = 10.0


STATE = State()


def config() -> Config:
    """By precedence."""
    return load(STATE.url)


@contextmanager
def client() -> Iterator["Client"]:
    """A client for the configured server. Imported late: httpx takes 0.2 s to load."""
    import stamina

    from controlplane.sdk import Client

    # stamina tells of retries through whatever logger it finds, some of which write to stdout.
    stamina.instrumentation.set_on_retry_hooks([])
    settings = config()
    with Client(settings.url, token=settings.token, timeout_s=STATE.timeout_s, on_date=SERVER.note) as opened:
        yield opened


def screen() -> Screen:
    """stdout."""
    import sys

    return Screen.of(sys.stdout, no_color=STATE.no_color)


def plain(answer: Any) -> Any:
    """A typed answer as dicts and lists."""
    import msgspec

    return msgspec.to_builtins(answer)


def hint(*lines: str) -> None:
    """Progress and next commands, unless --quiet."""
    if not STATE.quiet:
        for line in lines:
            note(line)


def next_commands(*commands: str) -> None:
    """What one would usually do now."""
    hint("Next:", *(f"  {command}" for command in commands))
