"""What a person may have one rank do (`commands.CommandRank`), in one table.

A command is a row here and its handler in the rank (`trainer.control.rank_commands`). The API, the command line, its
checks and the agent ask the table; journal, fence, expiry and audit are the same for all of them.
"""

from dataclasses import dataclass

import msgspec

from controlplane.protocol.bounds import Detail, Id, Number, Word

TTL_S = 30.0
MAX_VALUE = 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCommand:
    """`what`: in words; `value`: what its number means, with the unit, "" where it takes none."""

    name: str
    what: str
    value: str = ""


TABLE = (
    RankCommand(
        name="collect_garbage", what="free unreachable Python objects, and device memory that PyTorch keeps cached"
    ),
)
BY_NAME = {command.name: command for command in TABLE}


def named() -> str:
    """All of them, for people."""
    return ", ".join(BY_NAME)


class CarryOut(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="carry_out"):
    """Do this beside the training, once, and answer with `CarriedOut`."""

    command_id: Id
    name: Word
    value: Number = 0.0


class CarriedOut(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="carried_out"):
    """Answer to `CarryOut`: `detail` says what was done, or, where not `ok`, why nothing was."""

    command_id: Id
    ok: bool
    detail: Detail = ""
