"""SECURITY.md claims what tests show, and its rules for the code hold in all of it."""

import ast
import re
from functools import cache

import pytest

from tests.house.test_requirements import missing, paths
from tests.house.tree import ROOT, python_files, read, relative, tree

PAGE = ROOT / "SECURITY.md"
HEAD = "| attacker has | can | cannot | shown by |"
RUN = ("controlplane", "agents", "trainer", "scripts", "deploy")
SHELLS = {
    "os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput", "asyncio.create_subprocess_shell",
    "eval", "exec",
}  # fmt: skip
UNPICKLES = {"pickle.load", "pickle.loads", "marshal.load", "marshal.loads", "shelve.open", "yaml.load", "dill.load"}
CLOSED_LIST = "trainer/checkpoint/metadata.py"


def rows() -> list[list[str]]:
    """Of the threat model, its cells."""
    lines = read(PAGE).split(HEAD, 1)[1].splitlines()[2:]
    table = lines[: next(number for number, line in enumerate(lines) if not line.startswith("|"))]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table]


@cache
def calls() -> list[tuple[str, str, ast.Call]]:
    """(file, what is called, the call) of all code that runs on servers and nodes."""
    return [
        (relative(path), name(node.func), node)
        for path in python_files(*RUN)
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call)
    ]


def name(node: ast.expr) -> str:
    """`a.b.c` as it is written; "" for what is no name."""
    if isinstance(node, ast.Attribute):
        return f"{name(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def test_every_attacker_of_the_threat_model_has_tests_that_exist() -> None:
    assert len(rows()) > 20
    assert [cells[0] for cells in rows() if len(cells) != 4] == []
    bare = [cells[0] for cells in rows() if not [path for path in paths(cells[3]) if path.startswith("tests/")]]
    assert bare == []
    assert [path for cells in rows() for path in paths(cells[3]) if missing(path)] == []


def test_every_document_and_command_that_the_page_names_exists() -> None:
    text = read(PAGE)
    for path in [*re.findall(r"\((docs/[\w./-]+\.md)\)", text), *re.findall(r"`(docs/[\w./-]+)`", text)]:
        assert (ROOT / path).exists(), path
    for number in re.findall(r"docs/adr/(\d{4})", text):
        assert list((ROOT / "docs" / "adr").glob(f"{number}-*.md")), number
    for target in re.findall(r"`make ([\w-]+)`", text):
        assert re.search(rf"^{target}:", read(ROOT / "Makefile"), re.MULTILINE), target
    for name in re.findall(r"`manage\.py (\w+)`", text):
        assert list(ROOT.glob(f"controlplane/*/management/commands/{name}.py")), name


def test_no_program_is_started_through_a_shell() -> None:
    started = [
        f"{file}:{call.lineno}"
        for file, called, call in calls()
        if called in SHELLS
        or (called.startswith("subprocess.") and any(word.arg in ("shell", None) for word in call.keywords))
    ]
    assert started == []


def test_nothing_is_unpickled_but_from_a_closed_list_of_names() -> None:
    loose = [f"{file}:{call.lineno}" for file, called, call in calls() if called in UNPICKLES]
    assert loose == []
    whole = [
        f"{file}:{call.lineno}"
        for file, called, call in calls()
        if called == "torch.load"
        and not any(word.arg == "weights_only" and getattr(word.value, "value", 0) is True for word in call.keywords)
    ]
    assert whole == []
    own = {file for file, called, _ in calls() if called.endswith("Unpickler")}
    assert own == {CLOSED_LIST}


@pytest.mark.parametrize("cell", ["`tests/attacks/nothing.py`", "`tests/house/tree.py::test_nothing`"])
def test_a_test_that_does_not_exist_is_noticed(cell: str) -> None:
    assert missing(paths(cell)[0])
