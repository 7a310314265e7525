"""Faults of a document that a command sent, said of the file that they are in: its name, and the line if there is one.

The server saw a text and answers with pointers into it. Used by commands that send a file.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from controlplane.cli.exits import CliError
from controlplane.cli.output import note

BODY = frozenset({"/reason", "/parent", "/job_id"})
"""Of the request, and not of the file."""
TEXT = "/text"


@contextmanager
def of_file(file: Path) -> Iterator[None]:
    """Raises CliError in place of the server's refusal of what `file` says; faults are written first."""
    from controlplane.sdk.errors import InvalidError

    try:
        yield
    except InvalidError as error:
        problem = error.problem
        if not problem.errors:
            raise
        lines = lines_of(file)
        for fault in problem.errors:
            note(where(file, fault.pointer, fault.message, lines) + (f"\n    fix: {fault.fix}" if fault.fix else ""))
        raise CliError(str(error)) from error


def where(file: Path, pointer: str, message: str, lines: dict[str, int]) -> str:
    """`policy.yaml, line 2: ...` for a fault of the text, `policy.yaml, line 2: /field: ...` for one of a field."""
    if pointer in BODY:
        return f"{pointer}: {message}"
    if pointer == TEXT:
        found = re.match(r"line (\d+): (.*)", message, re.DOTALL)
        return f"{file}, line {found[1]}: {found[2]}" if found else f"{file}: {message}"
    at = next((lines[name] for name in _upwards(pointer) if name in lines), None)
    place = f"{file}, line {at}" if at is not None else str(file)
    return f"{place}: {pointer}: {message}" if pointer else f"{place}: {message}"


def lines_of(file: Path) -> dict[str, int]:
    """The line (from 1) of each key of a document in YAML or JSON, by its pointer; none where it is no document."""
    import yaml

    try:
        root = yaml.compose(file.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return {}
    return dict(_keys(root, "")) if isinstance(root, yaml.MappingNode) else {}


def _keys(node: object, at: str) -> Iterator[tuple[str, int]]:
    import yaml

    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        if isinstance(key, yaml.ScalarNode):
            name = f"{at}/{key.value.replace('~', '~0').replace('/', '~1')}"
            yield name, key.start_mark.line + 1
            yield from _keys(value, name)


def _upwards(pointer: str) -> Iterator[str]:
    while pointer:
        yield pointer
        pointer = pointer.rpartition("/")[0]
