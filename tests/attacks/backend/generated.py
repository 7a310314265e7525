"""Messages made from the protocol's own types, with the worst values that each field can carry.

Built without the decoder, so ranges that it checks do not soften them: what is made here is
what a fault of ours, or a door that forgets a check, would let in.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from hypothesis import strategies as st

INTS = st.sampled_from([-(2**63), -(2**31) - 1, -1, 0, 1, 2**31, 2**53, 2**63 - 1, 2**63, 2**64 - 1]) | st.integers(
    0, 9
)
TEXTS = st.sampled_from(
    ["", "\x00", "a\x00b", "../../etc", "<script>", "\x1b[31m", "\u202e", "x" * 5_000, "\U0001f4a9"]
) | st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
FLOATS = st.floats() | st.sampled_from([1e308, -1.0, 1e-320])
LONGEST = 4


def of_type(kind: Any, known: Mapping[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    """Values of a protocol type. `known`: strategies by type or field name that come first, so
    that some messages speak of things that exist."""
    return _of(msgspec.inspect.type_info(kind), known)


def _of(info: msgspec.inspect.Type, known: Mapping[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    i = msgspec.inspect
    simple: dict[type, st.SearchStrategy[Any]] = {
        i.IntType: INTS, i.FloatType: FLOATS, i.StrType: TEXTS, i.BoolType: st.booleans(), i.NoneType: st.none(),
    }  # fmt: skip
    if type(info) in simple:
        return simple[type(info)]
    match info:
        case i.StructType() | i.NamedTupleType() | i.DataclassType():
            return _object(info, known)
        case i.UnionType():
            return st.one_of([_of(part, known) for part in info.types])
        case i.VarTupleType() | i.ListType():
            return st.lists(_of(info.item_type, known), max_size=LONGEST).map(tuple)
        case i.TupleType():
            return st.tuples(*(_of(part, known) for part in info.item_types))
        case i.EnumType():
            return st.sampled_from(list(info.cls))
        case i.LiteralType():
            return st.sampled_from(list(info.values))
        case i.DictType():
            return st.dictionaries(_of(info.key_type, known), _of(info.value_type, known), max_size=LONGEST)
    raise AssertionError(f"no strategy for {info}")


def _object(info: Any, known: Mapping[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    fields = {}
    for field in info.fields:
        made = _of(field.type, known)
        fields[field.name] = known[field.name] | made if field.name in known else made
    made = st.builds(info.cls, **fields)
    return known[info.cls.__name__] | made if info.cls.__name__ in known else made
