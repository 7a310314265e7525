"""What each revision of the protocol had on the wire.

`schema_N.json`: every struct's fields; `frames_N.json`: messages as that release sent them, in
base64. Of a revision that was released nothing changes any more. `python -m
tests.unit.protocol.golden` writes the schema of the newest one.
"""

import json
from pathlib import Path

from controlplane.protocol.commands import CommandStatement
from controlplane.protocol.frames import FromAgent, ToAgent
from controlplane.protocol.revisions import schema

FOLDER = Path(__file__).parent


def now() -> dict[str, list[str]]:
    """Of the code as it is."""
    return schema(FromAgent, ToAgent, CommandStatement)


def kept(revision: int) -> dict[str, list[str]]:
    """Of a revision. Raises FileNotFoundError where nobody has written it."""
    return json.loads((FOLDER / f"schema_{revision}.json").read_text())  # type: ignore[no-any-return]


def write(revision: int) -> None:
    """Keep the code's own as this revision's."""
    text = json.dumps(now(), indent=1, sort_keys=True)
    (FOLDER / f"schema_{revision}.json").write_text(f"{text}\n")
