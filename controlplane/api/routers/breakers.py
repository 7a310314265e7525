"""Breakers: what holds automation, and the word of a person that lets it go on."""

from django.http import HttpRequest, HttpResponse
from ninja import Query, Router

from controlplane.access.models import Scope
from controlplane.api import bodies, pages
from controlplane.api.auth import needs, principal_of
from controlplane.api.bodies import send
from controlplane.api.edge import describe
from controlplane.api.idempotency import Effect, once
from controlplane.protocol import rest
from controlplane.recovery import breaker_rows
from controlplane.recovery.present_breakers import breaker_summaries, newest
from controlplane.runtime.events import newest_seq

router = Router(tags=["recovery"], auth=needs(Scope.READ))


@router.get("/breakers", summary="List breakers", openapi_extra=describe(list[rest.Breaker], errors=(422,)))
def list_breakers(request: HttpRequest, query: Query[pages.Listing]) -> HttpResponse:
    """Newest first, also those that are closed. The open ones are on the overview too."""
    seq, rows = newest_seq(), newest()
    found, after = pages.page(rows, query, name="breakers")
    return send(pages.listing(breaker_summaries(found), after, seq, total=pages.counted(query, rows)))


@router.post(
    "/breakers/{rid:breaker_id}:close",
    summary="Close a breaker",
    auth=needs(Scope.OPERATE),
    openapi_extra=describe(rest.Accepted, status=202, body=bodies.WithReason, errors=(404, 409, 415, 422)),
)
def close_breaker(request: HttpRequest, breaker_id: str) -> HttpResponse:
    """Automation continues, and counts from zero. 409 where it is closed."""
    body, actor = bodies.read(request, bodies.WithReason), principal_of(request).name

    def effect() -> Effect:
        breaker_rows.close(breaker_id, actor=actor, reason=body.reason)
        return Effect(data={"detail": "Closed: the next pass of each job may act again."})

    return once(request, effect)
