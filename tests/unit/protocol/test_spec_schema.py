"""The published JSON Schema refuses nothing that the linter takes, and names the linter's own ranges."""

import json
import urllib.parse
from typing import Any

import jsonschema
import pytest

from controlplane.protocol.spec_limits import RANGES
from controlplane.protocol.spec_lint import effective, lint
from controlplane.protocol.spec_schema import PATH, spec_schema
from controlplane.protocol.spec_text import parse_yaml
from tests.unit.protocol.test_spec_lint import EXAMPLES, GOOD, SEEDED, broken, own_program

VALIDATOR = jsonschema.Draft202012Validator(spec_schema())


def faults(document: object) -> list[str]:
    return [error.message for error in VALIDATOR.iter_errors(document)]


def test_it_is_a_schema_and_the_printed_one_is_current() -> None:
    jsonschema.Draft202012Validator.check_schema(spec_schema())
    assert json.loads(PATH.read_text()) == spec_schema()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_examples_fit_as_written_and_with_every_default(path: Any) -> None:
    document = parse_yaml(path.read_bytes())
    spec = lint(document).spec
    assert faults(document) == [] and spec is not None
    assert faults(effective(spec)) == []


def test_what_the_linter_takes_fits() -> None:
    assert faults(GOOD) == faults(broken(*own_program())) == []


@pytest.mark.parametrize(("where", "value", "told_at"), SEEDED, ids=[f"{w}={str(v)[:20]}" for w, v, _ in SEEDED])
def test_what_does_not_fit_is_refused_by_the_linter_too(where: str, value: object, told_at: str) -> None:
    document = broken((where, value))
    if faults(document):
        assert lint(document).faults


@pytest.mark.parametrize("pointer", sorted(RANGES))
def test_both_ends_of_every_range_are_in_it_and_nothing_beyond(pointer: str) -> None:
    low, high = RANGES[pointer]
    whole = float(low).is_integer() and isinstance(low, int)
    for value, fits in ((low, True), (high, True), (low - 1, False), (high + 1, False)):
        number = int(value) if whole else value
        named = [error for error in VALIDATOR.iter_errors(broken((pointer, number))) if at(error) == pointer]
        assert (not named) is fits, (pointer, number)


def at(error: jsonschema.ValidationError) -> str:
    return "".join("/" + urllib.parse.unquote(str(part)) for part in error.absolute_path)
