"""docs/states.md from the state tables: `python -m controlplane.policy.states_doc --check|--write`."""

import argparse
import sys
from pathlib import Path

from controlplane.policy.transitions import TABLES, Table

TARGET = Path(__file__).resolve().parents[2] / "docs" / "states.md"
HEAD = """# States

Generated from `controlplane/policy/transitions.py` by `make generated`; do not edit.
A move that is not listed is refused with `IllegalTransition`.
"""


def render() -> str:
    """The whole page."""
    return "\n".join([HEAD, *(_section(name, table) for name, table in TABLES.items())])


def _section(name: str, table: Table) -> str:
    start = next(iter(table))
    diagram = [f"    [*] --> {start}"]
    rows = []
    for before, moves in table.items():
        if not moves:
            diagram.append(f"    {before} --> [*]")
            rows.append(f"| {before} | | final |")
        for after, reason in moves.items():
            diagram.append(f"    {before} --> {after}")
            rows.append(f"| {before} | {after} | {reason} |")
    lines = [
        f"## {name.capitalize()}",
        "",
        "```mermaid",
        "stateDiagram-v2",
        *diagram,
        "```",
        "",
        "| from | to | when |",
        "|---|---|---|",
        *rows,
        "",
    ]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Write the page, or fail when the one on disk is stale."""
    parser = argparse.ArgumentParser(description=__doc__)
    choice = parser.add_mutually_exclusive_group(required=True)
    choice.add_argument("--check", action="store_true")
    choice.add_argument("--write", action="store_true")
    options = parser.parse_args(arguments)
    text = render()
    if options.write:
        TARGET.write_text(text, encoding="utf-8")
        return 0
    if TARGET.exists() and TARGET.read_text(encoding="utf-8") == text:
        return 0
    sys.stderr.write("docs/states.md is stale: run `make generated`\n")
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
