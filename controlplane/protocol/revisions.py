"""Server and agents of neighbouring releases understand each other.

Theory of operation. `PROTOCOL_MAX` counts revisions; within one `PROTOCOL_MIN` a revision only
adds fields that have a default, or kinds of messages. Who speaks the newer one leaves out what
the other does not know (`encode_for`), once the welcome has named the revision. Who speaks the
older one drops unknown fields of a peer that said it is newer, and counts them (`decode_known`).
Of a peer of the same revision an unknown field is an error and refused. A command is signed whole
and read strictly: an order that is not wholly understood is not carried out. So it is cut down to
what its node understands before it is signed (`known_to`), and a struct of an order that gains a
field leaves out what holds its default (`omit_defaults`). A `Proof` comes before any agreement and
every field of it is signed: one that it gains is left out, and not signed, unless the server asked for it.
An event of a new kind goes to an older server as another that does nothing there: their numbers have no gap
(`newer_event`, `agents.link.older`).

Called by `codec`, and by `dispatch` for orders. A test compares `schema()` with what is kept of
each revision, so that a field cannot be added without a new number.
"""

from collections import Counter
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from controlplane.protocol.errors import MalformedFrame
from controlplane.protocol.readings import added_in

T = TypeVar("T")

ADDED: dict[int, dict[str, tuple[str, ...]]] = {
    3: {
        "AgentHello": ("jobs",),
        "Challenge": ("bind_tls",),
        "CheckpointReport": ("kept",),
        "DeviceSample": added_in(3),
        "Proof": ("tls_certificate",),
        "RankExited": ("cause", "hint"),
        "ReplicaLaunch": ("step_reports_within_s",),
        "StopRanks": ("end_signature", "final"),
        "TimingReport": ("spread",),
        "View": ("left_out", "returning"),
    }
}
"""Fields by the revision that brought them, and by the struct that has them."""
NEW_EVENTS: dict[int, frozenset[str]] = {3: frozenset({"CheckpointsPruned", "NodeNotice", "RecomputeReport"})}
"""Kinds of events, and of reports in them, by the revision that brought them."""
NULLED: dict[int, dict[str, tuple[str, ...]]] = {
    3: {"AgentFrame": ("cpu_ratio", "rss_bytes"), "DeviceSample": ("throttle_reasons",)}
}
"""Fields that may be None since a revision; left out for an older peer where they are."""


def schema(*roots: Any) -> dict[str, list[str]]:
    """Struct name to its fields on the wire, sorted, of everything reachable from these types."""
    found: dict[str, list[str]] = {}
    for root in roots:
        _collect(_type_of(root), found)
    return dict(sorted(found.items()))


def encode_for(message: Any, revision: int) -> Any:
    """The message as plain values, without what a peer of `revision` does not know."""
    kind: Any = type(message)
    return _older(msgspec.to_builtins(message, builtin_types=(bytes,)), _type_of(kind), revision)


def newer_event(body: Any, revision: int) -> str:
    """What kind of this event, or of the report in it, a peer of `revision` does not know; "" if it knows both."""
    kinds = [type(part).__name__ for part in (body, getattr(body, "report", None))]
    newer = {name for since, names in NEW_EVENTS.items() if since > revision for name in names}
    return next((name for name in kinds if name in newer), "")


def known_to(message: T, revision: int) -> T:
    """The message with every field at its default that a peer of `revision` does not know. Raises
    MalformedFrame for a value that no message may have."""
    try:
        return msgspec.convert(encode_for(message, revision), type(message))
    except msgspec.ValidationError as error:
        raise MalformedFrame(f"{type(message).__name__}: {error}") from error


def decode_known(data: bytes, root: Any) -> tuple[Any, Counter[str]]:
    """A message of a newer peer, and how often each field unknown here came ("Struct.field").
    Raises as msgspec does for whatever else is wrong."""
    dropped: Counter[str] = Counter()
    known = _known(msgspec.msgpack.decode(data), _type_of(root), dropped)
    return msgspec.convert(known, root), dropped


@cache
def _type_of(root: Any) -> inspect.Type:
    return inspect.type_info(root)


def _collect(kind: inspect.Type, found: dict[str, list[str]]) -> None:
    match kind:
        case inspect.StructType():
            name = kind.cls.__name__
            if name not in found:
                found[name] = sorted(field.encode_name for field in kind.fields)
                for field in kind.fields:
                    _collect(field.type, found)
        case inspect.UnionType(types=types):
            for one in types:
                _collect(one, found)
        case inspect.VarTupleType(item_type=item) | inspect.ListType(item_type=item):
            _collect(item, found)
        case inspect.DictType(value_type=value):
            _collect(value, found)
        case _:
            return


def _older(value: Any, kind: inspect.Type, revision: int) -> Any:
    match kind:
        case inspect.StructType() if isinstance(value, dict):
            name, fields = kind.cls.__name__, {field.encode_name: field.type for field in kind.fields}
            unknown = {field for since, added in ADDED.items() if since > revision for field in added.get(name, ())}
            nulled = {field for since, by in NULLED.items() if since > revision for field in by.get(name, ())}
            return {
                key: _older(part, fields[key], revision) if key in fields else part
                for key, part in value.items()
                if key not in unknown and not (part is None and key in nulled)
            }
        case inspect.UnionType():
            chosen = _member(value, kind)
            return value if chosen is None else _older(value, chosen, revision)
        case inspect.VarTupleType(item_type=item) | inspect.ListType(item_type=item) if isinstance(value, list | tuple):
            return [_older(part, item, revision) for part in value]
        case _:
            return value


def _known(value: Any, kind: inspect.Type, dropped: Counter[str]) -> Any:
    match kind:
        case inspect.StructType() if isinstance(value, dict):
            fields = {field.encode_name: field.type for field in kind.fields}
            known = {}
            for key, part in value.items():
                if key in fields:
                    known[key] = _known(part, fields[key], dropped)
                elif key == kind.tag_field:
                    known[key] = part
                else:
                    dropped[f"{kind.cls.__name__}.{key}"[:80]] += 1
            return known
        case inspect.UnionType():
            chosen = _member(value, kind)
            return value if chosen is None else _known(value, chosen, dropped)
        case inspect.VarTupleType(item_type=item) | inspect.ListType(item_type=item) if isinstance(value, list):
            return [_known(part, item, dropped) for part in value]
        case _:
            return value


def _member(value: Any, kind: inspect.UnionType) -> inspect.Type | None:
    """The type of a union that this value is of; None: one without fields, or none of them."""
    if isinstance(value, list | tuple):
        return next((one for one in kind.types if isinstance(one, inspect.VarTupleType | inspect.ListType)), None)
    if not isinstance(value, dict):
        return None
    for one in kind.types:
        if isinstance(one, inspect.StructType) and (one.tag_field is None or value.get(one.tag_field) == one.tag):
            return one
    return None
