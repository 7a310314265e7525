"""The decision journal is tied to the audit log: each decision's audit row has a digest of the whole row of
the journal, and `manage.py verify_audit` compares them. Reads only."""

import hashlib
import json
from collections.abc import Iterator
from datetime import UTC, datetime

from django.db.models import Exists, OuterRef

from controlplane.access import reading
from controlplane.access.audit import EXACT
from controlplane.access.models import AuditEntry
from controlplane.access.verification import Keys, Verdict
from controlplane.changes.diagnostics import SCHEDULED
from controlplane.recovery.models import Decision

DIGEST = "journal"
CHUNK = 500
_DIGESTED = (
    "id", "job_id", "rule", "choice", "reason_code", "sentence", "evidence", "alternatives", "actions",
    "cost_gpu_s", "routine", "mode", "applied", "epoch_before", "epoch_after", "policy_version", "decide_s", "key",
)  # fmt: skip


def digest(row: Decision) -> str:
    """SHA-256 of every column but the incident's, which is a link that may be set later; the same from both
    databases and before the row is stored."""
    content = {name: getattr(row, name) for name in _DIGESTED}
    if row.policy_documents is not None:
        # Decisions of earlier releases have none, and digests without it.
        content["policy_documents"] = row.policy_documents
    content["at"] = row.at.astimezone(UTC).isoformat(timespec="microseconds")
    content["snapshot"] = hashlib.sha256(bytes(row.snapshot)).hexdigest()
    plain = json.loads(json.dumps(content), parse_int=_whole, parse_float=_one_spelling)
    return hashlib.sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def compare(verdict: Verdict) -> int:
    """Hold every decision against its audit row; what differs, is gone or was never written by Holdfast is
    added to the verdict. Returns how many were compared. Decisions from before the first row with a digest
    are not judged."""
    compared, since = 0, None
    keys = Keys()
    for rows in _with_digest(keys):
        since = since or (rows[0].at if rows else None)
        kept = Decision.objects.in_bulk({row.decision_id for row in rows})
        for row in rows:
            compared += 1
            _compare(row, kept.get(row.decision_id), verdict)
    if since is not None:
        for decision_id in _without_row(since):
            verdict.add("edited", f"decision {decision_id}", "no audit row records it: Holdfast never made it")
    return compared


def _compare(row: AuditEntry, decision: Decision | None, verdict: Verdict) -> None:
    if decision is None:
        # Looks on schedule are forgotten after a while.
        if row.data.get("rule") != SCHEDULED:
            verdict.add("missing", f"decision {row.decision_id}", "its audit row is there, it was deleted")
        return
    if digest(decision) != row.data[DIGEST]:
        verdict.add("edited", f"decision {decision.id}", "it is not what was decided")


def _with_digest(keys: Keys) -> Iterator[list[AuditEntry]]:
    """Rows that Holdfast wrote; the others are told by `verify` and judge nothing here."""
    told = AuditEntry.raw.filter(action__startswith="decision.").order_by("id").values_list("id", flat=True)
    ids = list(told[:CHUNK])
    while ids:
        yield [row for row in reading.whole(ids) if keys.fit(row) is not None and DIGEST in row.data]
        ids = list(told.filter(id__gt=ids[-1])[:CHUNK])


def _without_row(since: datetime) -> list[str]:
    told = AuditEntry.raw.filter(decision_id=OuterRef("pk"), action__startswith="decision.")
    return list(Decision.objects.filter(~Exists(told), at__gt=since).values_list("id", flat=True)[:CHUNK])


def _whole(text: str) -> float:
    """The same of digits alone, of which a decision about a large job has tens of thousands."""
    number = int(text)
    return number if abs(number) < EXACT else _one_spelling(text)


def _one_spelling(text: str) -> float:
    """A number is one number, whether a database gives it back as 2 or as 2.0, as 1e300 or as its digits."""
    number = float(text)
    return int(number) if number.is_integer() and abs(number) < EXACT else number
