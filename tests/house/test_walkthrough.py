"""docs/WALKTHROUGH.md leads through the code as it is: each link names a function that its file has."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.house.tree import ROOT, read, tree

PAGE = ROOT / "docs" / "WALKTHROUGH.md"
MOST_STOPS = 12
"""Of the walk of a rank that exits."""
_CODE = re.compile(r"\[`([\w.]+)`\]\(\.\./([\w/.-]+)\)")
_STOP = re.compile(r"^\d+\. (.*?)(?=^\d+\. |^\S|\Z)", re.MULTILINE | re.DOTALL)


def links(text: str) -> list[tuple[str, str]]:
    """(function, file) of each link to code."""
    return [(name, file) for name, file in _CODE.findall(" ".join(text.split()))]


def walk(heading: str) -> list[str]:
    """The stops below a heading."""
    (part,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", read(PAGE), re.MULTILINE | re.DOTALL)
    return _STOP.findall(part)


@cache
def names(file: str) -> frozenset[str]:
    """Functions and classes of a file, methods as `Class.method`."""
    path = ROOT / file
    if path.suffix in (".ts", ".tsx"):
        return frozenset(re.findall(r"^export (?:function|class) (\w+)", read(path), re.MULTILINE))
    found = set()
    for node in tree(path).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            inner = (one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef))
            found |= {f"{node.name}.{one.name}" for one in inner}
    return frozenset(found)


def missing(text: str) -> list[str]:
    """Links whose file is gone or has no such function."""
    return [f"{file}: {name}" for name, file in links(text) if not (ROOT / file).is_file() or name not in names(file)]


def test_every_function_is_where_its_link_says() -> None:
    assert missing(read(PAGE)) == []


@pytest.mark.parametrize("heading", ["An uncorrectable ECC error", "A rank that exits", "The proof afterwards"])
def test_every_stop_links_to_a_function(heading: str) -> None:
    stops = walk(heading)
    assert len(stops) >= 5
    assert [stop for stop in stops if not links(stop)] == []


def test_a_dead_rank_is_followed_in_a_dozen_stops_and_through_no_file_twice() -> None:
    stops = walk("A rank that exits")
    files = [file for stop in stops for _, file in links(stop)]
    assert len(stops) <= MOST_STOPS
    assert len(files) == len(set(files))


@pytest.mark.parametrize(
    "link",
    [
        "[`decide`](../controlplane/policy/gone.py)",
        "[`decided`](../controlplane/policy/decide.py)",
        "[`Link.walk`](../agents/link/client.py)",
        "[`NoPage`](../frontend/src/pages/NodePage.tsx)",
    ],
)
def test_a_link_that_leads_nowhere_is_noticed(link: str) -> None:
    assert missing(link)
    assert missing("[`decide`](../controlplane/policy/decide.py)") == []


def test_the_page_stands_where_its_links_begin() -> None:
    assert Path("docs/WALKTHROUGH.md") == PAGE.relative_to(ROOT)
