"""Every command that a document or a page names is one that the programs' own parsers take."""

import argparse
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import typer.main
from django.core.management import get_commands, load_command_class

from agents import config as agent_config
from controlplane.cli.main import app
from tests.house.tree import read, relative, text_files

SOURCES = [
    path
    for path in text_files()
    if path.name not in ("CHANGELOG.md", "requirements.md")
    and (path.suffix == ".md" or relative(path).startswith(("frontend/src/", "deploy/", "examples/")))
]
PROGRAM = r"(?P<program>holdfast|(?:python )?manage\.py|python -m agents)"
# From the program's name to where a shell, a sentence or a string literal ends the command.
_COMMAND = re.compile(rf"(?<![\w./=-])(?<!--only ){PROGRAM} (?P<rest>[a-z-][^\n`|;&<>\"')#]*)")
_QUOTING = re.compile(rf"(?<![\w./=-])(?<!--only ){PROGRAM} (?P<rest>[a-z-](?:\"[^\"\n]*\"|[^\n`|;&<>\"')#])*)")
# What prose puts where a value belongs: `{node.name}` in the page's source, `$job` in a shell.
_HOLE = re.compile(r"\$?\{[\w.]+\}|\$\w+|\"\$\w+\"")


class Refused(Exception):
    """The program's parser does not take this command."""


def told(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Each command in the file: the program and its words. Of a page in Markdown only its code counts."""
    text = read(path)
    if path.suffix == ".md":
        fences = re.findall(r"^```.*?^```", text, flags=re.MULTILINE | re.DOTALL)
        prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
        text = "\n".join([*fences, *(word.replace("\n", " ") for word in re.findall(r"`([^`]+)`", prose))])
    pattern = _QUOTING if path.suffix == ".md" else _COMMAND
    for found in pattern.finditer(_HOLE.sub("NAME", text)):
        yield found["program"].removeprefix("python ").removeprefix("-m "), shlex.split(found["rest"], comments=True)


def check(program: str, words: list[str]) -> None:
    """Raises Refused unless the program knows the command, its options, and takes as many arguments."""
    match program:
        case "holdfast":
            check_cli(words)
        case "manage.py":
            check_manage(words)
        case _:
            unknown = {word.split("=")[0] for word in words if word.startswith("--")} - agent_flags()
            if unknown:
                raise Refused(f"the agent has no {', '.join(sorted(unknown))}")


def check_cli(words: list[str]) -> None:
    """Against the command tree that `holdfast` itself is made of."""
    command = typer.main.get_command(app)
    left = list(words)
    while True:
        try:
            _, left, _ = command.make_parser(typer.Context(command)).parse_args(left)
        except Exception as error:
            raise Refused(str(error)) from error
        commands = getattr(command, "commands", None)
        if not left or commands is None:
            break
        if left[0] not in commands:
            raise Refused(f"no command {left[0]!r} in {command.name or 'holdfast'}")
        command, left = commands[left[0]], left[1:]
    if left:
        raise Refused(f"{command.name} takes no {' '.join(left)}")


def check_manage(words: list[str]) -> None:
    """Against the command's own argparse parser. A bare name is a mention: it has to exist."""
    name, rest = words[0], words[1:]
    if name not in get_commands():
        raise Refused(f"manage.py has no {name}")
    parser = load_command_class(get_commands()[name], name).create_parser("manage.py", name)
    if not rest:
        return
    try:
        parser.parse_args(rest)
    except (SystemExit, argparse.ArgumentError, Exception) as error:
        raise Refused(f"{name}: {error}") from error


@cache
def agent_flags() -> frozenset[str]:
    """Options of `python -m agents`."""
    return frozenset(re.findall(r"add_argument\(\s*\"(--[a-z-]+)\"", read(Path(agent_config.__file__))))


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_every_command_named_is_one_that_its_program_takes(path: Path) -> None:
    wrong = []
    for program, words in told(path):
        try:
            check(program, words)
        except Refused as why:
            wrong.append(f"{program} {' '.join(words)}: {why}")
    assert wrong == []


@pytest.mark.parametrize(
    ("program", "text"),
    [
        ("holdfast", "agent enroll --server http://127.0.0.1:8000"),
        ("holdfast", "rank look first-light 1 0"),
        ("holdfast", "job submit first.yaml --dry"),
        ("holdfast", "job cancel one two"),
        ("manage.py", "enroll_node"),
        ("manage.py", "sandbox_check --loud"),
        ("agents", "--token abc"),
    ],
)
def test_a_command_that_does_not_exist_is_refused(program: str, text: str) -> None:
    with pytest.raises(Refused):
        check(program, shlex.split(text))


def test_commands_of_the_page_and_of_the_guides_are_seen() -> None:
    seen = {(relative(path), program) for path in SOURCES for program, _ in told(path)}
    page = "frontend/src/pages/OverviewPage.tsx"
    assert {(page, "holdfast"), (page, "agents"), ("frontend/src/components/DeadLetters.tsx", "manage.py")} <= seen
    assert {("docs/cli.md", "holdfast"), ("docs/operations.md", "manage.py")} <= seen
