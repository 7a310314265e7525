"""What a reader of Holdfast reads: the prose of documents, the sentences of programs, identifiers.

Called by test_words.py, which holds them against `retired_words.toml`. Run as a command
(`python -m tests.house.words`) it prints how often each retired word is still there.
"""

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.house.tree import ROOT, library_files, read, relative, text_files, tree

LIST = ROOT / "tests" / "house" / "retired_words.toml"
FRONTS = ("README.md", "ARCHITECTURE.md")
NOT_PROSE = frozenset({"docs/requirements.md", "docs/protocol.md", "docs/states.md"})
"""The table of requirements, and pages that are made from the code."""
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`]*`|<!--.*?-->|\]\([^)]*\)|<[a-z/][^>]*>", re.DOTALL)
_NAME_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_TS_COMMENT = re.compile(r"/\*.*?\*/|(?<!:)//[^\n]*", re.DOTALL)
_TS_TEXT = re.compile(r"\"([^\"\n]*)\"|`([^`]*)`|>([^<>{}=;?&|()]*[A-Za-z][^<>{}=;?&|()]*)<", re.DOTALL)
_CLASSES = re.compile(r"className=(?:\"[^\"]*\"|\{[^}]*\})")


@dataclass(frozen=True)
class Retired:
    """`word`: its name in the list. `allowed`: page to the reason why it stays there."""

    word: str
    pattern: "re.Pattern[str]"
    say: str
    parts: frozenset[str]
    most_identifiers: int
    most_messages: int
    allowed: dict[str, str]

    def hits(self, text: str) -> list[str]:
        """The words found, each with a little of what stands around it."""
        return [text[max(0, hit.start() - 30) : hit.end() + 30] for hit in self.pattern.finditer(text)]


@cache
def retired() -> tuple[Retired, ...]:
    """The list."""
    rows = tomllib.loads(LIST.read_text(encoding="ascii"))["retired"]
    return tuple(
        Retired(
            word=row["word"],
            pattern=re.compile(rf"\b(?:{row['pattern']})\b", re.IGNORECASE),
            say=row["say"],
            parts=frozenset(row.get("parts", ())),
            most_identifiers=row.get("most_identifiers", 0),
            most_messages=row.get("most_messages", 0),
            allowed=row.get("allowed", {}),
        )
        for row in rows
    )


def pages() -> tuple[Path, ...]:
    """README, ARCHITECTURE and the hand-written pages of docs; decision records stay as they were decided."""
    own = [path for path in (ROOT / "docs").glob("*.md") if relative(path) not in NOT_PROSE]
    return tuple(sorted([*(ROOT / name for name in FRONTS), *own]))


def prose(text: str) -> str:
    """A page without its code, comments and link targets, in one line."""
    return " ".join(_CODE.sub(" ` ", _FENCE.sub("", text)).split())


def sentences(module: ast.Module) -> Iterator[str]:
    """Literal texts with a blank in them, of f-strings too: what a program says. Docstrings are not said."""
    silent = {
        id(node.value)
        for node in ast.walk(module)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(module):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or id(node) in silent:
            continue
        if " " in node.value.strip():
            yield node.value


def page_texts(source: str) -> Iterator[str]:
    """Texts of the page's source: string literals with a blank in them, and what stands between tags."""
    for quoted, template, between in _TS_TEXT.findall(_CLASSES.sub("", _TS_COMMENT.sub("", source))):
        text = quoted or re.sub(r"\$\{[^}]*\}", " ", template) or between
        if " " in text.strip():
            yield text


@cache
def messages() -> tuple[tuple[str, str], ...]:
    """(file, text) of all that the programs and the page say."""
    found = [(relative(path), text) for path in library_files() for text in sentences(tree(path))]
    for path in text_files():
        name = relative(path)
        if name.startswith("frontend/src/") and name.endswith((".ts", ".tsx")) and ".test." not in name:
            found += [(name, text) for text in page_texts(read(path)) if ".gen." not in name]
    return tuple(found)


@cache
def name_parts() -> Counter[str]:
    """How many definitions (functions, classes, arguments, fields, variables) have each word in their name."""
    parts: Counter[str] = Counter()
    for path in library_files():
        for node in ast.walk(tree(path)):
            for name in _defined(node):
                parts.update({part.lower() for part in _NAME_PART.findall(name)})
    return parts


def _defined(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id


def in_pages(entry: Retired) -> list[str]:
    """Where the word stands though it is not allowed there."""
    return [
        f"{relative(path)}: ...{hit}..."
        for path in pages()
        if relative(path) not in entry.allowed
        for hit in entry.hits(prose(read(path)))
    ]


def in_messages(entry: Retired) -> list[str]:
    """Texts of programs and page that have the word."""
    return [f"{name}: ...{hit}..." for name, text in messages() for hit in entry.hits(text)]


def in_identifiers(entry: Retired) -> int:
    """Definitions that have it in their name."""
    return sum(name_parts()[part] for part in entry.parts)


if __name__ == "__main__":
    for one in retired():
        numbers = len(in_pages(one)), len(in_messages(one)), in_identifiers(one)
        print("{:14} pages {:4}  messages {:4} (most {})  identifiers {:4} (most {})".format(
            one.word, *numbers[:2], one.most_messages, numbers[2], one.most_identifiers))  # fmt: skip
