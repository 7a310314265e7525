"""Faults of a file that was sent: they name the file and the line."""

from pathlib import Path

import pytest

from controlplane.cli.exits import CliError
from controlplane.cli.faults import lines_of, of_file, where
from controlplane.protocol.rest.base import FieldError, Problem
from controlplane.sdk.errors import InvalidError

TEXT = "max_acts: 9\nrule_modes:\n  straggler: nope\n  a/b: observe\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text(TEXT)
    return path


@pytest.mark.parametrize(
    ("pointer", "message", "said"),
    [
        ("/text", "line 2: not YAML: x", ", line 2: not YAML: x"),
        ("/text", "not UTF-8", ": not UTF-8"),
        ("/max_acts", "a cap of zero", ", line 1: /max_acts: a cap of zero"),
        ("/rule_modes/straggler", "no mode", ", line 3: /rule_modes/straggler: no mode"),
        ("/rule_modes/a~1b", "no rule", ", line 4: /rule_modes/a~1b: no rule"),
        ("/rule_modes/absent", "no rule", ", line 2: /rule_modes/absent: no rule"),
        ("", "no mapping", ": no mapping"),
    ],
)
def test_a_fault_names_the_file_and_its_line(file: Path, pointer: str, message: str, said: str) -> None:
    assert where(file, pointer, message, lines_of(file)) == f"{file}{said}"


def test_what_is_of_the_request_is_not_said_of_the_file(file: Path) -> None:
    assert where(file, "/reason", "empty", lines_of(file)) == "/reason: empty"


@pytest.mark.parametrize("text", ["- 1\n", "a: [\n", "", "7"])
def test_what_is_no_mapping_has_no_lines(tmp_path: Path, text: str) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    assert lines_of(path) == {} and lines_of(tmp_path / "absent") == {}


def test_a_refusal_becomes_faults_of_the_file(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fault = FieldError(pointer="/max_acts", message="a cap of zero", fix="1 or more")
    problem = Problem(type="t", title="invalid", status=422, detail="1 fault", errors=[fault])
    with pytest.raises(CliError, match="1 fault"), of_file(file):
        raise InvalidError(problem)
    assert capsys.readouterr().err == f"{file}, line 1: /max_acts: a cap of zero\n    fix: 1 or more\n"


def test_a_refusal_that_names_no_place_stays_the_servers(file: Path) -> None:
    with pytest.raises(InvalidError), of_file(file):
        raise InvalidError(Problem(type="t", title="invalid", status=415, detail="no"))
