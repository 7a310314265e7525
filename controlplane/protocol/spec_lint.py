"""An untrusted document to a `JobSpec`, or to all its faults at once.

The walk follows the types of `protocol.spec`, never the document, so its depth and
its work are bounded by the schema whatever arrives. Each fault carries a JSON
Pointer (RFC 6901) and a way to mend it. A faulty field is replaced by its default
for the checks that span fields; those that read it are skipped.

Called by the REST edge on submit and by `holdfast job validate` offline. It never
raises on a document, however odd; `spec_text` makes documents out of bytes.
"""

import difflib
import math
from typing import Any

import msgspec
from msgspec import inspect

from controlplane.protocol.effect_checks import without_effect
from controlplane.protocol.presets import expand
from controlplane.protocol.spec import JobSpec
from controlplane.protocol.spec_checks import CHECKS
from controlplane.protocol.spec_fault import Fault, Ground, plain_number
from controlplane.protocol.spec_limits import (
    FLOAT_LIMIT,
    INT_LIMIT,
    KEY_PATTERNS,
    MAX_ARGUMENTS,
    MAX_ENTRIES,
    MAX_FAULTS,
    MAX_TEXT,
    PATTERNS,
    RANGES,
)

_ROOT = inspect.type_info(JobSpec)
_MISSING = object()
# Stand-ins that let the other fields be checked when a required one is absent.
_STAND_INS: dict[str, Any] = {
    "/metadata/name": "unnamed",
    "/spec/resources/nodes": 1,
    "/spec/resources/gpus_per_node": 1,
}
_MAX_UNKNOWN_KEYS = 20
# Stands for a word of an argv that is no text: an option, for those who look for the program.
_UNREAD = "-"


class LintResult(msgspec.Struct, frozen=True):
    """`spec` is None exactly when there are faults. `defaults`: pointers of the fields
    the user left out, in document order."""

    spec: JobSpec | None
    faults: tuple[Fault, ...]
    defaults: tuple[str, ...]


