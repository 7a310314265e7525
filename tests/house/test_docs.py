"""Documents tell the truth: links resolve, commands exist, generated pages are current."""

import json
import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from controlplane.config.env import PREFIX, Env
from tests.house.tree import ROOT, python_files, read, relative, text_files

PAGES = [path for path in text_files() if path.suffix == ".md" and "/data/" not in relative(path)]
GENERATORS = (
    "controlplane.protocol.doc",
    "controlplane.policy.states_doc",
    "controlplane.policy.signals_doc",
    "controlplane.policy.readings_doc",
    "controlplane.policy.policy_doc",
    "controlplane.jobs.maturity",
)
OPERATORS_LINES = 250
TIMEOUT_S = 60.0
# A path in backquotes that names a file or folder of this repository.
_PATH = re.compile(
    r"`((?:controlplane|agents|trainer|frontend|tests|docs|deploy|benchmarks|examples|scripts|requirements)/[\w./-]+)`"
)
_LINK = re.compile(r"\]\(([^)#\s]+)(#[^)]*)?\)")
_PICTURE = re.compile(r"<(?:img|source)\b[^>]*?\bsrc(?:set)?=\"([^\"]+)\"")
_PROSE_PATH = re.compile(r"\bdocs/[\w/-]+\.(?:md|png)\b")


def prose(path: Path) -> str:
    """The page without its fenced code."""
    return re.sub(r"^```.*?^```", "", read(path), flags=re.MULTILINE | re.DOTALL)


def code(path: Path) -> str:
    """Only its fenced code and backquoted words."""
    fences = re.findall(r"^```.*?^```", read(path), flags=re.MULTILINE | re.DOTALL)
    return "\n".join([*fences, *re.findall(r"`([^`\n]+)`", prose(path))])


def targets() -> set[str]:
    """Targets of the Makefile."""
    return set(re.findall(r"^([a-z][\w-]*):", read_makefile(), re.MULTILINE))


def read_makefile() -> str:
    return (ROOT / "Makefile").read_text(encoding="ascii")


def dependencies() -> set[str]:
    """Names in pyproject.toml, without versions and extras, and in the page's package.json."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="ascii"))["project"]
    lines = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    page = json.loads((ROOT / "frontend" / "package.json").read_text(encoding="ascii"))
    return {re.split(r"[\[=<>~! ;]", line)[0] for line in lines} | {*page["dependencies"], *page["devDependencies"]}


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_every_link_leads_somewhere(page: Path) -> None:
    pointed = [*(target for target, _ in _LINK.findall(prose(page))), *_PICTURE.findall(prose(page))]
    links = [target for target in pointed if not target.startswith(("http://", "https://", "mailto:"))]
    broken = [target for target in links if not (page.parent / target).exists()]
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_every_file_named_exists(page: Path) -> None:
    named = set(_PATH.findall(prose(page))) | set(_PROSE_PATH.findall(prose(page)))
    assert sorted(path for path in named if not (ROOT / path).exists()) == []


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_every_make_command_named_exists(page: Path) -> None:
    named = set(re.findall(r"(?:^|[`\s])make ([a-z][\w-]*)", code(page)))
    assert sorted(named - targets()) == []


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_every_module_named_as_a_command_exists(page: Path) -> None:
    named = set(re.findall(r"python -m ((?:controlplane|agents|trainer|benchmarks)[\w.]*)", code(page)))
    assert sorted(name for name in named if find_spec(name) is None) == []


@pytest.mark.parametrize("module", GENERATORS)
def test_a_generated_page_is_current(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", module, "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_setting_has_its_row() -> None:
    text = read(ROOT / "docs" / "settings.md")
    table = text[text.index("<!-- settings") : text.index("<!-- end of settings")]
    rows = re.findall(rf"^\| `({PREFIX}\w+)` \|", table, re.MULTILINE)
    assert sorted(rows) == sorted(PREFIX + name.upper() for name in Env.model_fields)


def test_every_flag_of_the_agent_has_its_row() -> None:
    text = read(ROOT / "docs" / "settings.md")
    table = text[text.index("<!-- agent settings") : text.index("<!-- end of agent settings")]
    done = subprocess.run(
        [sys.executable, "-m", "agents", "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    flags = set(re.findall(r"--[a-z-]+", done.stdout)) - {"--help"}
    assert sorted(re.findall(r"`(--[a-z-]+)`", table)) == sorted(flags)


def test_there_is_one_procedure_for_coming_back_from_a_backup_and_a_test_follows_it() -> None:
    pages = [path for path in (ROOT / "docs").glob("*.md") if path.name != "requirements.md"]
    telling = {path.name for path in pages if re.search(r"pg_restore|dropdb", read(path))}
    assert telling == {"install.md"}
    assert "(install.md#back-from-a-backup)" in read(ROOT / "docs" / "backup.md")


@pytest.mark.parametrize("name", ["operations.md", "settings.md", "nodes.md", "access.md", "backup.md"])
def test_a_page_for_operators_is_about_one_task_and_short(name: str) -> None:
    assert len(read(ROOT / "docs" / name).splitlines()) <= OPERATORS_LINES


def test_every_dependency_has_its_reason() -> None:
    text = read(ROOT / "docs" / "dependencies.md")
    assert sorted(name for name in dependencies() if f"`{name}`" not in text) == []


def test_every_adr_is_listed_and_says_its_parts() -> None:
    index = read(ROOT / "docs" / "adr" / "README.md")
    pages = sorted((ROOT / "docs" / "adr").glob("0*.md"))
    assert [page.name for page in pages if f"({page.name})" not in index] == []
    for page in pages:
        text = read(page)
        for part in ("**State**", "## Question", "## Decision", "## Why", "## Costs", "## Alternatives"):
            assert part in text, f"{page.name}: {part}"


def test_the_glossary_gives_each_word_once() -> None:
    words = re.findall(r"^\| ([^|]+?) \|", read(ROOT / "docs" / "glossary.md"), re.MULTILINE)[1:]
    assert len(words) == len(set(words))
    assert len(words) > 40


def test_the_checks_that_the_checklists_name_are_there() -> None:
    named = set(re.findall(r"`(test_\w+)`", read(ROOT / "docs" / "checklists.md")))
    there = {
        name for path in python_files("tests") for name in re.findall(r"^(?:async )?def (test_\w+)", read(path), re.M)
    }
    assert len(named) > 20 and sorted(named - there) == []


def test_hooks_are_local_and_parse() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="ascii"))
    assert [repository["repo"] for repository in hooks["repos"]] == ["local"]


def test_every_screenshot_is_in_the_gallery() -> None:
    gallery = read(ROOT / "docs" / "screenshots.md")
    pictures = sorted((ROOT / "docs" / "screenshots").glob("*.png"))
    assert [picture.name for picture in pictures if f"(screenshots/{picture.name})" not in gallery] == []
