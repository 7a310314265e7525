"""Policy documents: what people write, checked, and the `PolicyConfig` that it makes.

A document names the fields that differ from the defaults (`policy.fields`). The fleet's replaces defaults; that of a
job is laid over the fleet's and may only narrow it: fewer acts, later acts, less automation. Where the fleet's
document becomes narrower than a job's later, the narrower counts, field by field. Pure: what was measured comes in as
values.
"""

import json
from collections.abc import Callable, Mapping
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


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One difference of two policies; a row of a table is named as `table.row`. None: it is not in that table."""

    field: str
    before: Any
    after: Any


def checked(document: object, ground: Ground, fleet: PolicyConfig | None = None) -> tuple[Fault, ...]:
    """Every reason to refuse the document, in the order of its fields; () for none. `fleet`: the policy that a job's
    document narrows; None: it is the fleet's own."""
    if not isinstance(document, Mapping):
        return (
            Fault("", "a policy is a mapping of fields to values", "for example `max_acts: 10`; {} for the defaults"),
        )
    found = [fault for name, value in document.items() for fault in _field(name, value, fleet)]
    if found:
        return tuple(found)
    config = narrowed(fleet, document) if fleet is not None else config_of(document)
    return (*_within(document, config), *_reachable(document, ground), *_measured(document, ground))


def config_of(document: Document) -> PolicyConfig:
    """The fleet's policy by a document that was checked."""
    values = {name: value for name, value in document.items() if name in BY_NAME}
    exact = {name: int(value) if BY_NAME[name].whole else float(value) for name, value in values.items()}
    xids = {int(xid): str(word) for xid, word in document.get(XID_OVERRIDES, {}).items()}
    modes = {str(rule): Mode(mode) for rule, mode in document.get(RULE_MODES, {}).items()}
    return msgspec.structs.replace(DEFAULT, **exact, xid_overrides=xids, rule_modes=modes)


def narrowed(fleet: PolicyConfig, document: Document) -> PolicyConfig:
    """The policy of a job: field by field the narrower of the fleet's and the job's."""
    own = config_of(document)
    values: dict[str, Any] = {}
    for field in FIELDS:
        if field.name in document and field.of_jobs:
            pick = max if field.safer is Safer.HIGHER else min
            values[field.name] = pick(getattr(fleet, field.name), getattr(own, field.name))
    modes = dict(fleet.rule_modes)
    for rule, mode in own.rule_modes.items():
        modes[rule] = min(modes.get(rule, Mode.ENFORCE), mode, key=CAUTION.index)
    return msgspec.structs.replace(fleet, **values, rule_modes=modes)


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


def _field(name: object, value: object, fleet: PolicyConfig | None) -> list[Fault]:
    at = f"/{name}"
    if name == XID_OVERRIDES:
        return _xids(at, value, fleet)
    if name == RULE_MODES:
        return _modes(at, value, fleet)
    field = BY_NAME.get(name) if isinstance(name, str) else None
    if field is None:
        return [Fault(at, "no such field of a policy", "docs/policy.md lists them")]
    return _number(at, field, value, fleet)


def _number(at: str, field: Field, value: object, fleet: PolicyConfig | None) -> list[Fault]:
    kind = int if field.whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kind):
        return [Fault(at, f"expected {'a whole number' if field.whole else 'a number'}, got {_shown(value)}", "")]
    assert isinstance(value, int | float)
    if field.whole and value == 0:
        return [Fault(at, "a cap of zero would forbid it altogether, unseen", "set a rule's mode to observe instead")]
    if not field.least <= value <= field.most:
        span = f"{plain_number(field.least)} to {plain_number(field.most)}"
        return [Fault(at, f"{_shown(value)} is out of range", f"use {span} {_unit(field)}".rstrip())]
    if fleet is None:
        return []
    if not field.of_jobs:
        return [Fault(at, "is the fleet's alone: for one job it would have no effect", "set it in the fleet's policy")]
    there = getattr(fleet, field.name)
    if (value < there) if field.safer is Safer.HIGHER else (value > there):
        bound = "below" if field.safer is Safer.HIGHER else "above"
        why = f"a job's policy may only narrow: {plain_number(value)} is {bound} the fleet's {plain_number(there)}"
        return [Fault(at, why, f"use {plain_number(there)} or {field.safer}")]
    return []


def _xids(at: str, value: object, fleet: PolicyConfig | None) -> list[Fault]:
    if fleet is not None:
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


def _modes(at: str, value: object, fleet: PolicyConfig | None) -> list[Fault]:
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
        elif fleet is not None and CAUTION.index(Mode(word)) > CAUTION.index(fleet.rule_modes.get(rule, Mode.ENFORCE)):
            there = fleet.rule_modes[rule]
            found.append(
                Fault(here, f"a job's policy may only narrow: the fleet's mode is {there}", f"use {there} or less")
            )
    return found


def _within(document: Document, config: PolicyConfig) -> list[Fault]:
    """Thresholds that another one would always come before."""
    found = []
    for field in FIELDS:
        if not field.within or not {field.name, field.within} & document.keys():
            continue
        value, limit = getattr(config, field.name), getattr(config, field.within)
        if value > limit:
            named = field.name if field.name in document else field.within
            words = f"{field.name} {plain_number(value)} cannot be reached: {field.within} is {plain_number(limit)}"
            found.append(Fault(f"/{named}", words, f"let {field.name} be at most {field.within}"))
    return found


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


def _shown(value: object) -> str:
    """A short text of whatever somebody sent."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
