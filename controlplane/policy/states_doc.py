"""docs/states.md from the state tables: `python -m controlplane.policy.states_doc --check|--write`."""

from pathlib import Path

from controlplane.policy.transitions import TABLES, Table
from controlplane.protocol import generated

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
    return generated.keep({TARGET: render()}, arguments, what=__doc__)


if __name__ == "__main__":
    raise SystemExit(main())