class _Walk:
    """One pass over one document: collects faults and defaults, repairs as it goes."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        self.untold = 0
        self.defaults: list[str] = []
        # Entries of mappings and lists that were left out: the rest can still be checked.
        self.left_out: set[str] = set()

    def fault(self, pointer: str, message: str, fix: str) -> object:
        """Record, up to the limit, and answer "no usable value"."""
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(Fault(pointer, message, fix))
        else:
            self.untold += 1
        return _MISSING

    def value(self, kind: inspect.Type, value: object, pointer: str) -> object:
        """The value as builtins of the type, or `_MISSING` after a fault."""
        match kind:
            case inspect.StructType():
                return self.struct(kind, value, pointer)
            case inspect.DictType():
                return self.mapping(value, pointer)
            case inspect.ListType():
                return self.listing(value, pointer)
            case inspect.UnionType():
                return self.union(kind, value, pointer)
            case inspect.LiteralType() | inspect.EnumType():
                return self.choice(_choices(kind), value, pointer)
            case inspect.BoolType():
                if isinstance(value, bool):
                    return value
                return self.fault(pointer, f"{_show(value)} is no boolean", "write true or false")
            case inspect.IntType() | inspect.FloatType():
                return self.number(isinstance(kind, inspect.IntType), value, pointer)
            case inspect.StrType():
                return self.text(value, pointer)
            case inspect.NoneType():
                return None if value is None else self.fault(pointer, f"{_show(value)} is not null", "leave it out")
            case _:
                raise AssertionError(f"the spec has a type the linter does not know: {kind}")

    def struct(self, kind: inspect.StructType, value: object, pointer: str) -> dict[str, Any]:
        """Every field of the section, faulty ones replaced; unknown keys are faults."""
        if value is _MISSING:
            value = {}
        elif not isinstance(value, dict):
            self.fault(pointer, f"{_show(value)} is no mapping", "write `key: value` lines below it")
            value = {}
        names = [field.encode_name for field in kind.fields]
        self.unknown([key for key in value if key not in names], names, pointer)
        section: dict[str, Any] = {}
        for field in kind.fields:
            here = f"{pointer}/{field.encode_name}"
            given = value.get(field.encode_name, _MISSING)
            if isinstance(field.type, inspect.StructType):
                section[field.encode_name] = self.struct(field.type, given, here)
                continue
            answer = _MISSING
            if given is not _MISSING:
                answer = self.value(field.type, given, here)
            elif field.required:
                self.fault(here, "missing", f"add {field.encode_name}")
            else:
                self.defaults.append(here)
            section[field.encode_name] = _default(field, here) if answer is _MISSING else answer
        return section

    def unknown(self, keys: list[object], names: list[str], pointer: str) -> None:
        """Faults for keys the section does not have, with the nearest it has."""
        for key in keys[:_MAX_UNKNOWN_KEYS]:
            shown = key[:64] if isinstance(key, str) else _show(key)
            near = difflib.get_close_matches(shown, names, n=1)
            fix = f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(names)}"
            self.fault(f"{pointer}/{escape(shown)}", f"unknown field {shown!r}", fix)
        if len(keys) > _MAX_UNKNOWN_KEYS:
            more = len(keys) - _MAX_UNKNOWN_KEYS
            self.fault(pointer, f"{more} more unknown fields", f"known here: {', '.join(names)}")

    def union(self, kind: inspect.UnionType, value: object, pointer: str) -> object:
        """The first member that fits by type; a word list (Literal) is tried for text."""
        if value is None and any(isinstance(member, inspect.NoneType) for member in kind.types):
            return None
        words: tuple[object, ...] = ()
        others = []
        for member in kind.types:
            if isinstance(member, inspect.LiteralType):
                words = (*words, *member.values)
            elif not isinstance(member, inspect.NoneType):
                others.append(member)
        if words and isinstance(value, str):
            return self.choice(words, value, pointer, or_number=True)
        assert len(others) == 1, "a union in the spec is one type, words and null"
        return self.value(others[0], value, pointer)

    def choice(self, words: tuple[object, ...], value: object, pointer: str, or_number: bool = False) -> object:
        """One of a closed set of words."""
        if isinstance(value, str) and value in words:
            return value
        listed = ", ".join(repr(word) for word in words) + (" or a number" if or_number else "")
        return self.fault(pointer, f"{_show(value)} is not allowed", f"use {listed}")

    def number(self, whole: bool, value: object, pointer: str) -> object:
        """An int (`whole`) or a finite float inside the field's range."""
        low, high = RANGES.get(pointer, (-FLOAT_LIMIT, FLOAT_LIMIT))
        kind = "a whole number" if whole else "a number"
        fix = f"write {kind} from {plain_number(low)} to {plain_number(high)}"
        if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
            return self.fault(pointer, f"{_show(value)} is not {kind}", fix)
        if abs(value) > INT_LIMIT or not math.isfinite(value) or not low <= value <= high:
            return self.fault(pointer, f"{_show(value)} is out of range", fix)
        return value if whole else float(value)

    def text(self, value: object, pointer: str) -> object:
        """Printable text of bounded length that fits the field's pattern."""
        if not isinstance(value, str):
            return self.fault(pointer, f"{_show(value)} is not text", "put it in quotes")
        if len(value) > MAX_TEXT:
            return self.fault(pointer, f"{len(value)} characters", f"use at most {MAX_TEXT}")
        if not _printable(value):
            return self.fault(pointer, "contains control characters", "remove them, line breaks and tabs included")
        pattern = PATTERNS.get(pointer)
        if pattern is not None and not pattern[0].fullmatch(value):
            return self.fault(pointer, f"{_show(value)} is no valid name", pattern[1])
        return value

    def mapping(self, value: object, pointer: str) -> object:
        """Text to text, of bounded size."""
        if not isinstance(value, dict):
            return self.fault(pointer, f"{_show(value)} is no mapping", "write `NAME: text` lines below it")
        if len(value) > MAX_ENTRIES:
            return self.fault(pointer, f"{len(value)} entries", f"use at most {MAX_ENTRIES}")
        pattern = KEY_PATTERNS.get(pointer)
        answer: dict[str, str] = {}
        for key, entry in value.items():
            shown = key[:64] if isinstance(key, str) else _show(key)
            here = f"{pointer}/{escape(shown)}"
            if not isinstance(key, str) or not key or len(key) > MAX_TEXT or not _printable(key):
                self.fault(here, f"{_show(key)} is no usable name", "use printable text, in quotes")
            elif pattern is not None and not pattern[0].fullmatch(key):
                self.fault(here, f"{_show(key)} is no valid name", pattern[1])
            elif isinstance(text := self.text(entry, here), str):
                answer[key] = text
                continue
            self.left_out.add(here)
        return answer

    def listing(self, value: object, pointer: str) -> object:
        """A list of text: an argv, never a shell line."""
        if not isinstance(value, list):
            fix = 'write an argv list: ["/srv/train/.venv/bin/python", "/srv/train/train.py"]; no shell runs'
            return self.fault(pointer, f"{_show(value)} is no list", fix)
        if len(value) > MAX_ARGUMENTS:
            return self.fault(pointer, f"{len(value)} entries", f"use at most {MAX_ARGUMENTS}")
        entries = [self.text(entry, f"{pointer}/{index}") for index, entry in enumerate(value)]
        self.left_out |= {f"{pointer}/{index}" for index, entry in enumerate(entries) if entry is _MISSING}
        return [_UNREAD if entry is _MISSING else entry for entry in entries]


