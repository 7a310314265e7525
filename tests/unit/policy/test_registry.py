"""One table of rules: whoever forgets a rule, what it answers or its test, is told here."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from controlplane.policy.config import PolicyConfig
from controlplane.policy.decide import decide
from controlplane.policy.errors import PolicyError
from controlplane.policy.fleet import FleetSnapshot, decide_fleet
from controlplane.policy.rules import registry
from controlplane.policy.rules.registry import RULES, Rule
from controlplane.policy.signals import BY_KIND, KINDS, SIGNALS
from controlplane.policy.signals.base import Trait
from controlplane.protocol.states import Mode
from tests.unit.policy.builders import running, signal

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "controlplane" / "policy" / "rules"


@cache
def source(module: str) -> ast.Module:
    path = ROOT / (module.replace(".", "/") + ".py")
    path = path if path.exists() else path.with_suffix("") / "__init__.py"
    return ast.parse(path.read_text(encoding="ascii"))


def reached(module: str) -> set[str]:
    """The policy's modules that this one imports, and theirs; the tables themselves are no readers."""
    found, waiting = set(), [module]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        for node in ast.walk(source(name)):
            if not isinstance(node, ast.ImportFrom) or not str(node.module).startswith("controlplane.policy"):
                continue
            parts = [f"{node.module}.{alias.name}" for alias in node.names]
            files = [part for part in parts if (ROOT / (part.replace(".", "/") + ".py")).exists()]
            waiting += files or [str(node.module)]
    return {name for name in found if ".signals" not in name and not name.endswith("registry")}


@cache
def words(module: str) -> set[str]:
    """Kinds that a module names: in a word, by a struct of the table, or by a trait."""
    found: set[str] = set()
    names = {kind.__name__: kind.KIND for kind in SIGNALS}
    for node in ast.walk(source(module)):
        if isinstance(node, ast.Constant) and node.value in KINDS:
            found.add(node.value)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in names:
            found.add(names[ast.unparse(node.value)])
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "Trait":
            found |= {kind for kind in KINDS if Trait[node.attr] in BY_KIND[kind].TRAITS}
    return found


def test_every_file_of_a_rule_has_its_row_and_every_row_its_file() -> None:
    files = {path.stem for path in FOLDER.glob("*.py")} - {"__init__", "registry"}
    assert {rule.name for rule in RULES} == files
    assert len(registry.NAMES) == len(set(registry.NAMES))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_has_its_words_and_answers_kinds_that_its_code_reads(rule: Rule) -> None:
    assert rule.what and not rule.what.endswith(".")
    assert set(rule.answers) <= set(KINDS)
    read = set().union(*(words(name) for name in reached(f"controlplane.policy.rules.{rule.name}")))
    assert set(rule.answers) <= read
    assert rule.fault or not rule.told


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_has_a_rule_or_a_reader_or_is_for_people(kind: str) -> None:
    found = BY_KIND[kind]
    answered = any(kind in rule.answers for rule in RULES)
    people = Trait.PEOPLE in found.TRAITS
    assert [answered, bool(found.READER), people].count(True) == 1
    if found.READER:
        path = ROOT / (found.READER.replace(".", "/") + ".py")
        assert found.__name__ in path.read_text(encoding="ascii")


@pytest.mark.parametrize("kind", KINDS)
def test_a_detector_has_a_test(kind: str) -> None:
    """One that speaks of the kind outside of what tests the policy and documents, which only read what was detected."""
    names = "|".join({kind, *(each.__name__ for each in SIGNALS if kind == each.KIND)})
    readers = ("unit/policy", "unit/changes", "properties/policy", "house", "contracts")
    files = (
        path
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if not path.relative_to(ROOT / "tests").as_posix().startswith(readers)
    )
    assert any(re.search(rf"\b({names})\b", path.read_text(encoding="utf-8")) for path in files)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_has_a_test(rule: Rule) -> None:
    texts = [
        path.read_text(encoding="utf-8")
        for path in sorted((ROOT / "tests" / "unit" / "policy").glob("test_*.py"))
        if path.name != Path(__file__).name
    ]
    spoken = (f'"{rule.name}"', f"rules.{rule.name}", f"rules import {rule.name}", f"{rule.name}.RULE")
    assert any(word in text for text in texts for word in spoken)


def test_what_the_table_derives_is_what_was_listed_before() -> None:
    assert set(registry.FAULT) == {
        "ordered_eviction", "replica_failure", "leave_out", "restart", "device_fault", "outer_error", "device_risk",
        "numerics", "straggler", "common_stall", "preempt_request",
    }  # fmt: skip
    assert set(registry.TOLD) == {"ordered_eviction", "replica_failure", "leave_out", "restart", "common_stall"}
    assert set(registry.DESTRUCTIVE) == {"replica_failure", "restart", "straggler"}
    assert {rule.name for rule in RULES if not rule.remedial} == {
        "lifecycle", "ordered_eviction", "common_stall", "membership_install", "admit_joiner", "swap", "strength",
        "spares", "rehearsal", "look", "void", "evict_request", "drain_request", "checkpoint_request", "fault_request",
        "preempt_request", "resume_request", "make_room", "give_replicas", "grow", "known_end",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["replica_failures", "lifecycle", ""])
def test_a_policy_that_holds_back_a_rule_that_is_none_or_obeys_no_mode_is_refused(name: str) -> None:
    config = PolicyConfig(rule_modes={name: Mode.OBSERVE})
    with pytest.raises(PolicyError, match="no remedial rule is called"):
        decide(running(), config)
    with pytest.raises(PolicyError, match="no remedial rule is called"):
        decide_fleet(FleetSnapshot(now_s=0.0, signals=(signal("device_risk", node_id="n1", device_index=0),)), config)


def test_nobody_asks_for_a_rule_that_is_not_in_the_table() -> None:
    asked = set()
    for folder in ("controlplane", "benchmarks"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                words_of: list[ast.expr] = []
                if isinstance(node, ast.Compare) and ast.unparse(node.left).endswith(".rule"):
                    words_of = node.comparators
                if isinstance(node, ast.keyword) and node.arg == "rule":
                    words_of = [node.value]
                asked |= {str(word.value) for word in words_of if isinstance(word, ast.Constant)}
    assert {"device_fault", "rehearsal"} <= asked
    assert asked - {*registry.NAMES, registry.HARDWARE_RETURN} == set()


def test_rules_have_their_files_names() -> None:
    assert all(rule.decide.__module__.rsplit(".", 1)[-1] == rule.name for rule in RULES)
