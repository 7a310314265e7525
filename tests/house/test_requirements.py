"""docs/requirements.md has a row for every requirement, and no row claims what is not there."""

import re
from pathlib import Path

import pytest

from tests.house.tree import ROOT, read

TABLE = ROOT / "docs" / "requirements.md"
IDS = ROOT / "docs" / "requirement_ids.txt"
STATES = ("done", "partly", "not yet")
_ROW = re.compile(r"^\| ([A-Z][\w.-]*) \|(.+)\|$", re.MULTILINE)


def rows() -> list[tuple[str, list[str]]]:
    """(id, [what, where, shown by, state]) in the order of the page."""
    return [(name, [cell.strip() for cell in rest.split(" | ")]) for name, rest in _ROW.findall(read(TABLE))]


def wanted() -> list[str]:
    return IDS.read_text(encoding="ascii").split()


def paths(cell: str) -> list[str]:
    """The files and folders named in a cell; `file.py::test` names a test in a file."""
    return re.findall(r"`([\w./-]+(?:::\w+)?)`", cell)


def missing(path: str) -> bool:
    file, _, test = path.partition("::")
    target: Path = ROOT / file
    return not target.exists() or bool(test and f"def {test}(" not in read(target))


def test_every_id_has_exactly_one_row() -> None:
    assert sorted(name for name, _ in rows()) == sorted(wanted())


def test_rows_come_in_the_order_of_the_list() -> None:
    assert [name for name, _ in rows()] == wanted()


def test_every_row_has_its_four_cells_and_a_known_state() -> None:
    assert [name for name, cells in rows() if len(cells) != 4] == []
    assert [name for name, cells in rows() if not cells[3].startswith(STATES)] == []


def test_every_path_named_exists() -> None:
    found = [
        f"{name}: {path}" for name, cells in rows() for cell in cells[1:3] for path in paths(cell) if missing(path)
    ]
    assert found == []


def test_the_summary_counts_the_rows() -> None:
    counted = [sum(cells[3].startswith(state) for _, cells in rows()) for state in STATES]
    told = "Of {} rows, {} are done, {} partly, {} not yet.".format(sum(counted), *counted)
    assert told in read(TABLE), f"the page should say: {told}"


def test_what_is_done_says_where_it_is_and_what_shows_it() -> None:
    bare = [name for name, cells in rows() if cells[3].startswith("done") and not (paths(cells[1]) and paths(cells[2]))]
    assert bare == []


def test_what_is_done_in_part_says_what_is_missing() -> None:
    assert [name for name, cells in rows() if cells[3].startswith("partly") and len(cells[3]) < len("partly: x")] == []


@pytest.mark.parametrize("path", ["tests/house/nothing.py", "tests/house/test_requirements.py::test_nothing"])
def test_a_path_that_does_not_exist_is_noticed(path: str) -> None:
    assert missing(path)
    assert not missing("tests/house/test_requirements.py::test_a_path_that_does_not_exist_is_noticed")
