"""Policy documents: what people write, checked, and the `PolicyConfig` that it makes.

A document names the fields that differ from the defaults (`policy.fields`). The fleet's replaces defaults; a project's
is laid over the fleet's, and a job's over both. Each may only narrow what lies above it: fewer acts, later acts, less
automation. Where a document above becomes narrower later, the narrower counts, field by field. Pure: what was measured
comes in as values.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import Any

import msgspec

from controlplane.policy.config import PolicyConfig
from controlplane.policy.fields import BY_NAME, FIELDS, RULE_MODES, TABLES, UNITS, XID_OVERRIDES, Field, Safer
from controlplane.policy.plan import CAUTION
from controlplane.policy.rules.registry import REMEDIAL
from controlplane.policy.xid import XidBucket, known_xids
from controlplane.protocol.spec_fault import Fault, plain_number
from controlplane.protocol.states import Mode

DEFAULT = PolicyConfig()
MIN_SAMPLES = 20
"""Of fewer a measurement contradicts nobody."""
SHOWN = 5
"""So many of those that a change conflicts with are named."""
Document = Mapping[str, Any]


class Measure(msgspec.Struct, frozen=True, kw_only=True):
    """What this fleet measured of a thing that a field bounds: the 99th percentile of `samples`, in seconds."""

    p99_s: float
    samples: int
    what: str


class Ground(msgspec.Struct, frozen=True, kw_only=True):
    """What a check may know besides the document. `measured` by field; `nodes` and `devices` of the fleet, 0 where
    that is not known."""

    measured: Mapping[str, Measure] = {}
    nodes: int = 0
    devices: int = 0


class Above(msgspec.Struct, frozen=True, kw_only=True):
    """What a document narrows. `of`: whose it is, "a project's" or "a job's". `levels`: the policies above it, with
    whose each is in words, the widest first; the last is in force there."""

    of: str
    levels: tuple[tuple[str, PolicyConfig], ...]

    @property
    def config(self) -> PolicyConfig:
        """In force above."""
        return self.levels[-1][1]

    def whose(self, read: Callable[[PolicyConfig], Any]) -> str:
        """Whose document binds what `read` takes of a policy: the widest that is as narrow as what is in force."""
        return next(whose for whose, config in self.levels if read(config) == read(self.config))


class Below(msgspec.Struct, frozen=True, kw_only=True):
    """Who narrows a policy that shall change: `whose` in words, and the `documents` of it, the widest first."""

    whose: str
    documents: tuple[Document, ...]


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One difference of two policies; a row of a table is named as `table.row`. None: it is not in that table."""

    field: str
    before: Any
    after: Any


def checked(document: object, ground: Ground, above: Above | None = None) -> tuple[Fault, ...]:
    """Every reason to refuse the document, in the order of its fields; () for none. `above`: what it narrows; None: it
    is the fleet's own."""
    if not isinstance(document, Mapping):
        return (
            Fault("", "a policy is a mapping of fields to values", "for example `max_acts: 10`; {} for the defaults"),
        )
    found = [fault for name, value in document.items() for fault in _field(name, value, above)]
    if found:
        return tuple(found)
    config = narrowed(above.config, document) if above is not None else config_of(document)
    return (*_within(document, config), *_reachable(document, ground), *_measured(document, ground))


def config_of(document: Document) -> PolicyConfig:
    """The fleet's policy by a document that was checked."""
    values = {name: value for name, value in document.items() if name in BY_NAME}
    exact = {name: int(value) if BY_NAME[name].whole else float(value) for name, value in values.items()}
    xids = {int(xid): str(word) for xid, word in document.get(XID_OVERRIDES, {}).items()}
    modes = {str(rule): Mode(mode) for rule, mode in document.get(RULE_MODES, {}).items()}
    return msgspec.structs.replace(DEFAULT, **exact, xid_overrides=xids, rule_modes=modes)


