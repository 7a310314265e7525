"""Counts of refused and dropped input, so that nothing is thrown away in silence."""

from collections.abc import Collection

from django.db import transaction
from django.db.models import F

from controlplane.runtime.clock import age_s, ago, now
from controlplane.runtime.models import FrameCounter
from controlplane.runtime.text import printable

DETAIL_MAX = 500


def count(node_name: str, reason: str, *, number: int = 1, detail: str = "") -> None:
    """Add to a counter. `node_name` "?" for a peer that is not known."""
    fields = {"last_at": now(), "last_detail": printable(detail[:DETAIL_MAX])}
    changed = FrameCounter.objects.filter(node_name=node_name, reason=reason).update(
        count=F("count") + number, **fields
    )
    if changed:
        return
    with transaction.atomic():
        row, made = FrameCounter.objects.get_or_create(
            node_name=node_name, reason=reason, defaults={"count": number, **fields}
        )
        if not made:
            FrameCounter.objects.filter(pk=row.pk).update(count=F("count") + number, **fields)


def recent(node_name: str, reasons: Collection[str], within_s: float) -> tuple[int, float | None]:
    """(how many were counted in all, age in seconds of the newest) of those that were counted
    within that time; (0, None) when none was."""
    rows = FrameCounter.objects.filter(node_name=node_name, reason__in=reasons, last_at__gte=ago(within_s))
    found = list(rows.values_list("count", "last_at"))
    if not found:
        return 0, None
    return sum(number for number, _ in found), age_s(max(at for _, at in found))
