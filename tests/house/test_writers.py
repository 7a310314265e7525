"""Rows are written by commit modules (docs/adr/0038-the-write-side-is-a-pure-core.md).

The list of modules beside them may only become shorter: what moves into the core leaves it.
"""

import ast

from tests.house import rules
from tests.house.tree import ROOT, library_files, relative, tree

RECOVERY = "controlplane/recovery/"
COMMITS = (
    "bill_rows", "breaker_rows", "commit", "diagnostics", "holding", "kept", "kept_saves", "ledger_rows",
    "request_rows", "resumption_rows", "shared_rows", "signals",
)  # fmt: skip
"""They carry out what the core has told them, and decide nothing."""
STILL = (
    "apply",
    "certificate",
    "clock_set",
    "deadletter",
    "doubts",
    "fleet_pass",
    "incidents",
    "ingest",
    "late",
    "ledger",
    "numerics",
    "recompute",
    "reconcile",
    "resealing",
    "speed",
    "steps",
    "torch_analysis",
)
MOST = 17


def writers() -> dict[str, list[str]]:
    """Module of `controlplane/recovery` to its writes."""
    files = [path for path in library_files() if path.parent == ROOT / RECOVERY]
    found = {path.stem: rules.orm_writes(tree(path)) for path in files}
    return {name: writes for name, writes in found.items() if writes}


def test_rows_are_written_by_commit_modules_and_by_those_that_stand_here_still() -> None:
    assert sorted(writers()) == sorted({*COMMITS, *STILL})


def test_there_are_never_more_of_them() -> None:
    assert len(STILL) <= MOST


def test_the_core_and_the_simulator_write_no_row_of_the_database() -> None:
    pure = [
        path for path in library_files() if relative(path).startswith(("controlplane/changes/", "controlplane/policy/"))
    ]
    assert [found for path in pure for found in rules.orm_writes(tree(path))] == []


def test_each_way_to_write_a_row_is_seen() -> None:
    ways = (
        "Job.objects.create(id=1)",
        "Rank.objects.bulk_create(rows, 500)",
        "rows.filter(pk=1).update(state='x')",
        "rows.update(**columns)",
        "row.save(update_fields=['state'])",
        "row.delete()",
        "guard.move(row, 'job', 'running')",
        "bulk.insert(Rank, {}, ('rank',), rows)",
    )
    assert [way for way in ways if not rules.orm_writes(ast.parse(way))] == []
    reads = ("digest.update(data)", "holding.create(attempt, change)", "Job.objects.filter(pk=1).first()")
    assert [read for read in reads if rules.orm_writes(ast.parse(read))] == []