def conflicts(before: PolicyConfig, after: PolicyConfig, below: Sequence[Below]) -> tuple[Fault, ...]:
    """Why a policy may not become `after`: thresholds that can still be reached for who narrows it, and could not any
    more, each with whose they are. What cannot be reached as it is holds nobody up."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for each in below:
        was, would = (_folded(config, each.documents) for config in (before, after))
        for field in FIELDS:
            if _out_of_reach(field, would) and not _out_of_reach(field, was):
                value, limit = getattr(would, field.name), getattr(would, field.within)
                words = f"{field.name} {plain_number(value)} could not be reached: {field.within} would be"
                named = field.within if getattr(before, field.within) != getattr(after, field.within) else field.name
                found.setdefault((named, words, plain_number(limit)), []).append(each.whose)
    return tuple(
        Fault(
            f"/{named}",
            f"{_some(whose)}: {words} {limit}",
            "leave it within what they set, or change their documents first",
        )
        for (named, words, limit), whose in found.items()
    )


def narrowed(above: PolicyConfig, document: Document) -> PolicyConfig:
    """The policy of a project or job: field by field the narrower of what is in force above and of its own document."""
    own = config_of(document)
    values: dict[str, Any] = {}
    for field in FIELDS:
        if field.name in document and field.narrows:
            pick = max if field.safer is Safer.HIGHER else min
            values[field.name] = pick(getattr(above, field.name), getattr(own, field.name))
    modes = dict(above.rule_modes)
    for rule, mode in own.rule_modes.items():
        modes[rule] = min(modes.get(rule, Mode.ENFORCE), mode, key=CAUTION.index)
    return msgspec.structs.replace(above, **values, rule_modes=modes)


def changes(before: PolicyConfig, after: PolicyConfig) -> tuple[Change, ...]:
    """What differs, in the order of the fields."""
    names = [field.name for field in FIELDS if getattr(before, field.name) != getattr(after, field.name)]
    found = [Change(field=name, before=getattr(before, name), after=getattr(after, name)) for name in names]
    for table in TABLES:
        rows, others = getattr(before, table), getattr(after, table)
        for key in sorted(rows.keys() | others.keys()):
            if rows.get(key) != others.get(key):
                found.append(Change(field=f"{table}.{key}", before=_word(rows.get(key)), after=_word(others.get(key))))
    return tuple(found)


def plain(document: Document) -> dict[str, Any]:
    """As it is stored: keys in the order of the fields, of tables sorted; what holds nothing is left out."""
    found: dict[str, Any] = {field.name: document[field.name] for field in FIELDS if field.name in document}
    for table in TABLES:
        if rows := document.get(table):
            numbers = table == XID_OVERRIDES
            keys = sorted(rows, key=lambda key: int(key) if numbers else key)
            found[table] = {str(key): str(rows[key]) for key in keys}
    return found


def from_content(text: str) -> PolicyConfig:
    """A policy whose `content` was stored, perhaps by another release: a field that is gone has no reader any more, and
    a new one has its default."""
    known = {name: value for name, value in json.loads(text).items() if name in PolicyConfig.__struct_fields__}
    return msgspec.convert(known, PolicyConfig, strict=False, str_keys=True)


def _field(name: object, value: object, above: Above | None) -> list[Fault]:
    at = f"/{name}"
    if name == XID_OVERRIDES:
        return _xids(at, value, above)
    if name == RULE_MODES:
        return _modes(at, value, above)
    field = BY_NAME.get(name) if isinstance(name, str) else None
    if field is None:
        return [Fault(at, "no such field of a policy", "docs/policy.md lists them")]
    return _number(at, field, value, above)


def _number(at: str, field: Field, value: object, above: Above | None) -> list[Fault]:
    kind = int if field.whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kind):
        return [Fault(at, f"expected {'a whole number' if field.whole else 'a number'}, got {_shown(value)}", "")]
    assert isinstance(value, int | float)
    if field.whole and value == 0:
        return [Fault(at, "a cap of zero would forbid it altogether, unseen", "set a rule's mode to observe instead")]
    if not field.least <= value <= field.most:
        span = f"{plain_number(field.least)} to {plain_number(field.most)}"
        return [Fault(at, f"{_shown(value)} is out of range", f"use {span} {_unit(field)}".rstrip())]
    if above is None:
        return []
    if not field.narrows:
        why = "is the fleet's alone: below it, for some of the jobs, it would have no effect"
        return [Fault(at, why, "set it in the fleet's policy")]
    there = getattr(above.config, field.name)
    if (value < there) if field.safer is Safer.HIGHER else (value > there):
        bound = "below" if field.safer is Safer.HIGHER else "above"
        whose = above.whose(lambda config: getattr(config, field.name))
        why = f"{above.of} policy may only narrow: {plain_number(value)} is {bound} {whose} {plain_number(there)}"
        return [Fault(at, why, f"use {plain_number(there)} or {field.safer}")]
    return []


def _xids(at: str, value: object, above: Above | None) -> list[Fault]:
    if above is not None:
        return [Fault(at, "is the fleet's alone: a device is no job's", "set it in the fleet's policy")]
    if not isinstance(value, Mapping):
        return [Fault(at, f"expected a mapping of XIDs to actions, got {_shown(value)}", "for example 63: ignore")]
    known, words, found = {str(xid) for xid in known_xids()}, [str(word) for word in XidBucket], []
    for xid, word in value.items():
        if str(xid) not in known:
            found.append(Fault(f"{at}/{xid}", f"XID {_shown(xid)} is not in the catalogue", ""))
        elif word not in words:
            found.append(Fault(f"{at}/{xid}", f"{_shown(word)} is no action", f"use {', '.join(words)}"))
    return found


def _modes(at: str, value: object, above: Above | None) -> list[Fault]:
    if not isinstance(value, Mapping):
        return [
            Fault(at, f"expected a mapping of rules to modes, got {_shown(value)}", "for example straggler: observe")
        ]
    found = []
    for rule, word in value.items():
        here = f"{at}/{rule}"
        if rule not in REMEDIAL:
            names = ", ".join(sorted(REMEDIAL))
            found.append(Fault(here, f"no rule with a mode is called {_shown(rule)}", f"use {names}"))
        elif word not in list(CAUTION):
            found.append(Fault(here, f"{_shown(word)} is no mode", f"use {', '.join(CAUTION)}"))
        elif above is not None and CAUTION.index(Mode(word)) > CAUTION.index(_mode(above.config, rule)):
            there, whose = _mode(above.config, rule), above.whose(partial(_mode, rule=rule))
            why = f"{above.of} policy may only narrow: {whose} mode is {there}"
            found.append(Fault(here, why, f"use {there} or less"))
    return found


def _within(document: Document, config: PolicyConfig) -> list[Fault]:
    """Thresholds that another one would always come before."""
    found = []
    for field in FIELDS:
        if {field.name, field.within} & document.keys() and _out_of_reach(field, config):
            value, limit = getattr(config, field.name), getattr(config, field.within)
            named = field.name if field.name in document else field.within
            words = f"{field.name} {plain_number(value)} cannot be reached: {field.within} is {plain_number(limit)}"
            found.append(Fault(f"/{named}", words, f"let {field.name} be at most {field.within}"))
    return found


def _out_of_reach(field: Field, config: PolicyConfig) -> bool:
    """Another threshold always comes before it."""
    return field.within != "" and getattr(config, field.name) > getattr(config, field.within)


def _folded(config: PolicyConfig, documents: Sequence[Document]) -> PolicyConfig:
    return reduce(narrowed, documents, config)


def _mode(config: PolicyConfig, rule: str) -> Mode:
    return config.rule_modes.get(rule, Mode.ENFORCE)


def _reachable(document: Document, ground: Ground) -> list[Fault]:
    """Thresholds that this fleet is too small for."""
    found = []
    sizes: tuple[tuple[str, int, str, Callable[[int], int]], ...] = (
        ("correlated_min_nodes", ground.nodes, "nodes", lambda size: size),
        ("correlated_min_devices", ground.devices, "devices", lambda size: size - 1),
    )
    for name, size, what, most in sizes:
        if size and document.get(name, 0) > max(most(size), 1):
            words = f"cannot be reached: the fleet has {size} {what}, so automation would never be held back"
            found.append(Fault(f"/{name}", words, f"use at most {max(most(size), 1)}"))
    return found


def _measured(document: Document, ground: Ground) -> list[Fault]:
    """Timeouts that would strike what is in good order. Defaults are nobody's demand: they are not judged."""
    found = []
    for name, seen in ground.measured.items():
        value = document.get(name)
        if value is not None and seen.samples >= MIN_SAMPLES and value < seen.p99_s:
            words = f"{plain_number(value)} s is below what was measured here: {seen.what} takes {seen.p99_s:.3g} s"
            fix = f"use more than {seen.p99_s:.3g} s"
            found.append(Fault(f"/{name}", f"{words} (p99 of {seen.samples})", fix))
    return found


def _unit(field: Field) -> str:
    return field.unit if field.unit in dict(UNITS).values() else ""


def _word(value: object) -> str | None:
    return None if value is None else str(value)


def _some(whose: Sequence[str]) -> str:
    """The first few, and how many more."""
    more = f" and {len(whose) - SHOWN} more" if len(whose) > SHOWN else ""
    return f"by the documents of {', '.join(whose[:SHOWN])}{more}"


def _shown(value: object) -> str:
    """A short text of whatever somebody sent."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
