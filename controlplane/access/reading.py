"""Reading audit rows that somebody else may have put into the table: nothing in them ends a reader.

A row can hold what no column of ours ever did, and what Python or its driver will not take: a
whole number of 5,000 digits in its JSON, a time after the year 9999 on PostgreSQL, on SQLite any
type in any column. What cannot be read comes back without its time (`at` None), and so with no
content that verifies; its links, where they can be read, are there. Called by `sealing`,
`verification`, `pruning`, the journal and the API; writes nothing.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from django.db import DataError, OperationalError, connection
from django.db.models import QuerySet

from controlplane.access import chain
from controlplane.access.models import AuditAnchor, AuditEntry

CHUNK, LOOK = 2000, 1000
LINKS = ("id", "seq", "mac", "prev_hash", "hash")
SPOILT = (DataError, ValueError, TypeError, OverflowError, RecursionError, AttributeError)
"""What a row's content raises; a lost connection is none of them."""
Way = Callable[[Sequence[int]], Iterable[AuditEntry]]


def rows(query: "QuerySet[AuditEntry]") -> Iterator[AuditEntry]:
    """The rows of `query` in its order, whole where they can be read, in bounded memory."""
    ids = query.values_list("id", flat=True).iterator(chunk_size=CHUNK)
    while chunk := list(islice(ids, CHUNK)):
        yield from whole(chunk)


def links(ids: Sequence[int]) -> list[AuditEntry]:
    """Only what ties these rows together; empty where not even that can be read."""
    return _read(ids, (_links, _nothing))


def whole(ids: Sequence[int]) -> list[AuditEntry]:
    """These rows, in this order."""
    return _read(ids, (_whole, _links, _nothing))


def sound(row: AuditEntry) -> bool:
    """Its content is of the types that the columns have, and can be written again as JSON."""
    try:
        chain.canonical(row)
    except SPOILT:
        return False
    return True


def pruned() -> Iterator[tuple[int, str, str]]:
    """(seq, hash, mac) of the newest LOOK anchors, the newest first; without what is no anchor at all."""
    for one in list(AuditAnchor.objects.order_by("-seq").values_list("id", flat=True)[:LOOK]):
        try:
            seq, digest, mac = AuditAnchor.objects.values_list("seq", "hash", "mac").get(id=one)
        except OperationalError as error:
            if not _undecodable(error):
                raise
            continue
        if type(seq) is int:
            yield seq, str(digest), str(mac)


def _read(ids: Sequence[int], ways: Sequence[Way]) -> list[AuditEntry]:
    """By the first way; a row that stops it is looked for by halves, and read by the next."""
    try:
        found = {row.id: row for row in ways[0](ids)}
    except (*SPOILT, OperationalError) as error:
        if isinstance(error, OperationalError) and not _undecodable(error):
            raise
        if len(ids) == 1:
            return _read(ids, ways[1:])
        half = len(ids) // 2
        return _read(ids[:half], ways) + _read(ids[half:], ways)
    return [found[one] for one in ids if one in found]


def _undecodable(error: OperationalError) -> bool:
    return connection.vendor == "sqlite" and "decode" in str(error)


def _whole(ids: Sequence[int]) -> Iterable[AuditEntry]:
    return AuditEntry.raw.filter(id__in=ids)


def _links(ids: Sequence[int]) -> Iterable[AuditEntry]:
    found = AuditEntry.raw.filter(id__in=ids).values(*LINKS)
    return [AuditEntry(**values) for values in found]


def _nothing(ids: Sequence[int]) -> Iterable[AuditEntry]:
    return [AuditEntry(id=one) for one in ids]
