"""The audit log as one answer of JSON lines, read page by page while it is sent.

The read goes up to the row that was the newest when it began, so it ends, and no page is held longer than it is sent.
"""

from collections.abc import AsyncIterator, Mapping
from typing import Any

from asgiref.sync import sync_to_async
from django.core.exceptions import PermissionDenied
from django.db import close_old_connections

from controlplane.access import exporting, sealing
from controlplane.access.models import AuditEntry, Scope
from controlplane.access.standing import Standing
from controlplane.access.watch import watch


async def stream(
    wanted: Mapping[str, Any], reader: Standing, *, after_seq: int, limit: int | None
) -> AsyncIterator[bytes]:
    """Lines of the sealed rows after `after_seq` that are `wanted`, `limit` at most. Raises PermissionDenied where the
    reader may no longer read: the answer breaks off, so that nobody takes it for whole."""
    through_seq = await sync_to_async(_newest)()
    left = limit
    async with watch().guarded(reader, Scope.ADMIN) as watched:
        while left is None or left > 0:
            if watched.ended.is_set():
                raise PermissionDenied(watched.reason)
            size = exporting.PAGE if left is None else min(left, exporting.PAGE)
            last, lines = await sync_to_async(_page)(wanted, after_seq, through_seq, size)
            yield "".join(lines).encode()
            if last <= after_seq:
                return
            after_seq, left = last, None if left is None else left - size


def _newest() -> int:
    return sealing.head().seq


def _page(wanted: Mapping[str, Any], after_seq: int, through_seq: int, size: int) -> tuple[int, list[str]]:
    """Outside a request Django returns no connection by itself."""
    try:
        rows = AuditEntry.raw.filter(**wanted)
        return exporting.page(rows, after_seq=after_seq, through_seq=through_seq, limit=size)
    finally:
        close_old_connections()
