"""A finding is raised by code that something calls, its job is woken, and something ends it: else there is none, it is
answered late, or for ever."""

import ast
from collections.abc import Callable, Iterator
from functools import cache

import pytest

from controlplane.policy.plan import SettleSignals
from controlplane.policy.rules.registry import RULES
from controlplane.policy.signals import BY_KIND, KINDS, SIGNALS
from controlplane.policy.signals.base import Trait
from controlplane.policy.snapshot import SignalFact
from tests.house.reach import Reach, Unit, of_the_libraries
from tests.unit.policy.builders import actions, only, running, signal

DETECTORS = ("controlplane.changes.", "controlplane.recovery.", "controlplane.sentinel.")
RAISES = {"controlplane.recovery.signals.raise_signal", "controlplane.changes.kinds.Raise"}
SETTLES = {
    "controlplane.changes.kinds.Settle",
    "controlplane.recovery.signals.settle",
    "controlplane.recovery.signals.settle_keys",
}
WAKES = {
    "controlplane.changes.kinds.Wake",
    "controlplane.jobs.services.wake_job",
    "controlplane.jobs.services.wake_job_later",
}
WOKEN_BY = {
    "controlplane.changes.answers._start": "recovery.facts, by what the command answers (changes.answers.calls)",
    "controlplane.changes.handshake._ended_unseen": "recovery.ingest, as every job of a node that says hello",
    "controlplane.recovery.numerics.take": "changes.reports._evidence, with the report",
    "controlplane.recovery.speed._tell": "recovery.facts, where scoring has changed something",
    "controlplane.recovery.spikes.look": "recovery.kept, where it has found something",
}
"""Code that raises a finding and leaves the waking of its job to another, and to whom."""
STRUCTS = {f"{kind.__module__}.{kind.__name__}": kind for kind in SIGNALS}
REFUSED = signal(
    "numerics", replica=1, incarnation=1, rank=0, node_id="n1", value=50.0, evidence={"diagnosis": "transient"}
)
BY_A_RULE: dict[str, tuple[str, SignalFact]] = {
    "xid": ("device_fault", signal("xid", node_id="n3", device_index=0, value=13.0)),
    "numerics": ("numerics", REFUSED),
}
"""Kinds that a rule's decision alone ends: the rule, and a finding that it ends in a job that trains."""


class Code:
    """What of `reach` the detectors' packages have, with and without what nothing calls."""

    def __init__(self, reach: Reach) -> None:
        self.reach, self.live = reach, reach.reached()
        self.units = [unit for name, unit in reach.units.items() if name.startswith(DETECTORS)]
        self._named = {
            unit.name: {name for node in unit.nodes for name in self._names(node, unit)} for unit in self.units
        }
        self.makers = list(self._makers())
        self.ended = set(self._ended())

    def _makers(self) -> Iterator[tuple[str, Unit]]:
        """(kind's struct, code that makes one)."""
        for unit in self.units:
            for node in (part for each in unit.nodes for part in ast.walk(each)):
                made = [node.func] if isinstance(node, ast.Call) else []
                made += [node.body, node.orelse] if isinstance(node, ast.IfExp) else []
                for struct in {self.reach.one(each, unit.module) for each in made} & STRUCTS.keys():
                    yield STRUCTS[struct].__name__, unit

    def unwoken(self) -> set[str]:
        """Code that raises a finding for a rule where nothing wakes the job, in that branch or around it."""
        wanted = {kind.__name__ for kind in SIGNALS if not kind.READER and Trait.PEOPLE not in kind.TRAITS}
        makers = {unit.name: unit for name, unit in self.makers if name in wanted and unit.name in self.live}
        return {
            name
            for name, unit in makers.items()
            for chain in _chains([part for part in unit.nodes if isinstance(part, ast.stmt)], self._says(unit, RAISES))
            if not any(self._says(unit, WAKES)(each) for block in chain for each in block)
        }

    def _says(self, unit: Unit, what: set[str]) -> Callable[[ast.AST], bool]:
        """Whether code calls one of these, itself or in a function that it calls; a `return` in it goes elsewhere."""

        def says(node: ast.AST) -> bool:
            named = set(self._names(node, unit))
            below = (
                {name for each in named & self._named.keys() for name in self._named[each]} if what is WAKES else set()
            )
            leaves = what is WAKES and any(isinstance(part, ast.Return) for part in ast.walk(node))
            return bool(what & (named | below)) and not leaves and (what is RAISES or not RAISES & named)

        return says

    def raises(self, unit: Unit) -> bool:
        """It hands on what it makes, or whoever calls it does."""
        callers = [name for name, named in self._named.items() if unit.name in named and name in self.live]
        return any(RAISES & self._named[name] for name in (unit.name, *callers))

    def _ended(self) -> Iterator[str]:
        """Kinds whose findings code that is called settles by their key, or by their kind."""
        for unit in self.units:
            for node in (part for each in unit.nodes for part in ast.walk(each) if unit.name in self.live):
                if isinstance(node, ast.Call) and node.args and self.reach.one(node.func, unit.module) in SETTLES:
                    yield from self._kinds(node.args[0], unit, set())

    def _kinds(self, node: ast.AST, unit: Unit, seen: set[str]) -> Iterator[str]:
        """Kinds that an expression names, also by what its variables and the functions that it calls are made of."""
        for part in ast.walk(node):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                yield part.value.partition(":")[0]
            if isinstance(part, ast.Name | ast.Attribute):
                for name in self._names(part, unit):
                    if name in STRUCTS:
                        yield STRUCTS[name].KIND
                    elif name.startswith(DETECTORS) and name not in seen and self.reach.units[name].nodes:
                        called = self.reach.units[name]
                        yield from (kind for each in called.nodes for kind in self._kinds(each, called, seen | {name}))
            if isinstance(part, ast.Name) and part.id not in seen:
                for source in _sources(part.id, unit):
                    yield from self._kinds(source, unit, seen | {part.id})

    def _names(self, node: ast.AST, unit: Unit) -> list[str]:
        return [name for name in self.reach.named(node, unit.module) if name in self.reach.units]


