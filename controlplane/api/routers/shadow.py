"""A policy beside the live one: started, looked at, promoted and stopped."""

from typing import Annotated

from django.http import HttpRequest, HttpResponse
from ninja import Query, Router, Schema
from pydantic import Field

from controlplane.access.models import Scope
from controlplane.api import bodies
from controlplane.api.auth import needs, principal_of
from controlplane.api.bodies import send
from controlplane.api.edge import describe
from controlplane.api.idempotency import Effect, once
from controlplane.api.reach import reach
from controlplane.policies import shadows
from controlplane.policies.services import Edit
from controlplane.policies.text import document_of
from controlplane.policy.shadow import below
from controlplane.protocol import rest
from controlplane.recovery import shadow_view, shadowing
from controlplane.recovery.ground import ground
from controlplane.runtime.events import newest_seq

router = Router(tags=["policy"], auth=needs(Scope.READ))


class WhichShadow(Schema):
    """Query of one of them."""

    run: Annotated[
        int, Field(ge=0, le=1_000_000, description="Of this number; 0: the one that runs, else the newest.")
    ] = 0


@router.get(
    "/policy/shadow",
    summary="The policy beside the live one",
    openapi_extra=describe(rest.CurrentShadow, errors=(404, 422)),
)
def get_shadow(request: HttpRequest, query: Query[WhichShadow]) -> HttpResponse:
    """Its document, how far it agrees by rule, its score, and why it may not be promoted yet."""
    seq = newest_seq()
    run = shadows.one(query.run) if query.run else shadows.newest()
    shown = shadow_view.shadow(run, reach(request).only) if run is not None else None
    return send({"shadow": shown, "as_of_seq": seq})


@router.post(
    "/policy/shadow:start",
    summary="Run a policy beside the live one",
    auth=needs(Scope.ADMIN),
    openapi_extra=describe(rest.Shadow, status=201, body=bodies.NewShadow, errors=(409, 415, 422)),
)
def start(request: HttpRequest) -> HttpResponse:
    """From now on the document decides each recorded decision as well, and acts on none. 409 where one runs already."""
    body, actor = bodies.read(request, bodies.NewShadow), principal_of(request).name

    def effect() -> Effect:
        run = shadows.start(
            document_of(body.text),
            body.bar,
            ground=ground(),
            actor=actor,
            reason=body.reason,
            after=shadowing.newest_id(),
        )
        return Effect(data=shadow_view.shadow(run), status=201)

    return once(request, effect)


@router.post(
    "/policy/shadow:promote",
    summary="Make the shadow the policy",
    auth=needs(Scope.ADMIN),
    openapi_extra=describe(rest.Shadow, body=bodies.PromoteShadow, errors=(404, 409, 415, 422)),
)
def promote(request: HttpRequest) -> HttpResponse:
    """Its document becomes the newest version, and the one before it watches: it comes back by itself where it would
    have wasted less. 409 below the bar, with every reason, and where `parent` is not the newest version any more."""
    body, actor = bodies.read(request, bodies.PromoteShadow), principal_of(request).name
    edit = Edit(parent=body.parent, reason=body.reason, actor=actor)

    def effect() -> Effect:
        run = shadows.one(body.run)
        refused = below(shadowing.score(run), shadows.bar_of(run))
        watch = shadows.promote(run, edit, ground=ground(), below=refused, after=shadowing.newest_id())
        return Effect(data=shadow_view.shadow(watch))

    return once(request, effect)


@router.post(
    "/policy/shadow:stop",
    summary="Stop a shadow",
    auth=needs(Scope.ADMIN),
    openapi_extra=describe(rest.Shadow, body=bodies.StopShadow, errors=(404, 409, 415, 422)),
)
def stop(request: HttpRequest) -> HttpResponse:
    """The live policy is as it was; what was compared stays to be read."""
    body, actor = bodies.read(request, bodies.StopShadow), principal_of(request).name

    def effect() -> Effect:
        run = shadows.stop(shadows.one(body.run), actor=actor, reason=body.reason)
        return Effect(data=shadow_view.shadow(run))

    return once(request, effect)
