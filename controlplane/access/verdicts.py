"""What `manage.py verify_audit` found is kept, so that who reads the log sees up to where it was verified, and when.

Signed as the rows of the log are: who can write to the database but holds no key makes no verdict.
"""

from datetime import UTC

from controlplane.access import chain
from controlplane.access.models import AuditVerdict
from controlplane.access.verification import Verdict
from controlplane.runtime.clock import now

LOOK = 20
"""So many of the newest rows are looked at for one that Holdfast wrote."""
MAX_WORDS = 500


def keep(verdict: Verdict) -> AuditVerdict:
    """Append the verdict of a walk that is over."""
    fault = verdict.faults[0] if verdict.faults else None
    row = AuditVerdict(
        at=now(),
        rows=verdict.rows,
        seq=verdict.head.seq,
        hash=verdict.head.hash,
        broken=verdict.broken,
        first_fault="" if fault is None else f"{fault.kind}: {fault.row}: {fault.detail}"[:MAX_WORDS],
    )
    row.mac = chain.verdict_mac(_content(row), chain.keys()[0])
    row.save(force_insert=True)
    return row


def newest() -> AuditVerdict | None:
    """The newest that a holder of the key wrote; None: nobody has verified the log, or only others claim it."""
    keys = chain.keys()
    rows = AuditVerdict.objects.order_by("-id")[:LOOK]
    # By its time: an older verdict that was copied to the end does not hide a newer one.
    found = (row for row in rows if any(chain.verdict_mac(_content(row), key) == row.mac for key in keys))
    return max(found, key=lambda row: row.at, default=None)


def _content(row: AuditVerdict) -> list[object]:
    at = row.at.astimezone(UTC).isoformat(timespec="microseconds")
    return [at, row.rows, row.seq, row.hash, row.broken, row.first_fault]
