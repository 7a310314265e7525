"""The audit log as JSON lines: each sealed row with all that is digested and its digests, in the order of the chain.

Called by `GET /audit/export`, `manage.py export_audit` and `prune_audit`; reads only, in bounded memory.
"""

import json
from collections.abc import Callable, Iterable, Iterator

from django.db.models import QuerySet

from controlplane.access import chain, reading
from controlplane.access.models import AuditEntry

PAGE = 500
"""Rows read at once."""


def export(write: Callable[[str], object], *, after_seq: int = 0, through_seq: int | None = None) -> int:
    """Write sealed rows after `after_seq`, up to `through_seq` where it is given; returns how many."""
    query = AuditEntry.raw.filter(seq__gt=after_seq).order_by("seq")
    if through_seq is not None:
        query = query.filter(seq__lte=through_seq)
    count = 0
    for line in lines(reading.rows(query)):
        write(line)
        count += 1
    return count


def page(rows: "QuerySet[AuditEntry]", *, after_seq: int, through_seq: int, limit: int) -> tuple[int, list[str]]:
    """Up to `limit` of the sealed ones among `rows` after `after_seq`: the number of the last (`after_seq` where there
    is none) and their lines. A number that is no whole one, which SQLite takes too, is in no chain."""
    found = rows.filter(seq__gt=after_seq, seq__lte=through_seq).order_by("seq").values_list("id", "seq")[:limit]
    places = {one: seq for one, seq in found if type(seq) is int}
    return max(places.values(), default=after_seq), list(lines(reading.whole(list(places))))


def lines(rows: Iterable[AuditEntry]) -> Iterator[str]:
    """Each as a line; of one that cannot be read only that it is there."""
    for row in rows:
        document = chain.as_document(row) if reading.sound(row) else _unreadable(row)
        yield json.dumps(document, sort_keys=True) + "\n"


def _unreadable(row: AuditEntry) -> dict[str, object]:
    return {"id": row.id, "seq": row.seq if type(row.seq) is int else None, "unreadable": True}
