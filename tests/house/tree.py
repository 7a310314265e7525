"""The files of the repository as the house tests see them.

Walks the checkout itself and not an index, so that a file is judged before it is
committed. Generated and vendored files are left out here, once, for every rule.
"""

import ast
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = ("controlplane", "agents", "trainer")
PURE = (
    "controlplane/protocol/",
    "controlplane/policy/",
    "controlplane/changes/",
    "controlplane/simulator/",
    "agents/core/",
)
_SOURCE_DIRS = (
    *LIBRARIES,
    "frontend/src",
    "tests",
    "benchmarks",
    "deploy",
    "docs",
    "examples",
    "scripts",
)
_SUFFIXES = frozenset(
    {".py", ".ts", ".tsx", ".css", ".md", ".yml", ".yaml", ".toml", ".sh", ".service", ".mmd", ".js", ".mjs"}
)
_SKIPPED_PARTS = frozenset({"node_modules", "__pycache__", "static", "migrations", "dist", "var"})


def relative(path: Path) -> str:
    """Path from the root, with forward slashes."""
    return path.relative_to(ROOT).as_posix()


@cache
def text_files() -> tuple[Path, ...]:
    """Every hand-written text file, sorted."""
    found = [path for path in ROOT.iterdir() if path.is_file() and path.suffix in _SUFFIXES]
    for folder in _SOURCE_DIRS:
        # What is left out is not even looked into: packages are installed there meanwhile.
        for place, below, names in os.walk(ROOT / folder):
            below[:] = [name for name in below if name not in _SKIPPED_PARTS]
            found += [path for path in (Path(place, name) for name in names) if path.suffix in _SUFFIXES]
    return tuple(sorted(path for path in set(found) if not _SKIPPED_PARTS & set(path.relative_to(ROOT).parts)))


@cache
def read(path: Path) -> str:
    """The file's text; a byte that is not UTF-8 shows as U+FFFD and so fails the ASCII rule."""
    return path.read_text(encoding="utf-8", errors="replace")


@cache
def tree(path: Path) -> ast.Module:
    """The parsed module."""
    return ast.parse(read(path), filename=str(path))


def python_files(*folders: str) -> Iterator[Path]:
    """Python files below any of `folders` (all of the repository if none is named)."""
    for path in text_files():
        if path.suffix != ".py":
            continue
        if not folders or relative(path).startswith(tuple(f"{folder.rstrip('/')}/" for folder in folders)):
            yield path


def library_files() -> Iterator[Path]:
    """Python files of the three installed packages."""
    return python_files(*LIBRARIES)
