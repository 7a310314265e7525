"""Nodes, devices and the overview."""

from typing import Annotated, Literal

from django.http import HttpRequest, HttpResponse
from ninja import Query, Router
from pydantic import Field

from controlplane.access.models import Scope
from controlplane.api import bodies, etags, pages, records
from controlplane.api.auth import needs, principal_of
from controlplane.api.bodies import send
from controlplane.api.edge import describe
from controlplane.api.eventlog import event_view
from controlplane.api.fields import Fields, of_rows, only
from controlplane.api.idempotency import Effect, once
from controlplane.api.overview import overview
from controlplane.api.reach import reach
from controlplane.engines import views as engine_views
from controlplane.fleet import selectors, services
from controlplane.fleet.models import Device
from controlplane.jobs.seen import IN_USE, device_in_use_unseen, events_seen, seen
from controlplane.jobs.selectors import ranks_on_node
from controlplane.protocol import rest
from controlplane.recovery import deadletter, devices, requests, unheard
from controlplane.recovery.capable import ranks_with_acts
from controlplane.recovery.selectors import signals_of_node
from controlplane.runtime.errors import Conflict
from controlplane.runtime.events import newest_seq, told
from controlplane.runtime.models import Event
from controlplane.runtime.requests import request_id_of

router = Router(tags=["fleet"], auth=needs(Scope.READ))
RECENT = 100


NodeState = Annotated[str | None, Field(max_length=16)]
NodeName = Annotated[str, Field(max_length=100, description="Part of the name.")]


class NodeFilter(pages.Listing):
    """Query of the node list."""

    state: NodeState = None
    q: NodeName = ""
    sort: Annotated[
        Literal["name", "-name", "-risk", "health"],
        Field(description="By name; the highest risk of its devices first; the worst first."),
    ] = "name"
    fields: Fields = ""


class LetterFilter(pages.Listing):
    """Query of a node's dead letters."""

    state: Literal["waiting", "replayed", "discarded"] | None = None


@router.get("/overview", summary="The fleet on one page", openapi_extra=describe(rest.Overview))
def get_overview(request: HttpRequest) -> HttpResponse:
    """Counts, recent incidents and decisions, and the control plane's own health."""
    return send(overview(reach(request)))


@router.get("/nodes", summary="List nodes", openapi_extra=describe(list[rest.Node], errors=(422,)))
def list_nodes(request: HttpRequest, query: Query[NodeFilter]) -> HttpResponse:
    """With their devices and newest readings, by name unless `sort` says otherwise."""
    seq, names = newest_seq(), of_rows(query.fields, rest.Node, of="a node")
    rows = selectors.nodes(state=query.state, q=query.q)
    turns = selectors.turns(rows, query.sort)
    found, after = pages.in_turn(rows, query, turns, name=f"nodes:{query.sort}", descending=query.sort == "-name")
    live = names is None or not selectors.LIVE.isdisjoint(names)
    views = seen(reach(request), selectors.node_views(found, live=live))
    return send(pages.listing(only(views, names), after, seq, total=pages.counted(query, rows)))


@router.get("/nodes/{rid:node_id}", summary="One node", openapi_extra=describe(rest.NodeDetail, errors=(304, 404, 412)))
def get_node(request: HttpRequest, node_id: str) -> HttpResponse:
    """By id, or by name. With its ranks, recent signals and events. Has an ETag."""
    seq = newest_seq()
    row, rights = selectors.node(node_id), reach(request)
    events = told(events_seen(rights, Event.objects.filter(node_id=row.id))).order_by("-seq")[:RECENT]
    signals, older = signals_of_node(row.id, rights.only)
    view = selectors.node_view(row) | {
        "signals": signals,
        "signals_left_out": older,
        "unheard": unheard.of_node(row.id),
        "ranks": ranks_with_acts(ranks_on_node(row.id), row.id),
        "events": [event_view(event) for event in reversed(events)],
        "dead_letters": deadletter.waiting_count(row.id),
        "engine": engine_views.of_node(row.id),
    }
    return etags.answer(request, records.node(row), seen(rights, view), seq)


