"""Flight Recorder dumps, small and repaired: what a rank last asked of its groups.

PyTorch records every collective of a rank, on gloo too, but gloo's dump has lost the
groups (`pg_config` holds one nameless entry) and never moves an entry's state on. The
trainer writes down its groups itself; `repair` puts them back and drops groups nobody named
(the outer ones, each built for one epoch). "Retired" only says that nobody watches an
operation any more: on gloo it ended, well or badly; on NCCL, where it is not completed, it
was given up (a timeout).
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from controlplane.protocol.bounds import (
    MAX_GROUPS,
    MAX_OPERATIONS,
    Count,
    Index,
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


class FlightGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A process group: its name, what it is for, and its ranks inside the replica."""

    name: Line
    desc: Line
    ranks: Replicas


class FlightEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """One operation of one rank. `number` counts a group's collectives from 1 (its
    point-to-point operations apart, `p2p`; the operations of one coalesced call share it);
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


class FlightDump(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The newest operations of one rank (index inside its replica), oldest first; `backends`
    that recorded them."""

    rank: Index
    groups: Annotated[tuple[FlightGroup, ...], Meta(max_length=MAX_GROUPS)]
    entries: Annotated[tuple[FlightEntry, ...], Meta(max_length=MAX_OPERATIONS)]
    backends: Names = ()


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
    return FlightDump(rank, known, tuple(_entry(entry) for entry in kept), backends)


def encode_dump(dump: FlightDump, max_chars: int) -> str:
    """JSON of at most `max_chars`: the oldest entries make room."""
    entries = dump.entries
    while True:
        text = _json(msgspec.structs.replace(dump, entries=entries)).decode()
        if len(text) <= max_chars or not entries:
            return text if len(text) <= max_chars else ""
        entries = entries[(len(entries) + 1) // 2 :] if len(text) > 2 * max_chars else entries[len(entries) // 8 + 1 :]


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
    return FlightEntry(
        group=raw.process_group[0],
        number=raw.p2p_seq_id if raw.is_p2p else raw.collective_seq_id,
        operation=raw.profiling_name.partition(":")[2] or raw.profiling_name,
        input_sizes=raw.input_sizes,
        output_sizes=raw.output_sizes,
        input_dtypes=raw.input_dtypes,
        output_dtypes=raw.output_dtypes,
        state=ENDED if ended else raw.state,
        p2p=raw.is_p2p,
        given_up=unwatched and not ended,
    )