def lint(document: object, ground: Ground | None = None) -> LintResult:
    """Walk, repair, cross-check. `ground`: what this fleet can do (see `Ground`)."""
    walk = _Walk()
    assert isinstance(_ROOT, inspect.StructType)
    repaired = walk.struct(_ROOT, document, "")
    repaired["spec"]["model"] = expand(repaired["spec"]["model"], _given(repaired["spec"]["model"], walk.defaults))
    spec = msgspec.convert(repaired, JobSpec)
    faulty = {fault.pointer for fault in walk.faults} - walk.left_out
    for check, reads in CHECKS:
        if any(_overlaps(pointer, read) for pointer in faulty for read in reads):
            continue
        for fault in check(spec.spec, ground or Ground()):
            walk.fault(fault.pointer, fault.message, fault.fix)
    for fault in without_effect(spec):
        walk.fault(fault.pointer, fault.message, fault.fix)
    if walk.untold:
        walk.faults.append(Fault("", f"{walk.untold} more faults", "fix these first"))
    faults = tuple(walk.faults)
    return LintResult(None if faults else spec, faults, tuple(walk.defaults))


def _given(model: dict[str, Any], defaults: list[str]) -> frozenset[str]:
    """The fields of `spec.model` that the user wrote."""
    return frozenset(name for name in model if f"/spec/model/{name}" not in defaults)


def effective(spec: JobSpec) -> dict[str, Any]:
    """The whole document with every default written out, as plain JSON values."""
    document = msgspec.to_builtins(spec)
    assert isinstance(document, dict)
    return document


def escape(token: str) -> str:
    """One reference token of a JSON Pointer."""
    return token.replace("~", "~0").replace("/", "~1")


def _overlaps(pointer: str, read: str) -> bool:
    """True when the fault is at, below or above what a check reads."""
    return pointer == read or pointer.startswith(read + "/") or read.startswith(pointer + "/")


def _choices(kind: inspect.LiteralType | inspect.EnumType) -> tuple[object, ...]:
    return kind.values if isinstance(kind, inspect.LiteralType) else tuple(member.value for member in kind.cls)


def _default(field: inspect.Field, pointer: str) -> object:
    if field.required:
        return _STAND_INS[pointer]
    if field.default is not msgspec.NODEFAULT:
        return msgspec.to_builtins(field.default)
    return field.default_factory()


def _printable(text: str) -> bool:
    return not any(ord(char) < 32 or ord(char) == 127 or 0xD800 <= ord(char) < 0xE000 for char in text)


def _show(value: object) -> str:
    """The value in at most about 80 characters, whatever it is."""
    match value:
        case bool() | None:
            return {True: "true", False: "false", None: "null"}[value]
        case int() if value.bit_length() > 256:
            return "a number of thousands of digits" if value.bit_length() > 4000 else "a very large number"
        case str():
            return ascii(value if len(value) <= 64 else value[:61] + "...")
        case int() | float():
            return repr(value)
        case dict():
            return "a mapping"
        case list():
            return "a list"
        case _:
            return f"a {type(value).__name__}"
