"""The job spec as a JSON Schema (draft 2020-12), for editors and scripts.

Made from the types and the tables of ranges that the linter goes by; what spans fields is the
linter's alone, so a document that fits may still be refused at submit. Printed in
docs/job.schema.json: `python -m controlplane.protocol.spec_schema --check | --write`.
"""

import json
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

from controlplane.protocol import generated
from controlplane.protocol.spec import JobSpec
from controlplane.protocol.spec_limits import KEY_PATTERNS, MAX_ARGUMENTS, MAX_ENTRIES, MAX_TEXT, PATTERNS, RANGES

PATH = Path(__file__).resolve().parents[2] / "docs" / "job.schema.json"
ADDRESS = "https://json-schema.org/draft/2020-12/schema"


def spec_schema() -> dict[str, Any]:
    """The whole schema, its sections under `$defs` by their names in docs/protocol.md."""
    (reference,), parts = msgspec.json.schema_components([JobSpec], ref_template="#/$defs/{name}")
    for pointer, owner, name in _fields(inspect.type_info(JobSpec), ""):
        field = parts[owner]["properties"][name]
        # A field may be null, or a word, beside the number or text that the tables speak of.
        for branch in field.get("anyOf", [field]):
            _limit(branch, pointer)
    for part in parts.values():
        part["description"] = " ".join(part.get("description", "").split())
    return {"$schema": ADDRESS, "title": "Holdfast job", **reference, "$defs": parts}


def _fields(kind: inspect.Type, pointer: str) -> Iterator[tuple[str, str, str]]:
    """(pointer, name of its section's type, name) of every field."""
    if not isinstance(kind, inspect.StructType):
        return
    for field in kind.fields:
        here = f"{pointer}/{field.encode_name}"
        yield here, kind.cls.__name__, field.encode_name
        yield from _fields(field.type, here)


def _limit(branch: dict[str, Any], pointer: str) -> None:
    match branch.get("type"):
        case "integer" | "number" if pointer in RANGES:
            branch["minimum"], branch["maximum"] = RANGES[pointer]
        case "string" if "enum" not in branch:
            branch["maxLength"] = MAX_TEXT
            if pointer in PATTERNS:
                branch["pattern"] = f"^{PATTERNS[pointer][0].pattern}$"
        case "object" if "additionalProperties" in branch:
            branch["maxProperties"] = MAX_ENTRIES
            if pointer in KEY_PATTERNS:
                branch["propertyNames"] = {"pattern": f"^{KEY_PATTERNS[pointer][0].pattern}$"}
        case "array":
            branch["maxItems"] = MAX_ARGUMENTS


@cache
def text() -> str:
    """As it is printed."""
    return json.dumps(spec_schema(), indent=1, sort_keys=True) + "\n"


def main(argv: list[str]) -> int:
    """Write the page, or fail when the one on disk is stale."""
    return generated.keep({PATH: text()}, argv, what=__doc__)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