def _chains(block: list[ast.stmt], raises: Callable[[ast.AST], bool]) -> Iterator[list[list[ast.stmt]]]:
    """For each statement that raises: the blocks around it, the innermost last."""
    for node in block:
        below = [part for part in (getattr(node, name, []) for name in ("body", "orelse", "finalbody")) if part]
        if not below and raises(node):
            yield [block]
        for inner in below:
            yield from ([block, *chain] for chain in _chains(inner, raises))


def _sources(name: str, unit: Unit) -> Iterator[ast.expr]:
    """What a variable of this code is assigned, or walks over."""
    for node in (part for each in unit.nodes for part in ast.walk(each)):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.For):
            targets = [node.target]
        if any(isinstance(word, ast.Name) and word.id == name for each in targets for word in ast.walk(each)):
            yield node.value if isinstance(node, ast.Assign) else node.iter


@cache
def code() -> Code:
    return Code(of_the_libraries())


@pytest.mark.parametrize("kind", SIGNALS, ids=lambda kind: kind.__name__)
def test_a_kind_is_made_by_code_that_is_called_and_raises_it(kind: type) -> None:
    makers = [unit for name, unit in code().makers if name == kind.__name__]
    assert makers, f"nothing makes a {kind.__name__}: its detector is missing (docs/checklists.md)"
    called = [unit for unit in makers if unit.name in code().live]
    assert called == makers, (
        f"nothing calls {', '.join(unit.name for unit in makers if unit not in called)}, which makes a {kind.__name__}:"
        " call it where what it looks at arrives, or drop it"
    )
    assert any(map(code().raises, called)), (
        f"{', '.join(unit.name for unit in called)} makes a {kind.__name__} and nobody raises it:"
        " hand it to recovery.signals.raise_signal, or yield a changes.kinds.Raise of it"
    )


def test_who_raises_a_finding_for_a_rule_wakes_its_job() -> None:
    found = code().unwoken()
    late = sorted(found - WOKEN_BY.keys())
    assert late == [], (
        f"{', '.join(late)} raises a finding and wakes nobody, so that it is answered at the job's next pass: yield a"
        " changes.kinds.Wake beside the Raise, or call jobs.services.wake_job beside raise_signal; or name who wakes in"
        " WOKEN_BY here"
    )
    assert sorted(WOKEN_BY.keys() - found) == [], "it wakes the job by itself, or is no more: take it off the list"


@pytest.mark.parametrize("kind", KINDS)
def test_a_finding_ends(kind: str) -> None:
    traits = {Trait.ATTEMPT, Trait.PEOPLE} & BY_KIND[kind].TRAITS
    assert traits or kind in code().ended or kind in BY_A_RULE, (
        f"nothing ends a finding of the kind {kind}. Where it is seen to be over, call"
        f" recovery.signals.settle_keys({BY_KIND[kind].__name__}.key_of(...), why); or give it Trait.ATTEMPT, where its"
        " attempt ends it; or have its rule settle it (SettleSignals), and show that in BY_A_RULE here"
    )


@pytest.mark.parametrize("kind", BY_A_RULE)
def test_what_a_rule_is_to_end_it_ends(kind: str) -> None:
    name, found = BY_A_RULE[kind]
    (rule,) = [rule for rule in RULES if rule.name == name]
    assert found.kind == kind in rule.answers
    settled = actions(only(running(signals=(found,)), name), SettleSignals)
    assert [each.signal_ids for each in settled] == [(found.id,)], f"{name} ends no finding of the kind {kind} any more"
