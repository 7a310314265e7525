"""The hand-written guides to the API and the command line leave nothing out."""

import json
import re
from collections.abc import Iterator

from typer import Typer

from controlplane.api.problems import TABLE
from controlplane.changes.due import certificates
from controlplane.cli.exits import MEANINGS
from controlplane.cli.main import app
from controlplane.recovery import proof
from tests.house.tree import ROOT, read

OPERATIONS = read(ROOT / "docs" / "operations.md")
API = read(ROOT / "docs" / "api.md")
CLI = read(ROOT / "docs" / "cli.md")


def operations() -> set[str]:
    """Paths below /api/v1 with the guide's short name for a job: `/jobs/{job}:cancel`."""
    schema = json.loads((ROOT / "controlplane" / "api" / "openapi.json").read_text(encoding="ascii"))
    return {path.removeprefix("/api/v1").replace("{job_id}", "{job}") for path in schema["paths"]}


def told_paths() -> set[str]:
    """Paths in backquotes; one that begins with a colon is another verb of the one before it."""
    found: set[str] = set()
    last = ""
    for word in re.findall(r"`(?:GET |POST )?([/:][\w/{}:.-]+)`", API):
        path = last.rsplit(":", 1)[0] + word if word.startswith(":") else word
        found.add(path)
        last = path
    return found


def commands() -> set[str]:
    """`job submit`, `login`: every command of the program."""
    return set(commands_of(app, ""))


def commands_of(group: Typer, before: str) -> Iterator[str]:
    """Of a group and of those within it."""
    for command in group.registered_commands:
        assert command.callback is not None
        yield before + (command.name or (command.callback.__name__ if before else ""))
    for inner in group.registered_groups:
        assert inner.typer_instance is not None
        yield from commands_of(inner.typer_instance, f"{before}{inner.name} ")


def told_commands() -> set[str]:
    """Commands in the first column; a short form belongs to the group before it."""
    found: set[str] = set()
    for row in re.findall(r"^\| (`holdfast .+?) \|", CLI, re.MULTILINE):
        group = ""
        for text in re.findall(r"`([^`]+)`", row):
            words = [word for word in text.split() if word.islower() and word.replace("-", "").isalpha()]
            if words[0] == "holdfast":
                words = words[1:]
                group = " ".join(words[:-1])
                found.add(" ".join(words))
            else:
                found.add(" ".join(words) if not group else f"{group} {words[0]}")
    return found


def test_every_path_of_the_api_is_in_its_guide() -> None:
    assert sorted(operations() - told_paths()) == []


def test_every_kind_of_problem_is_in_the_guide() -> None:
    assert sorted(kind for kind in TABLE if f"`{kind}`" not in API) == []


def test_the_guide_names_the_commands_that_exist_and_no_others() -> None:
    assert told_commands() == commands()


def test_every_exit_code_is_in_the_guide() -> None:
    rows = dict(re.findall(r"^\| (\d+) \| (.+?) \|$", CLI, re.MULTILINE))
    assert {code: meaning.replace("`", "") for code, meaning in rows.items()} == {
        str(code.value): meaning for code, meaning in MEANINGS.items()
    }


def test_how_long_a_certificate_is_pending_is_what_the_code_waits() -> None:
    words = " ".join(OPERATIONS.split())
    assert f'"pending": {proof.GIVE_UP_S:.0f} s at most from its turn' in words
    assert f"{certificates.GIVE_UP_S:.0f} s if no run is possible" in words
    assert f"trains for at most {proof.TRAIN_S:.0f} s" in words
