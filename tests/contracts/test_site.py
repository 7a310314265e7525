"""The documents make a site: every page is in its navigation, every link leads somewhere, nothing is fetched."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.house.blocks import blocks_of
from tests.house.tree import ROOT, read

DOCS = ROOT / "docs"
BUILD_S = 110.0
NEEDS_SPHINX = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("sphinx", "myst_parser", "furo")),
    reason="what makes the site is not installed (requirements/docs.txt)",
)
# What a browser fetches by itself, as opposed to links that somebody follows.
_FETCHED = re.compile(r"<(?:script|img|iframe|source)[^>]*\ssrc=\"(https?:)?//|<link[^>]*\shref=\"(https?:)?//")


def build(source: Path, out: Path) -> "subprocess.CompletedProcess[str]":
    """As `make docs` does."""
    (line,) = re.findall(r"^\t\$\(PY\) -m sphinx (.+) docs var/docs$", read(ROOT / "Makefile"), re.MULTILINE)
    argv = [sys.executable, "-m", "sphinx", *line.split(), "-d", str(out / ".trees"), str(source), str(out)]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=BUILD_S, check=False)


def listed() -> set[str]:
    """Pages that the navigation names; a pattern stands for what it matches."""
    found: set[str] = set()
    for block in blocks_of(DOCS / "index.md"):
        if block.language == "{toctree}":
            words = [line for line in block.text.splitlines() if line and not line.startswith(":")]
            found |= {page.relative_to(DOCS).as_posix() for word in words for page in DOCS.glob(f"{word}.md")}
            assert all(any(DOCS.glob(f"{word}.md")) for word in words), words
    return found


def test_the_navigation_lists_every_page() -> None:
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")} - {"index.md"}
    assert listed() == pages


@NEEDS_SPHINX
def test_the_site_is_made_of_all_pages_without_a_warning_and_fetches_nothing(tmp_path: Path) -> None:
    done = build(DOCS, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    for page in DOCS.rglob("*.md"):
        made = (tmp_path / page.relative_to(DOCS)).with_suffix(".html")
        assert made.exists(), page
        assert _FETCHED.search(made.read_text()) is None, page


@NEEDS_SPHINX
def test_a_link_that_leads_nowhere_fails_it(tmp_path: Path) -> None:
    """Each on a page of its own, all of which are gone through and told."""
    links = {"page": "[nowhere](nowhere.md)", "part": "[nowhere](other.md#nowhere)", "here": "[nowhere](#nowhere)"}
    source = tmp_path / "docs"
    source.mkdir()
    (source / "conf.py").write_text(read(DOCS / "conf.py"))
    (source / "other.md").write_text("# Other\n\n## A part\n")
    toctree = "\n".join(["other", *links])
    (source / "index.md").write_text(f"# Start\n\n[part](other.md#a-part)\n\n```{{toctree}}\n{toctree}\n```\n")
    for name, link in links.items():
        (source / f"{name}.md").write_text(f"# Page\n\n{link}\n")
    done = build(source, tmp_path / "out")
    assert done.returncode != 0
    told = {name for name in (*links, "other", "index") if f"{source / name}.md:" in done.stderr}
    assert told == set(links), done.stderr
    for name in links:
        (source / f"{name}.md").write_text("# Page\n\n[part](other.md#a-part)\n")
    assert build(source, tmp_path / "sound").returncode == 0
