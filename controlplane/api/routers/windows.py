"""Known ends of nodes: maintenance windows that people set and cancel, and notices of providers."""

from typing import Annotated

from django.http import HttpRequest, HttpResponse
from ninja import Query, Router
from pydantic import Field

from controlplane.access.models import Scope
from controlplane.api import bodies, etags, pages, records
from controlplane.api.auth import needs, principal_of
from controlplane.api.bodies import send
from controlplane.api.edge import describe
from controlplane.api.idempotency import Effect, once
from controlplane.fleet import ends
from controlplane.fleet.models import KnownEnd
from controlplane.protocol import rest
from controlplane.recovery import windows
from controlplane.runtime.clock import iso
from controlplane.runtime.errors import Invalid
from controlplane.runtime.events import newest_seq
from controlplane.runtime.requests import request_id_of

router = Router(tags=["fleet"], auth=needs(Scope.READ))


class WindowFilter(pages.Listing):
    """Query of the list of windows."""

    node_id: Annotated[str, Field(max_length=32, description="Only of this node.")] = ""
    holds: Annotated[bool, Field(description="Only those that are not over.")] = False


@router.get("/windows", summary="List windows", openapi_extra=describe(list[rest.Window], errors=(422,)))
def list_windows(request: HttpRequest, query: Query[WindowFilter]) -> HttpResponse:
    """When nodes are known to leave, by windows and by notices of their providers; newest first."""
    seq = newest_seq()
    rows = ends.holding().order_by() if query.holds else KnownEnd.objects.all()
    rows = rows.filter(node_id=query.node_id) if query.node_id else rows
    found, after = pages.page(rows.select_related("node"), query, name="windows")
    return send(pages.listing([ends.view(row) for row in found], after, seq, total=pages.counted(query, rows)))


@router.get(
    "/windows/{rid:window_id}", summary="One window", openapi_extra=describe(rest.OneWindow, errors=(304, 404, 412))
)
def get_window(request: HttpRequest, window_id: str) -> HttpResponse:
    """Has an ETag."""
    seq, row = newest_seq(), ends.one(window_id)
    return etags.answer(request, records.window(row), ends.view(row), seq)


@router.post(
    "/windows",
    summary="Set a maintenance window",
    auth=needs(Scope.OPERATE),
    openapi_extra=describe(rest.Accepted, status=202, body=bodies.Maintenance, errors=(404, 409, 415, 422)),
)
def set_window(request: HttpRequest) -> HttpResponse:
    """Over some nodes, or those that are in a segment now. They are empty when it starts, and take no start that is not
    expected to be over before."""
    body, actor = bodies.read(request, bodies.Maintenance), principal_of(request).name
    check_nodes(body, "window")
    return once(request, lambda: _set(request, nodes_of(body), body, actor))


@router.post(
    "/nodes/{rid:node_id}:maintain",
    summary="Set a maintenance window of a node",
    auth=needs(Scope.OPERATE),
    openapi_extra=describe(rest.Accepted, status=202, body=bodies.WindowOfNode, errors=(404, 409, 415, 422)),
)
def maintain(request: HttpRequest, node_id: str) -> HttpResponse:
    """It is empty when the window starts, takes no start that is not expected to be over before, and takes work again
    when it is over. `/windows/{window}:cancel` takes it back."""
    body, actor = bodies.read(request, bodies.WindowOfNode), principal_of(request).name
    return once(request, lambda: _set(request, [node_id], body, actor))


@router.post(
    "/windows/{rid:window_id}:cancel",
    summary="Cancel a window",
    auth=needs(Scope.OPERATE),
    openapi_extra=describe(rest.Accepted, status=202, body=bodies.WithReason, errors=(404, 409, 412, 415, 422)),
)
def cancel(request: HttpRequest, window_id: str) -> HttpResponse:
    """The node stays: what has not left it stays too. A notice of a provider can be called wrong so. 409 where it is
    over."""
    body, actor = bodies.read(request, bodies.WithReason), principal_of(request).name

    def effect() -> Effect:
        etags.check(request, lambda: records.window(ends.one(window_id)))
        row = windows.cancel(window_id, reason=body.reason, actor=actor, request_id=request_id_of(request))
        return Effect(data={"detail": f"{row.node.name} stays."})

    return once(request, effect)


def check_nodes(body: bodies.Maintenance, what: str) -> None:
    """Raises Invalid where none are named, or both ways."""
    if bool(body.nodes) is bool(body.segment):
        raise Invalid(f"a {what} is over `nodes` or over a `segment`: name one of them")


def nodes_of(body: bodies.Maintenance) -> list[str]:
    """Ids of those that it names, or that are in its segment now. Raises NotFound."""
    return list(body.nodes) or windows.of_segment(body.segment)


def _set(request: HttpRequest, nodes: list[str], body: bodies.WindowOfNode, actor: str) -> Effect:
    made = windows.set_window(
        nodes,
        starts_at=body.starts_at,
        ends_at=body.ends_at,
        reason=body.reason,
        actor=actor,
        request_id=request_id_of(request),
    )
    names = ", ".join(row.node.name for row in made)
    detail = f"{names} {'are' if len(made) > 1 else 'is'} empty when the window starts, at {iso(body.starts_at)}."
    return Effect(data={"detail": detail, "window": made[0].pk})
