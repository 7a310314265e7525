"""The fenced blocks of the documents, for the tests that parse and run them.

A comment `<!-- blocks: WORDS -->` right above a block says what happens between it and the block
before; `tests/integration/backend/test_documents.py` makes it happen.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.house.tree import ROOT, read, relative

_BLOCK = re.compile(
    r"(?:^<!-- blocks: (?P<note>[^\n]+) -->\n)?^```(?P<language>[^\n]*)\n(?P<text>.*?)^```$", re.M | re.S
)
_CURL = re.compile(r"(?:^|[\s(|])curl ")
_COMMAND = re.compile(r"(?:^|[\s(|])(?:holdfast (?!-)|holdfast --|(?:python )?manage\.py )")
SHELL = ("sh", "bash", "console")
FRONT = {"README.md": "sh", "ARCHITECTURE.md": "text", "CONTRIBUTING.md": "sh"}
"""Pages in the root, and what a fence without a word is there."""


@dataclass(frozen=True)
class Block:
    """`line`: of its first fence, from 1; `language`: the first word of the fence, "" for none."""

    page: Path
    line: int
    language: str
    text: str
    note: str

    @property
    def name(self) -> str:
        """For a test's own name."""
        return f"{relative(self.page)}:{self.line}"

    @property
    def asks(self) -> bool:
        """It speaks to a server with curl."""
        return self.language in SHELL and bool(_CURL.search(self.text))

    @property
    def orders(self) -> bool:
        """It gives a command of `holdfast` or `manage.py`."""
        return self.language in SHELL and bool(_COMMAND.search(self.text))

    @property
    def first(self) -> str:
        """Its page and its first line: what names it while it moves down the page."""
        return f"{relative(self.page)}: {self.text.splitlines()[0]}"


def blocks_of(page: Path) -> tuple[Block, ...]:
    """In order."""
    text = read(page)
    found = []
    for match in _BLOCK.finditer(text):
        line = text.count("\n", 0, match.start("language")) + 1
        language = match["language"].strip().partition(" ")[0] or FRONT.get(relative(page), "")
        found.append(Block(page, line, language, match["text"], (match["note"] or "").strip()))
    return tuple(found)


def guides() -> tuple[Path, ...]:
    """The pages in the root, and every page below docs and deploy."""
    below = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*.md")]
    return tuple(sorted([*(ROOT / name for name in FRONT), *below]))


def all_blocks() -> Iterator[Block]:
    """Of all guides."""
    for page in guides():
        yield from blocks_of(page)