@router.get(
    "/nodes/{rid:node_id}/dead-letters",
    summary="Events that could not be applied",
    auth=needs(Scope.OPERATE),
    openapi_extra=describe(list[rest.DeadLetter], errors=(404, 422)),
)
def list_dead_letters(request: HttpRequest, node_id: str, query: Query[LetterFilter]) -> HttpResponse:
    """What the node's agent sent and the server could not take in, newest first, without the
    events themselves. `manage.py replay_dead_letters` applies them, `discard_dead_letters`
    drops them."""
    seq = newest_seq()
    rows = deadletter.letters(node_id=selectors.node(node_id).id, state=query.state or "")
    found, after = pages.page(rows, query, name="dead-letters")
    return send(
        pages.listing([deadletter.letter_view(row) for row in found], after, seq, total=pages.counted(query, rows))
    )


@router.post(
    "/nodes/{rid:node_id}:cordon",
    summary="Cordon a node",
    auth=needs(Scope.OPERATE),
    openapi_extra=describe(rest.Accepted, status=202, body=bodies.WithReason, errors=(404, 409, 412, 415, 422)),
)
def cordon(request: HttpRequest, node_id: str) -> HttpResponse:
    """It gets no new work; what runs there goes on."""
    body, actor = bodies.read(request, bodies.WithReason), principal_of(request).name

    def effect() -> Effect:
        etags.check(request, lambda: records.held_node(node_id))
        node = services.cordon(node_id, reason=body.reason, actor=actor, request_id=request_id_of(request))
        return Effect(data={"detail": f"{node.name} takes no new work."})

    return once(request, effect)


@router.post(
    "/nodes/{rid:node_id}:uncordon",
    summary="Uncordon a node",
    auth=needs(Scope.OPERATE),
    openapi_extra=describe(rest.Accepted, status=202, body=bodies.WithReason, errors=(404, 409, 412, 415, 422)),
)
def uncordon(request: HttpRequest, node_id: str) -> HttpResponse:
    """It may take work again, and its present devices count as healthy."""
    body, actor = bodies.read(request, bodies.WithReason), principal_of(request).name

    def effect() -> Effect:
        etags.check(request, lambda: records.held_node(node_id))
        node = services.uncordon(node_id, reason=body.reason, actor=actor, request_id=request_id_of(request))
        return Effect(data={"detail": f"{node.name} may take work."})

    return once(request, effect)


@router.post(
    "/nodes/{rid:node_id}:drain",
    summary="Drain a node",
    auth=needs(Scope.OPERATE),
    openapi_extra=describe(rest.Accepted, status=202, body=bodies.WithReason, errors=(404, 409, 412, 415, 422)),
)
def drain(request: HttpRequest, node_id: str) -> HttpResponse:
    """It gets no new work, and the replicas on it are moved to other nodes, of each job one after another; when
    nothing runs there any more it is cordoned, and `request` is done. `/requests/{request}:withdraw` takes it back."""
    body, actor = bodies.read(request, bodies.WithReason), principal_of(request).name

    def effect() -> Effect:
        etags.check(request, lambda: records.held_node(node_id))
        row = requests.drain(node_id, reason=body.reason, actor=actor, request_id=request_id_of(request))
        name = row.node.name if row.node is not None else node_id
        return Effect(data={"detail": f"{name} takes no new work, and is emptied.", "request": row.id})

    return once(request, effect)


@router.post(
    "/devices/{rid:device_id}:reset",
    summary="Reset a device",
    auth=needs(Scope.OPERATE),
    openapi_extra=describe(rest.Accepted, status=202, body=bodies.WithReason, errors=(404, 409, 415, 422)),
)
def reset_device(request: HttpRequest, device_id: str) -> HttpResponse:
    """It gets no new work, and its node's agent resets it; a device that a rank is on is refused."""
    body, actor = bodies.read(request, bodies.WithReason), principal_of(request).name

    def effect() -> Effect:
        if device_in_use_unseen(reach(request), device_id):
            raise Conflict(IN_USE)
        device = devices.reset_by_person(device_id, reason=body.reason, actor=actor, request_id=request_id_of(request))
        return Effect(data={"detail": _ordered(device)})

    return once(request, effect)


def _ordered(device: Device) -> str:
    where = f"Device {device.index} of {device.node.name}"
    when = "it is reset within seconds" if device.node.connected else "it is reset when its node is connected again"
    return f"{where} takes no new work; {when}, and returns by itself when that succeeds."
