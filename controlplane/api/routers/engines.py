"""What gives the nodes: what it answers, its pools, and what is wanted of it."""

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from ninja import Router

from controlplane.access.models import Scope
from controlplane.api import bodies, pages
from controlplane.api.auth import needs, principal_of
from controlplane.api.bodies import send
from controlplane.api.edge import describe
from controlplane.api.idempotency import Effect, once
from controlplane.engines import intents, views
from controlplane.protocol import rest
from controlplane.runtime.events import newest_seq
from controlplane.runtime.requests import request_id_of

router = Router(tags=["fleet"], auth=needs(Scope.READ))


@router.get("/engines", summary="What gives the nodes", openapi_extra=describe(list[rest.Engine]))
def list_engines(request: HttpRequest) -> HttpResponse:
    """The engine of this server, with its pools of pilots, the reasons for which pilots wait, and what is wanted of
    it."""
    seq = newest_seq()
    found = views.engines()
    return send(pages.listing(found, None, seq, total=len(found)))


@router.post(
    "/pools/{rid:pool_id}:resize",
    summary="Grow or shrink a pool",
    auth=needs(Scope.OPERATE),
    openapi_extra=describe(rest.Accepted, status=202, body=bodies.PoolSize, errors=(404, 409, 415, 422)),
)
def resize(request: HttpRequest, pool_id: str) -> HttpResponse:
    """So many of its pilots run at a time. More start from those that wait; of fewer, spare ones are given back, and
    those with ranks on their node stay until they end. 409 where the pool has not so many."""
    body, actor = bodies.read(request, bodies.PoolSize), principal_of(request).name

    def effect() -> Effect:
        intents.resize(
            settings.ENGINE, pool_id, body.size, reason=body.reason, actor=actor, request_id=request_id_of(request)
        )
        return Effect(data={"detail": f"{settings.ENGINE} is asked to run {body.size} pilots of {pool_id} at a time."})

    return once(request, effect)
