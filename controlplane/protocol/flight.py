"""Flight Recorder dumps, small and repaired: what a rank last asked of its groups.

PyTorch records every collective of a rank, on gloo too, but gloo's dump has lost the
groups (`pg_config` holds one nameless entry) and never moves an entry's state on. The
trainer writes down its groups itself; `repair` puts them back and drops groups nobody named
(the outer ones, each built for one epoch). "Retired" only says that nobody watches an
operation any more: on gloo it ended, well or badly; on NCCL, where it is not completed, it
was given up (a timeout). Where a rank has no tensor (the outputs of a gather that it is not
the root of), NCCL records one of no type, and what a scatter takes in as what comes out.
"""

from collections import Counter
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from controlplane.protocol.bounds import (
    MAX_GROUPS,
    MAX_OPERATIONS,
    Count,
    Index,
    Label,
    Line,
    Names,
    Replicas,
    Shapes,
    Word,
    quoted,
)
from controlplane.protocol.errors import MalformedFrame

COMPLETED, STARTED, SCHEDULED, ENDED = "completed", "started", "scheduled", "ended"
"""`ENDED`: over, and whether well or badly was not recorded (gloo)."""
STATELESS = frozenset({"gloo"})
"""Backends whose entries stay at "scheduled" for ever and record no point-to-point operation."""
NO_TENSOR = frozenset({"UNKNOWN_SCALAR", "Undefined"})
"""The type of a tensor that is not there."""
SPARED_OF_A_GROUP = 4
"""The newest calls of a group stay where another group's many calls fill the text."""


_CallKey = tuple[str, str, bool, int]


class FlightGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A process group: its name, what it is for, and its ranks inside the replica."""

    name: Line
    desc: Line
    ranks: Replicas


class FlightEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """One operation of one rank. `number` counts a group's collectives on one `backend` from 1
    (its point-to-point operations apart, `p2p`; the operations of one coalesced call share it);
    sizes are shapes in elements; `state`: scheduled, started, completed or ended; `given_up`:
    no longer watched though it never completed."""

    group: Line
    number: Count
    operation: Line
    input_sizes: Shapes
    output_sizes: Shapes
    input_dtypes: Names
    output_dtypes: Names
    state: Word
    p2p: bool = False
    given_up: bool = False
    backend: Label = ""


class FlightDump(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The newest operations of one rank (index inside its replica), oldest first; `backends`
    that recorded them; `forgotten`: there were older ones."""

    rank: Index
    groups: Annotated[tuple[FlightGroup, ...], Meta(max_length=MAX_GROUPS)]
    entries: Annotated[tuple[FlightEntry, ...], Meta(max_length=MAX_OPERATIONS)]
    backends: Names = ()
    forgotten: bool = False


class _Raw(msgspec.Struct, frozen=True):
    """An entry as torch writes it (version 2.10); fields not named here are ignored."""

    process_group: tuple[Line, Line]
    collective_seq_id: Count
    p2p_seq_id: Count
    profiling_name: Line
    state: Word
    retired: bool
    is_p2p: bool
    input_sizes: Shapes = ()
    output_sizes: Shapes = ()
    input_dtypes: Names = ()
    output_dtypes: Names = ()
    record_id: Count = 0


class _RawDump(msgspec.Struct, frozen=True):
    entries: tuple[_Raw, ...]
    pg_config: dict[str, Any] = {}


_raw = msgspec.json.Decoder(_RawDump)
_groups = msgspec.json.Decoder(tuple[FlightGroup, ...])
_dump = msgspec.json.Decoder(FlightDump)
_json = msgspec.json.Encoder().encode


def repair(dump: bytes, rank: int, groups: bytes) -> FlightDump:
    """Torch's JSON and the trainer's groups (a JSON list of FlightGroup; empty when it has
    not written any) as one. Raises MalformedFrame."""
    try:
        raw = _raw.decode(dump)
        known = _groups.decode(groups) if groups else ()
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise MalformedFrame(f"Flight Recorder of rank {rank}: {quoted(error)}") from error
    names = {group.name for group in known}
    kept = [entry for entry in raw.entries if entry.process_group[0] in names]
    backends = tuple(sorted({_backend(entry) for entry in kept} - {""}))
    forgotten = bool(raw.entries) and raw.entries[0].record_id > 0
    return FlightDump(rank, known, tuple(_entry(entry) for entry in kept), backends, forgotten)


def encode_dump(dump: FlightDump, max_chars: int) -> str:
    """JSON of at most `max_chars`: the oldest calls make room, the newest of each group last."""
    ranked = _oldest_first(dump.entries)
    while True:
        kept = set(ranked)
        entries = tuple(entry for entry in dump.entries if _call_of(entry) in kept)
        forgotten = dump.forgotten or len(entries) < len(dump.entries)
        text = _json(msgspec.structs.replace(dump, entries=entries, forgotten=forgotten)).decode()
        if len(text) <= max_chars or not ranked:
            return text if len(text) <= max_chars else ""
        ranked = ranked[(len(ranked) + 1) // 2 :] if len(text) > 2 * max_chars else ranked[len(ranked) // 8 + 1 :]


def _oldest_first(entries: tuple[FlightEntry, ...]) -> list[_CallKey]:
    """Calls in the order in which they are dropped; one is kept or dropped with all its operations."""
    newest = list(dict.fromkeys(_call_of(entry) for entry in reversed(entries)))
    seen: Counter[tuple[str, str, bool]] = Counter()
    spared: list[_CallKey] = []
    ranked: list[_CallKey] = []
    for call in newest:
        seen[call[:3]] += 1
        (spared if seen[call[:3]] <= SPARED_OF_A_GROUP else ranked).append(call)
    return [*reversed(ranked), *reversed(spared)]


def _call_of(entry: FlightEntry) -> _CallKey:
    return entry.group, entry.backend, entry.p2p, entry.number


def decode_dump(text: str) -> FlightDump:
    """The reverse, on a text from a node. Raises MalformedFrame."""
    try:
        return _dump.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise MalformedFrame(f"Flight Recorder: {quoted(error)}") from error


def _backend(raw: _Raw) -> str:
    backend, colon, _ = raw.profiling_name.partition(":")
    return backend if colon else ""


def _entry(raw: _Raw) -> FlightEntry:
    unwatched = raw.retired and raw.state != COMPLETED
    ended = unwatched and _backend(raw) in STATELESS
    operation = raw.profiling_name.partition(":")[2] or raw.profiling_name
    given, made = _tensors(raw.input_sizes, raw.input_dtypes), _tensors(raw.output_sizes, raw.output_dtypes)
    if operation == "scatter" and len(given[0]) == 1 != len(made[0]):
        given, made = made, given
    return FlightEntry(
        group=raw.process_group[0],
        number=raw.p2p_seq_id if raw.is_p2p else raw.collective_seq_id,
        operation=operation,
        input_sizes=given[0],
        output_sizes=made[0],
        input_dtypes=given[1],
        output_dtypes=made[1],
        state=ENDED if ended else raw.state,
        p2p=raw.is_p2p,
        given_up=unwatched and not ended,
        backend=_backend(raw),
    )


def _tensors(sizes: Shapes, types: Names) -> tuple[Shapes, Names]:
    """Without those that are not there."""
    if not NO_TENSOR & set(types) or len(sizes) != len(types):
        return sizes, types
    there = [(size, kind) for size, kind in zip(sizes, types, strict=True) if kind not in NO_TENSOR]
    return tuple(size for size, _ in there), tuple(kind for _, kind in there)
