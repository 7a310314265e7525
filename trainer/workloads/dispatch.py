"""Who gets which part of a call, and whose answers count: the dispatch registry. Pure.

A call is a msgspec struct. Its class says by which kind it is dispatched
(`dispatch: ClassVar[str]`), so that no caller can choose another one after a recovery and
train one batch in every replica. Two kinds are there from the start:

mesh          the call's `batch` is cut into one chunk for each replica, in order; every rank
              of a replica gets the same chunk; the answers of tp 0 on the last pipeline
              stage are joined in the order of the replicas
pass_through  every rank gets the whole call; every rank's answer is kept, by rank

`register_dispatch_type` adds more. What a kind's functions return is checked each time.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import msgspec

from trainer.workloads.errors import InvalidArguments, UnknownDispatchType
from trainer.workloads.mesh import Mesh

MESH = "mesh"
PASS_THROUGH = "pass_through"  # noqa: S105


class Columns(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of every batch: each field is a sequence with one entry for each sample."""


class Call(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of every call to the ranks."""

    dispatch: ClassVar[str] = PASS_THROUGH


class Reply(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of every answer of a rank."""


Dispatch = Callable[[Mesh, Any], Sequence[Any]]
"""(mesh, call) -> the call of each rank, by rank."""
Collect = Callable[[Mesh, Sequence[Any]], Any]
"""(mesh, replies by rank) -> the answer."""
BatchT = TypeVar("BatchT", bound=Columns)


@dataclass(frozen=True, slots=True)
class DispatchType:
    """One kind of dispatch."""

    name: str
    dispatch: Dispatch
    collect: Collect


class DispatchRegistry:
    """The kinds a controller knows."""

    def __init__(self) -> None:
        self._types: dict[str, DispatchType] = {}
        self.register(MESH, dispatch_mesh, collect_mesh)
        self.register(PASS_THROUGH, dispatch_to_all, collect_from_all)

    def register(self, name: str, dispatch: Dispatch, collect: Collect) -> None:
        """Add a kind. Raises InvalidArguments on a bad or taken name and on what cannot be called."""
        faults = [
            (not (isinstance(name, str) and name.isidentifier()), f"name {name!r} is not an identifier"),
            (name in self._types, f"{name!r} is registered already; choose another name"),
            (not callable(dispatch), "dispatch is not callable; give a function (mesh, call) -> calls by rank"),
            (not callable(collect), "collect is not callable; give a function (mesh, replies by rank) -> answer"),
        ]
        found = [text for wrong, text in faults if wrong]
        if found:
            raise InvalidArguments(f"dispatch type: {'; '.join(found)}")
        self._types[name] = DispatchType(name, dispatch, collect)

    def names(self) -> tuple[str, ...]:
        """Sorted."""
        return tuple(sorted(self._types))

    def get(self, name: str) -> DispatchType:
        """Raises UnknownDispatchType."""
        found = self._types.get(name)
        if found is None:
            raise UnknownDispatchType(
                f"no dispatch type {name!r}; there are {', '.join(self.names())}; "
                "add your own with register_dispatch_type"
            )
        return found

    def dispatch(self, mesh: Mesh, call: Call) -> tuple[Call, ...]:
        """The call of each rank, by rank. Raises InvalidArguments, UnknownDispatchType."""
        kind = self.get(type(call).dispatch)
        parts = tuple(kind.dispatch(mesh, call))
        if len(parts) != mesh.size:
            raise InvalidArguments(f"{_title(call, kind.name)}: it made {len(parts)} calls for {mesh.size} ranks")
        strangers = {type(part).__name__ for part in parts if type(part) is not type(call)}
        if strangers:
            raise InvalidArguments(f"{_title(call, kind.name)}: it made {', '.join(sorted(strangers))} of it")
        return parts

    def collect(self, mesh: Mesh, call: Call, replies: Sequence[Reply]) -> Any:
        """The answer to `call` out of the replies by rank. Raises InvalidArguments."""
        kind = self.get(type(call).dispatch)
        if len(replies) != mesh.size:
            raise InvalidArguments(f"{_title(call, kind.name)}: {len(replies)} replies of {mesh.size} ranks")
        return kind.collect(mesh, replies)


def dispatch_mesh(mesh: Mesh, call: Any) -> tuple[Any, ...]:
    """One chunk of `call.batch` for each replica. Raises InvalidArguments."""
    chunks = split(_batch_of(call), mesh.dp, what=_title(call, MESH))
    return tuple(msgspec.structs.replace(call, batch=chunks[place.dp]) for place in mesh.ranks())


def collect_mesh(mesh: Mesh, replies: Sequence[Any]) -> Any:
    """The speakers' replies as one, their batches joined. Raises InvalidArguments."""
    spoken = [replies[rank] for rank in mesh.speakers()]
    return msgspec.structs.replace(spoken[0], batch=join([_batch_of(reply) for reply in spoken]))


def dispatch_to_all(mesh: Mesh, call: Any) -> tuple[Any, ...]:
    """The same call for every rank."""
    return (call,) * mesh.size


def collect_from_all(mesh: Mesh, replies: Sequence[Any]) -> tuple[Any, ...]:
    """Every reply, by rank."""
    return tuple(replies)


def samples(batch: Columns, *, what: str = "batch") -> int:
    """How many samples a batch holds. Raises InvalidArguments with every fault at once."""
    columns = {name: getattr(batch, name) for name in batch.__struct_fields__}
    faults = [
        f"{name} is {type(column).__name__}, not a list or tuple"
        for name, column in columns.items()
        if not isinstance(column, list | tuple)
    ]
    if not columns:
        faults.append(f"{type(batch).__name__} has no fields")
    lengths = {name: len(column) for name, column in columns.items() if isinstance(column, list | tuple)}
    if len(set(lengths.values())) > 1:
        faults.append("fields differ in length: " + ", ".join(f"{name} {size}" for name, size in lengths.items()))
    elif 0 in lengths.values():
        faults.append("there are no samples")
    if faults:
        raise InvalidArguments(f"{what}: {'; '.join(faults)}")
    return next(iter(lengths.values()))


def split(batch: BatchT, parts: int, *, what: str = "batch") -> tuple[BatchT, ...]:
    """Equal chunks in order. Raises InvalidArguments when they cannot be equal."""
    count = samples(batch, what=what)
    if count % parts:
        below = count - count % parts
        fitting = f"send {below} or {below + parts}" if below else f"send {parts}"
        raise InvalidArguments(f"{what}: {count} samples do not divide by {parts} replicas; {fitting}")
    size = count // parts
    return tuple(
        type(batch)(**{name: getattr(batch, name)[part * size : (part + 1) * size] for name in batch.__struct_fields__})
        for part in range(parts)
    )


def join(parts: Sequence[BatchT]) -> BatchT:
    """The inverse of `split`. Raises InvalidArguments for unlike parts."""
    kinds = {type(part).__name__ for part in parts}
    if len(kinds) != 1:
        raise InvalidArguments(f"cannot join {', '.join(sorted(kinds)) or 'nothing'} into one batch")
    first = parts[0]
    return type(first)(
        **{name: [entry for part in parts for entry in getattr(part, name)] for name in first.__struct_fields__}
    )


def columns_from(kind: type[BatchT], fields: Mapping[str, Any]) -> BatchT:
    """A batch out of named columns, as they come from other code. Raises InvalidArguments
    that names every field which is missing or not known."""
    wanted = set(kind.__struct_fields__)
    faults = [f"field {name!r} is missing" for name in sorted(wanted - set(fields))]
    faults += [f"field {name!r} is not known" for name in sorted(set(fields) - wanted)]
    if faults:
        raise InvalidArguments(f"{kind.__name__}: {'; '.join(faults)}")
    try:
        return msgspec.convert(dict(fields), kind)
    except msgspec.ValidationError as error:
        raise InvalidArguments(f"{kind.__name__}: {error}") from error


def _batch_of(message: Any) -> Columns:
    batch = getattr(message, "batch", None)
    if not isinstance(batch, Columns):
        raise InvalidArguments(
            f"{type(message).__name__} has no field `batch` of Columns, which dispatch type {MESH!r} cuts and joins; "
            f"add one or use {PASS_THROUGH!r}"
        )
    return batch


def _title(call: Any, kind: str) -> str:
    return f"{type(call).__name__} by {kind!r}"


DISPATCH_TYPES = DispatchRegistry()
"""The kinds of this process."""


def register_dispatch_type(name: str, dispatch: Dispatch, collect: Collect) -> None:
    """Add a kind to `DISPATCH_TYPES`. Raises InvalidArguments."""
    DISPATCH_TYPES.register(name, dispatch, collect)
