"""Taking old audit rows away without breaking the chain: they are exported, then deleted, and a
signed anchor keeps the place and the hash where the rest begins. Called by `manage.py
prune_audit` alone; needs the right to delete, which the running server should not have."""

from datetime import datetime

from django.db import transaction

from controlplane.access import chain
from controlplane.access.audit import audit
from controlplane.access.models import AuditAnchor, AuditEntry
from controlplane.runtime.clock import now


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
