"""Taking old audit rows away without breaking the chain: they are exported, then deleted, and a
signed anchor keeps the place and the hash where the rest begins. Called by `manage.py
prune_audit` alone; needs the right to delete, which the running server should not have."""

import json
from collections.abc import Callable
from datetime import datetime

from django.db import transaction

from controlplane.access import chain, reading
from controlplane.access.audit import audit
from controlplane.access.models import AuditAnchor, AuditEntry
from controlplane.runtime.clock import now


def export(write: Callable[[str], object], *, after_seq: int = 0, through_seq: int | None = None) -> int:
    """Write sealed rows as JSON, a line each, in order; returns how many."""
    query = AuditEntry.raw.filter(seq__gt=after_seq).order_by("seq")
    if through_seq is not None:
        query = query.filter(seq__lte=through_seq)
    count = 0
    for row in reading.rows(query):
        document = chain.as_document(row) if reading.sound(row) else {"id": row.id, "unreadable": True}
        write(json.dumps(document, sort_keys=True) + "\n")
        count += 1
    return count


def last_before(moment: datetime) -> int:
    """Number of the row before the first one that must stay; 0 where all must."""
    sealed = AuditEntry.raw.exclude(seq=None)
    first_kept = sealed.filter(at__gte=moment).order_by("seq").values_list("seq", flat=True).first()
    if first_kept is not None:
        return int(first_kept) - 1
    return sealed.order_by("-seq").values_list("seq", flat=True).first() or 0


def prune(through_seq: int, *, actor: str = "console") -> int:
    """Delete the rows up to and including `through_seq`, which must exist; returns how many. The
    caller has verified the chain and kept an export."""
    with transaction.atomic():
        last = AuditEntry.raw.get(seq=through_seq)
        mac = chain.anchor_mac(through_seq, last.hash, chain.keys()[0])
        AuditAnchor(at=now(), seq=through_seq, hash=last.hash, mac=mac).save(force_insert=True)
        removed, _ = AuditEntry.raw.filter(seq__lte=through_seq).delete()
        audit(actor, "audit.prune", f"through seq {through_seq}", data={"rows": removed})
    return removed
