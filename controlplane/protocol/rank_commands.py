"""What a person may have one rank do, in one table: a command, its fields with their ranges, and its answer.

A command is a struct of `RankCommand`, the struct of its `ANSWER`, and its handler (`trainer.control.rank_commands`).
The API's body and its answer, the client, the command line's options, the checks at the agent and at the rank and
docs/protocol.md are made of the structs; journal, fence, expiry and audit are the same for all of them. On its way a
command is its name and its fields (`commands.CommandRank`, `CarryOut`), so that an agent hands on, and a rank of an
older release answers, what it does not know.
"""

from abc import abstractmethod
from typing import Annotated, Any, ClassVar, Literal, get_args

import msgspec
from msgspec import Meta

from controlplane.protocol.bounds import Bytes, Count, Detail, Id, Label, Scalars, Word

TTL_S = 30.0
MAX_PLACES = 10


class _Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="name"):
    """Base: what a rank has done, tagged as its command is. All of it together, as JSON, is at most a `Detail`."""

    @property
    @abstractmethod
    def sentence(self) -> str:
        """For people."""


class _RankCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="name"):
    """Base: the first line of a command's docstring is its help, a field's `description` that of its option."""

    ANSWER: ClassVar[type[_Answer]]


class GarbageCollected(_Answer, frozen=True, tag="collect_garbage"):
    """`device_bytes`: given back to the device; None where the rank has none."""

    objects: Count
    device_bytes: Bytes | None = None

    @property
    def sentence(self) -> str:
        device = "" if self.device_bytes is None else f", and {self.device_bytes} bytes of device memory"
        return f"{self.objects} unreachable objects were freed{device}"


class CollectGarbage(_RankCommand, frozen=True, tag="collect_garbage"):
    """Free unreachable Python objects, and device memory that PyTorch keeps cached."""

    ANSWER = GarbageCollected


class Place(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A line or a file of Python, and what was allocated there and is still held."""

    where: Label
    held_bytes: Bytes
    blocks: Count


class AllocationsTraced(_Answer, frozen=True, tag="trace_allocations"):
    """`places`: those that hold most, first."""

    held_bytes: Bytes
    places: Annotated[tuple[Place, ...], Meta(max_length=MAX_PLACES)]

    @property
    def sentence(self) -> str:
        most = "".join(f"; {place.where}: {place.held_bytes} bytes in {place.blocks} blocks" for place in self.places)
        return f"{self.held_bytes} bytes were allocated by Python and are still held{most}"


class TraceAllocations(_RankCommand, frozen=True, tag="trace_allocations"):
    """Report where Python allocates what it keeps. Meanwhile Python itself is several times slower."""

    ANSWER = AllocationsTraced

    duration_s: Annotated[float, Meta(ge=0.1, le=20.0, description="Seconds for which to trace.")] = 5.0
    group_by: Annotated[Literal["line", "file"], Meta(description="What is counted together.")] = "line"


RankCommand = CollectGarbage | TraceAllocations
Answer = GarbageCollected | AllocationsTraced
KIND = "command_rank"
"""What carries it to the agent, as its row has it (`commands.CommandRank`)."""
TABLE: tuple[type[RankCommand], ...] = get_args(RankCommand)
BY_NAME: dict[str, type[RankCommand]] = {str(kind.__struct_config__.tag): kind for kind in TABLE}


def apart(command: RankCommand) -> tuple[str, dict[str, Any]]:
    """Its name and its fields, as it travels."""
    fields = msgspec.to_builtins(command)
    return fields.pop("name"), fields


def read(name: str, fields: dict[str, Any]) -> RankCommand:
    """The same together again. Raises msgspec.ValidationError, also for a name that is not in the table."""
    found: RankCommand = msgspec.convert({**fields, "name": name}, RankCommand)
    return found


def answer_of(name: str, text: str) -> Answer | None:
    """What a rank has answered to the command of this name; None where it says nothing that can be read."""
    kind = BY_NAME.get(name)
    try:
        found: Answer = msgspec.json.decode(text, type=Answer)
    except msgspec.DecodeError:
        return None
    return found if kind is not None and type(found) is kind.ANSWER else None


class CarryOut(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="carry_out"):
    """Do this beside the training, once, and answer with `CarriedOut`."""

    command_id: Id
    name: Word
    fields: Scalars = {}


class CarriedOut(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="carried_out"):
    """Answer to `CarryOut`: `detail` says what was done, or, where not `ok`, why nothing was; `result`: the
    command's own answer, as JSON."""

    command_id: Id
    ok: bool
    detail: Detail = ""
    result: Detail = ""
