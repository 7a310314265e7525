"""Steps of large jobs in rows: what each batch of reports told is a row of its own until the step is over, then one.

A job of up to `LARGE_RANKS` ranks keeps what they told in the columns of its step's row, which is read and written
whole. Of a larger one each batch adds a part, so that nothing that grows with the job is written again; once reports
of a step have come for `SETTLED_S` its parts are packed into its row (`changes.packing`), which then is as long as what
the ranks of one replica tell and what differs. A report that comes later is a part again, until the next step packs
it. The job is locked where a batch is applied and where a step is packed.
"""

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from django.db import connection
from django.db.models import QuerySet

from controlplane.changes.launches import REPORTED_AT_ONCE_RANKS
from controlplane.changes.packing import Packed, packed, packed_whole, unpacked
from controlplane.jobs.models import StepPart, StepRecord
from controlplane.runtime.clock import ago
from controlplane.runtime.pieces import batched
from controlplane.runtime.prepared import MOMENT, NUMBER, TEXT, Change, Prepared, Several

LARGE_RANKS = REPORTED_AT_ONCE_RANKS
"""What is told at once by all ranks is kept in one row."""
SETTLED_S = 10.0
"""As old as a step is when its parts are packed: agents tell of it within a moment of it."""
PACKED_A_BATCH = 4
"""Steps that one batch packs at most: more than it begins, so that a backlog becomes shorter."""
STEPS_A_QUERY = 100
FIELDS = (
    "epoch", "at", "loss", "grad_norm", "step_time_s", "exchange_s", "stall_s", "tokens", "contributors",
    "micro_batches", "trained", "parameter_hashes", "packed", "in_parts",
)  # fmt: skip
_STEPS: Prepared[StepRecord] = Prepared(
    lambda job, attempt, steps: StepRecord.objects.filter(job=job, attempt=attempt, step__in=steps),
    job=TEXT, attempt=NUMBER, steps=Several(NUMBER),
)  # fmt: skip
_PARTS: Prepared[tuple[int, Packed]] = Prepared(
    lambda steps: StepPart.objects.filter(step__in=steps).order_by("pk").values_list("step_id", "content"),
    steps=Several(NUMBER),
)
_ADD = f'INSERT INTO "{StepPart._meta.db_table}" ("step_id", "content") VALUES (%s, %s)'  # noqa: S608 - our own names


def _settled(job: Any, before: Any) -> QuerySet[StepRecord]:
    rows = StepRecord.objects.filter(job=job, in_parts=True, at__lt=before)
    return rows.order_by("attempt", "step")[:PACKED_A_BATCH]


_SETTLED = Prepared(_settled, job=TEXT, before=MOMENT)


def read(job_id: str, attempt: int, steps: Collection[int]) -> list[StepRecord]:
    """Those of these steps that are there, as they are kept."""
    return _STEPS(job=job_id, attempt=attempt, steps=steps)


def values_of(row: StepRecord) -> dict[str, Any]:
    """Of what may change."""
    return {name: getattr(row, name) for name in FIELDS}


def write_changes(rows: Sequence[tuple[StepRecord, Mapping[str, Any]]]) -> list[tuple[str, ...]]:
    """Write of each row what is not as it was before, and nothing else: most of a rank's report is in its row. Returns
    the columns' names, of each."""
    found, by_names = list[tuple[str, ...]](), defaultdict[tuple[str, ...], list[dict[str, Any]]](list)
    for row, before in rows:
        values = values_of(row)
        names = tuple(name for name, value in values.items() if value != before[name])
        found.append(names)
        if names:
            by_names[names].append({"row": row.pk, **{name: values[name] for name in names}})
    for names, changes in by_names.items():
        _changing(names).each(changes)
    return found


@cache
def _changing(names: tuple[str, ...]) -> Change:
    """These columns of a step's row: there are a few dozen such sets at most."""
    fields: dict[str, Any] = {name: StepRecord._meta.get_field(name) for name in names}
    return Change(lambda row, **values: (StepRecord.objects.filter(pk=row), values), row=NUMBER, **fields)


def whole(rows: Iterable[StepRecord]) -> list[StepRecord]:
    """The same rows with all that was told in `micro_batches`, `trained` and `parameter_hashes`, whatever form it is
    kept in."""
    found = _with_parts(rows)
    for row in found:
        if not row.in_parts and row.packed is not None:
            _fill(row, [row.packed])
    return found


def with_parts(rows: Iterable[StepRecord]) -> list[StepRecord]:
    """As `whole` for steps in parts; those that are packed stay so: `jobs.present` reads what is asked of them."""
    return _with_parts(rows)


def has_state_hashes(row: StepRecord) -> bool:
    """Some rank told the hash of its state; of what `with_parts` gave."""
    return bool(row.parameter_hashes or (row.packed or {}).get("hashes"))


def add_parts(parts: Iterable[tuple[StepRecord, Packed]]) -> None:
    """What a batch told of steps, whose rows are there."""
    rows = [(row.pk, json.dumps(part)) for row, part in parts]
    if rows:
        with connection.cursor() as cursor:
            cursor.executemany(_ADD, rows)


def pack_settled(job_id: str) -> list[StepRecord]:
    """Pack steps of the job that are settled, the oldest first; returns them. The job is locked."""
    rows = _with_parts(_SETTLED(job=job_id, before=ago(SETTLED_S)))
    for row in rows:
        _pack(row)
    return rows


def _pack(row: StepRecord) -> None:
    row.contributors = sum(bool(ids) for ids in row.micro_batches.values())
    row.packed, row.in_parts = packed_whole(row), False
    StepRecord.objects.filter(pk=row.pk).update(packed=row.packed, contributors=row.contributors, in_parts=False)
    StepPart.objects.filter(step=row.pk).delete()


def _with_parts(rows: Iterable[StepRecord]) -> list[StepRecord]:
    found = list(rows)
    # What an earlier release wrote of it is in the columns.
    apart = {row.pk: [packed(row), row.packed or {}] for row in found if row.in_parts}
    for some in batched(apart, STEPS_A_QUERY):
        for step, part in _PARTS(steps=some):
            apart[step].append(part)
    for row in found:
        if row.in_parts:
            _fill(row, apart[row.pk])
            row.contributors = sum(bool(ids) for ids in row.micro_batches.values())
    return found


def _fill(row: StepRecord, parts: Sequence[Packed]) -> None:
    whole_of_it = unpacked(*parts)
    row.micro_batches, row.trained = whole_of_it.micro_batches, whole_of_it.trained
    row.parameter_hashes = whole_of_it.parameter_hashes
