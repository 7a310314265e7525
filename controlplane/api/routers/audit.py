"""The audit log, for administrators: read only, since nothing writes it but the acts themselves."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from ninja import Query, Router, Schema
from pydantic import AwareDatetime, Field

from controlplane.access import actors, reading, sealing, verdicts
from controlplane.access.models import AuditEntry, Scope
from controlplane.api import audit_export, pages
from controlplane.api.auth import needs, principal_of
from controlplane.api.bodies import send
from controlplane.api.edge import describe
from controlplane.protocol import rest
from controlplane.runtime.clock import iso
from controlplane.runtime.events import newest_seq

router = Router(tags=["audit"])
MAX_LINES = 5000
NO_TIME = datetime.fromtimestamp(0, UTC)
SPOILT = "This row cannot be read, so Holdfast did not write it: `manage.py verify_audit` says where it stands."
Exact = Annotated[str | None, Field(max_length=120)]


class AuditWhich(Schema):
    """Which rows; texts are compared whole, `action` also by its beginning with `*`."""

    actor: Annotated[Exact, Field(description="`user:NAME`, `token:ID`, `node:NAME`, `policy`, ...")] = None
    action: Annotated[Exact, Field(description="Such as `job.cancel`; `login.*` for all that begin so.")] = None
    subject: Exact = None
    request_id: Exact = None
    decision_id: Exact = None
    since: Annotated[AwareDatetime | None, Field(description="Not before this instant.")] = None
    until: Annotated[AwareDatetime | None, Field(description="Before this instant.")] = None

    def wanted(self) -> dict[str, str | datetime]:
        """As the query set takes it."""
        exact = {name: getattr(self, name) for name in ("actor", "subject", "request_id", "decision_id")}
        found: dict[str, str | datetime] = {name: value for name, value in exact.items() if value is not None}
        if self.action is not None:
            begins = self.action.endswith("*")
            found["action__startswith" if begins else "action"] = self.action.removesuffix("*")
        found |= {} if self.since is None else {"at__gte": self.since}
        return found | ({} if self.until is None else {"at__lt": self.until})


class AuditFilter(AuditWhich, pages.Listing):
    """Query of the audit log."""


class AuditExport(AuditWhich):
    """Query of its export."""

    after_seq: Annotated[int, Field(ge=0, le=2**53, description="Continue after the row of this number.")] = 0
    limit: Annotated[int | None, Field(ge=1, le=MAX_LINES, description="Rows; all unless given.")] = None


@router.get(
    "/audit",
    summary="Audit log",
    auth=needs(Scope.ADMIN),
    openapi_extra=describe(list[rest.AuditEntry], errors=(422,)),
)
def list_audit(request: HttpRequest, query: Query[AuditFilter]) -> HttpResponse:
    """Newest first. `manage.py verify_audit` says whether it is whole."""
    wanted = AuditEntry.objects.filter(**query.wanted())
    found, after = pages.page(wanted.only("id"), query, name="audit")
    rows = reading.whole([row.id for row in found])
    words = actors.all_in_words(row.actor for row in rows if isinstance(row.actor, str))
    items, total = [_view(row, words) for row in rows], pages.counted(query, wanted)
    return send(pages.listing(items, after, newest_seq(), total=total))


@router.get(
    "/audit/export",
    summary="Audit log as JSON lines",
    auth=needs(Scope.ADMIN),
    openapi_extra=describe(rest.AuditLine, media_type="application/x-ndjson", errors=(422,)),
)
async def export_audit(request: HttpRequest, query: Query[AuditExport]) -> StreamingHttpResponse:
    """Sealed rows in the order of the chain, each with its digests; those of the last second may not be sealed yet.
    Without `limit` up to the newest, sent while it is read."""
    reader = principal_of(request).standing
    lines = audit_export.stream(query.wanted(), reader, after_seq=query.after_seq, limit=query.limit)
    response = StreamingHttpResponse(lines, content_type="application/x-ndjson")
    response["Content-Disposition"] = 'attachment; filename="holdfast-audit.jsonl"'
    response["Cache-Control"] = "no-store"
    response["X-Accel-Buffering"] = "no"
    return response


@router.get(
    "/audit/state", summary="Is the audit log whole", auth=needs(Scope.ADMIN), openapi_extra=describe(rest.AuditState)
)
def audit_state(request: HttpRequest) -> HttpResponse:
    """Up to which row `manage.py verify_audit` has verified it, when, and what it found."""
    found = verdicts.newest()
    seqs = AuditEntry.raw.exclude(seq=None).order_by("-seq").values_list("seq", flat=True)
    return send(
        {
            "verified": found is not None,
            "whole": None if found is None else found.broken == 0,
            "at": None if found is None else iso(found.at),
            "rows": None if found is None else found.rows,
            "seq": None if found is None else found.seq,
            "broken": 0 if found is None else found.broken,
            "first_fault": "" if found is None else found.first_fault,
            "newest_seq": seqs.first(),
            "unsealed": sealing.unsealed().count(),
        }
    )


def _view(row: AuditEntry, words: Mapping[str, str]) -> dict[str, Any]:
    """Of a row that somebody else put into the table, and that cannot be sent, only that it is there."""
    try:
        view = _whole(row) | {"who": words[row.actor]}
        msgspec.json.encode(view)
    except (*reading.SPOILT, KeyError):
        return _whole(AuditEntry(id=row.id, at=NO_TIME, action="unreadable", reason=SPOILT))
    return view


def _whole(row: AuditEntry) -> dict[str, Any]:
    return {
        "id": row.id,
        "seq": row.seq,
        "at": iso(row.at),
        "actor": row.actor,
        "who": row.actor,
        "action": row.action,
        "subject": row.subject,
        "reason": row.reason,
        "origin": row.origin,
        "request_id": row.request_id,
        "decision_id": row.decision_id or None,
        "data": row.data,
        "before": row.before,
        "after": row.after,
        "hash": row.hash or None,
    }
