"""holdfast rank NAME ...: a command for each row of `protocol.rank_commands`, with an option for each of its fields."""

import inspect
import time
from collections.abc import Callable
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
import typer

from controlplane.cli import context
from controlplane.cli.commands.job import Job
from controlplane.cli.context import BY_HAND, Output, Reason
from controlplane.cli.exits import CliError, Exit
from controlplane.cli.output import Format, emit_object, say
from controlplane.protocol.rank_commands import RankCommand

POLL_S = 0.2
ENDED = ("succeeded", "failed", "expired", "superseded")
WHICH, WHY = ("job", "replica", "rank"), ("wait", "output", "reason")

Replica = Annotated[int, typer.Argument(metavar="REPLICA", help="Replica slot.", min=0)]
Rank = Annotated[int, typer.Argument(metavar="RANK", help="Rank inside the replica.", min=0)]


def giver(kind: type[RankCommand]) -> Callable[..., None]:
    """What the command of this kind does."""

    def give(
        *,
        job: Job,
        replica: Replica,
        rank: Rank,
        wait: Annotated[float, typer.Option(help="Seconds to wait for the answer.", min=0.1)] = 30.0,
        output: Output = Format.TABLE,
        reason: Reason = BY_HAND,
        **fields: Any,
    ) -> None:
        with context.client() as client:
            given = client.jobs.command_rank(job, replica, rank, kind(**fields), reason)
            row = _carried_out(client, job, given.command_ids[0], wait)
        if output in (Format.TABLE, Format.WIDE):
            say(row.detail)
        else:
            emit_object(context.plain(row), (), output, context.screen(), name="id")

    signature = inspect.signature(give)
    which = [signature.parameters[name] for name in WHICH]
    why = [signature.parameters[name] for name in WHY]
    taken = [*which, *_options(kind), *why]
    give.__signature__ = signature.replace(parameters=taken)  # type: ignore[attr-defined]
    give.__annotations__ = {each.name: each.annotation for each in taken}
    give.__doc__ = inspect.cleandoc(kind.__doc__ or "").partition("\n")[0]
    return give


def _options(kind: type[RankCommand]) -> list[inspect.Parameter]:
    """One for each field; a field without a default must be given. Raises TypeError where two have one name."""
    hints = get_type_hints(kind, include_extras=True)
    found = []
    for field in msgspec.structs.fields(kind):
        if field.name in (*WHICH, *WHY):
            raise TypeError(f"{kind.__name__}.{field.name}: every command has an option of that name")
        default = inspect.Parameter.empty if field.required else field.default
        annotation = _option(f"{kind.__name__}.{field.name}", hints[field.name])
        keyword = inspect.Parameter.KEYWORD_ONLY
        found.append(inspect.Parameter(field.name, keyword, default=default, annotation=annotation))
    return found


def _option(name: str, hint: Any) -> Any:
    """Type, range and words of a field as an option's. Raises TypeError for a type that no option has."""
    inner, *limits = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    words = next((limit.description for limit in limits if limit.description), "")
    low = next((limit.ge for limit in limits if limit.ge is not None), None)
    high = next((limit.le for limit in limits if limit.le is not None), None)
    if inner in (int, float):
        return Annotated[inner, typer.Option(help=words, min=low, max=high)]
    if inner in (bool, str) or get_origin(inner) is Literal:
        return Annotated[inner, typer.Option(help=words)]
    raise TypeError(f"{name} is a {inner}: give it a number, a text, a bool or a Literal of texts")


def _carried_out(client: Any, job: str, command_id: str, wait_s: float) -> Any:
    """The command's row, once the rank has answered. Raises CliError when it failed or time runs out."""
    until_s = time.monotonic() + wait_s
    while time.monotonic() < until_s:
        row = next((c for c in client.jobs.commands(job) if c.id == command_id), None)
        if row is not None and row.state == ENDED[0]:
            return row
        if row is not None and row.state in ENDED[1:]:
            raise CliError(f"the rank did not do it: {row.detail or row.state}", code=Exit.CONFLICT)
        time.sleep(POLL_S)
    fix = f"is its node connected? The answer may still come: holdfast job events {job}"
    raise CliError(f"no answer within {wait_s:g} s", fix=fix, code=Exit.TIMEOUT)
